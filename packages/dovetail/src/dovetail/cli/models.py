"""`dovetail models`: list the built-in models and the parsers."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dovetail.models.weights import BUILT_IN_MODELS, BuiltInModel
from dovetail.settings.installation import default_data_dir
from dovetail_parsers import families

TableRows = list[dict[str, Any]]


def models(
    by_family: Annotated[
        bool, typer.Option("--families", help="List the parsers by model family.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data folder with the downloaded weights.")
    ] = None,
) -> None:
    """List the built-in models; with --families, list all parsers.

    `dovetail serve` also accepts any GGUF file, model folder or Hugging Face Hub id.
    """
    rows = _family_rows() if by_family else _builtin_rows(data_dir or default_data_dir())
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    table = Table(*(name.replace("_", " ") for name in rows[0]), box=None, header_style="bold")
    for row in rows:
        table.add_row(*map(_format_cell, row.values()))
    Console().print(table)


def _builtin_rows(folder: Path) -> TableRows:
    return [
        {
            "name": weights.name,
            "download_mb": round(weights.download_bytes / 1e6),
            "context": weights.context_length,
            "licence": weights.license,
            "fetched": _is_fetched(weights, folder),
            "about": weights.description,
        }
        for weights in BUILT_IN_MODELS.values()
    ]


def _is_fetched(weights: BuiltInModel, folder: Path) -> bool:
    file = folder / "models" / f"{weights.file_stem}.gguf"
    return file.is_file() and file.stat().st_size == weights.size_bytes


def _family_rows() -> TableRows:
    return [
        {
            "family": family.name,
            "tool_parsers": list(family.tool_names),
            "reasoning_parsers": list(family.reasoning_names),
            "reasoning_beside_it": family.reasoning_parser if family.tool_names else None,
        }
        for family in sorted(families(), key=lambda family: family.name)
    ]


def _format_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return f"{value:,}" if isinstance(value, int) else str(value or "-")
