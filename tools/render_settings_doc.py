"""Write the table of settings into its page; with --check, fail if the page is not current."""

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dovetail.cli.flags import FLAG_ALIASES
from dovetail.settings.config import Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations" / "settings.md"
BEGIN, END = "<!-- settings: made by `make docs` -->\n", "<!-- end of settings -->\n"
KINDS = {int: "number", float: "number", str: "text", Path: "path", bool: "switch"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only check, and fail if the page is out of date"
    )
    check: bool = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    held = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    page = held.sub(lambda _: _section(), before)
    if BEGIN not in before or (check and page != before):
        print("docs/operations/settings.md is not current: run `make docs`", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


def _section() -> str:
    kinds = get_type_hints(Config)
    rows = "".join(_row(one, kinds[one.name]) for one in fields(Config))
    return f"{BEGIN}\n| flag | type | default | description |\n|---|---|---|---|\n{rows}\n{END}"


def _row(one: "Field[Any]", kind: Any) -> str:
    """Return a row of the table; a star marks per-model settings."""
    flag = {"model": "MODEL", "models": "[[models]]"}.get(one.name, _spelled(one.name))
    flags = ", ".join(f"`{each}`" for each in FLAG_ALIASES.get(one.name, (flag,)))
    star = "*" if one.metadata["per_model"] else ""
    text = str(one.metadata["help"]).replace("|", "\\|").replace("*", "\\*")
    return f"| {flags}{star} | {_takes(kind)} | {_default(one)} | {text} |\n"


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _takes(kind: Any) -> str:
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in parts)
    if get_origin(kind) is tuple:
        return "tables" if get_origin(parts[0]) is Mapping else "text, repeatable"
    if get_origin(kind) is Mapping:
        return "JSON"
    return KINDS.get(kind) or _takes(parts[0])


def _default(one: "Field[Any]") -> str:
    value = one.default
    if value is MISSING or value in (None, ()):
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    whole = isinstance(value, float) and value.is_integer()
    return f"`{int(value) if whole else value}`"


if __name__ == "__main__":
    sys.exit(main())
