"""`dovetail inspect`: show a model's files, its template's behaviour and its parser self-test."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dovetail.cli.flags import find_and_load_model
from dovetail.models.loader import Model, ModelLoadError
from dovetail.models.self_test import SelfTestOutcome
from dovetail.models.weights import ModelUnavailableError
from dovetail.prompt.template import TemplateProfile


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A built-in name, a GGUF file, a Hugging Face Hub id, or a model folder "
            "(tokenizer and chat template are sufficient).",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(help="Tool call parser, or 'none'; by default detected from the model."),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(help="Reasoning parser, or 'none'; by default detected from the model."),
    ] = None,
    custom_jinja_template: Annotated[
        Path | None, typer.Option(help="Chat template file to use instead of the model's own.")
    ] = None,
) -> None:
    """Show how Dovetail prompts a model and parses its output.

    Loads the tokenizer and the chat template, probes how the template renders tools, reasoning and
    earlier turns, selects the parsers, and tests that they parse what the template renders. No
    weights are needed.
    """
    try:
        model = find_and_load_model(
            path,
            tool_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            custom_template=custom_jinja_template,
        )
    except (ModelLoadError, ModelUnavailableError) as error:
        typer.echo(f"dovetail inspect: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(describe_model(model), ensure_ascii=False, indent=2))
    else:
        Console().print(_build_table(model))


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model as JSON."""
    return {
        "model": model.name,
        "path": str(model.path),
        "fingerprint": model.fingerprint,
        "context_length": model.context_length,
        "tokenizer": {"size": model.tokenizer.size, "controls": len(model.tokenizer.controls)},
        "template": {
            "source": model.template_source.origin,
            "names": sorted(model.template_source.templates),
        },
        "tool_parser": model.tool_parser,
        "reasoning_parser": model.reasoning_parser,
        "parsers_by": model.parsers.source,
        "switches": dict(model.switches),
        "stops": {"tokens": list(model.stop_strings), "ids": sorted(model.stop_ids)},
        "sampling": msgspec.to_builtins(model.sampling),
        "facts": _profile_to_json(model.profile),
        "self_test": {
            "ok": model.self_test.ok,
            "outcomes": [
                {**dataclasses.asdict(outcome), "ok": outcome.ok}
                for outcome in model.self_test.outcomes
            ],
            "notes": list(model.self_test.notes),
        },
        "warnings": list(model.warnings),
    }


#: Fields whose JSON key differs from their name: scripts rely on the keys.
_PROFILE_KEYS = {"text_with_reasoning": "text_beside_thought", "reasoning_opener": "opens_thought"}


def _profile_to_json(profile: TemplateProfile) -> dict[str, Any]:
    fields = dataclasses.asdict(profile).items()
    plain = {_PROFILE_KEYS.get(name, name): value for name, value in fields}
    switches = {"on" if on else "off": dict(s) for on, s in profile.thinking_switches.items()}
    return {**plain, "thinking_switches": switches}


def _build_table(model: Model) -> Table:
    table = Table(title=model.name, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for section in (_file_rows(model), _template_rows(model.profile), _parser_rows(model)):
        for name, value in section.items():
            table.add_row(name, Text(value))
        table.add_section()
    for warning in model.warnings:
        table.add_row("warning", Text(warning, style="yellow"))
    return table


def _file_rows(model: Model) -> dict[str, str]:
    tokenizer = model.tokenizer
    window = f"{model.context_length:,} tokens" if model.context_length else "not stated"
    names = ", ".join(model.template_source.templates)
    sampling = {f: getattr(model.sampling, f) for f in _SAMPLING_FIELDS}
    return {
        "path": str(model.path),
        "tokenizer": f"{tokenizer.size:,} tokens, {len(tokenizer.controls)} of them control tokens",
        "template": f"{model.template_source.origin} ({names})",
        "context length": window,
        "stop tokens": "  ".join(model.stop_strings) or "unknown",
        "sampling": _format_switches({f: v for f, v in sampling.items() if v is not None})
        or "no defaults",
        "fingerprint": model.fingerprint,
    }


_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _template_rows(facts: TemplateProfile) -> dict[str, str]:
    return {
        "renders": _format_flags(
            {
                "tools": facts.renders_tools,
                "tool calls": facts.renders_calls,
                "several calls per turn": facts.many_calls,
                "text with calls": facts.text_with_calls,
                "tool results": facts.renders_results,
            }
        ),
        "accepts": f"{facts.arguments} arguments, {facts.content} content, {facts.call_ids} ids",
        "system": f"{facts.system}; inside: {facts.system_inside}; developer: {facts.developer}",
        "reasoning": _format_reasoning(facts),
        "preserves": _format_flags(
            {
                "reasoning in a tool loop": facts.keeps_in_loop,
                "reasoning at a user turn": facts.keeps_at_user,
                "turns without reasoning": facts.keeps_plain,
            }
        ),
        "preserves more with": _format_switches(facts.keep_switches) or "no switch",
        "thinking on / off": _format_thinking_switches(facts),
        "prompt opens": repr(opener) if (opener := facts.reasoning_opener) else "no reasoning",
    }


def _format_reasoning(facts: TemplateProfile) -> str:
    if facts.thinking_parts:
        return "content parts"
    return "field " + " or ".join(facts.reasoning_fields) if facts.reasoning_fields else "no field"


def _format_thinking_switches(facts: TemplateProfile) -> str:
    if not facts.thinking_switches:
        return "no switch"
    return " / ".join(_format_switches(facts.thinking_switches[on]) for on in (True, False))


def _parser_rows(model: Model) -> dict[str, str]:
    parsers = model.parsers
    rows = {
        "tool parser": f"{parsers.tool or 'none'} (by {parsers.source})",
        "reasoning parser": parsers.reasoning or "none",
        "switches": _format_switches(model.switches) or "none",
        "self-test": "passed" if model.self_test.ok else "FAILED",
    }
    return rows | {f"  {o.shape}": _format_outcome(o) for o in model.self_test.outcomes}


def _format_outcome(outcome: SelfTestOutcome) -> str:
    if outcome.refused:
        return f"rejected by the template: {outcome.refused}"
    lines = [f"lost {item}" for item in outcome.lost] + [f"leaked {i}" for i in outcome.leaked]
    return "\n".join(lines) or "ok"


def _format_flags(flags: dict[str, bool]) -> str:
    return "\n".join(f"{'yes' if is_set else 'no ':3} {name}" for name, is_set in flags.items())


def _format_switches(switches: Any) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in switches.items())
