"""Guided decoding: what a request demands of the output, as a grammar for the engine."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from dovetail_model import InvalidRequest, OutputFormat, ToolChoice, ToolSpec, Unsupported
from dovetail_parsers.constraint.bodies import tool_of
from dovetail_parsers.constraint.ebnf import write_ebnf
from dovetail_parsers.constraint.gbnf import write_gbnf
from dovetail_parsers.constraint.lark import write_lark
from dovetail_parsers.constraint.layout import Layout, TableLayout
from dovetail_parsers.constraint.messages import FORMATS, MessageLayout
from dovetail_parsers.constraint.nodes import Form, Node, Rules, sequence
from dovetail_parsers.constraint.nodes import choice as one_of
from dovetail_parsers.constraint.notation import JSON
from dovetail_parsers.constraint.options import Typed
from dovetail_parsers.constraint.schema import Values
from dovetail_parsers.constraint.structural_tag import write_structural_tag
from dovetail_parsers.constraint.tokens import resolve
from dovetail_parsers.parser import tool_spec
from dovetail_parsers.plugin import plugged
from dovetail_parsers.registry import grammar

_AUTO = ToolChoice()
_TEXT = OutputFormat()
_NO_TOKENS: Mapping[str, int] = MappingProxyType({})

Syntax = Literal["gbnf", "ebnf", "lark", "structural_tag"]

_WRITERS: Mapping[str, Callable[[Form], str]] = {
    "gbnf": write_gbnf,
    "ebnf": write_ebnf,
    "lark": write_lark,
    "structural_tag": write_structural_tag,
}


@dataclass(frozen=True)
class Guide:
    """A grammar in a notation. `notes` say what it could not demand, for the client to see."""

    syntax: Syntax
    text: str
    notes: tuple[str, ...] = ()


def guide(  # noqa: PLR0913 - every fact of a request that shapes its output
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tools: Many[ToolSpec | Mapping[str, Any]],
    choice: ToolChoice = _AUTO,
    output: OutputFormat = _TEXT,
    in_reasoning: bool,
    thinks: bool = True,
    syntax: Syntax = "gbnf",
    tokens: Mapping[str, int] = _NO_TOKENS,
) -> Guide | None:
    """The grammar that the output must follow, or None where nothing is demanded of it.

    `in_reasoning`: the prompt ended inside an open thought. `thinks`: the model may open one.
    `tokens`: the spelling and the id of every control token of the vocabulary; a marker that is
    one has to be written as that token. The same request gives the same text. Raises
    `InvalidRequest` for a choice that the tools cannot meet, `Unsupported` for a family that has
    no grammar, or a notation that is unknown.
    """
    if syntax not in _WRITERS:
        raise Unsupported(f"no grammar can be written as {syntax!r}")
    specs = _chosen(tuple(map(tool_spec, tools)), choice)
    if not _demands(specs, choice, output):
        return None
    if plugged(tool_parser) or plugged(reasoning_parser):
        raise Unsupported(f"the parser {tool_parser!r} has no grammar for guided decoding")
    rules = Rules()
    table = grammar(tool_parser, reasoning_parser)
    layout: Layout = (
        MessageLayout(table, rules) if table.name in FORMATS else TableLayout(table, rules)
    )
    root = _Output(layout, rules, in_reasoning, thinks).root(specs, choice, output)
    text = _WRITERS[syntax](resolve(Form(root, rules), tokens))
    return Guide(syntax, text, tuple(rules.notes))


def _chosen(specs: tuple[ToolSpec, ...], choice: ToolChoice) -> tuple[ToolSpec, ...]:
    """The tools that may be called."""
    if choice.mode == "named":
        named = tuple(spec for spec in specs if choice.name in (spec.name, spec.model_name))
        if not named:
            raise InvalidRequest(f"no tool is named {choice.name!r}", param="tool_choice")
        return named[:1]
    if choice.mode == "required" and not specs:
        raise InvalidRequest("a call is required, but there are no tools", param="tool_choice")
    return specs


def _demands(specs: tuple[ToolSpec, ...], choice: ToolChoice, output: OutputFormat) -> bool:
    if output.kind != "text":
        return True
    if not specs:
        return False
    free = choice.mode == "auto" and choice.parallel
    return not free or any(spec.strict for spec in specs)


class _Output:
    """Puts an output together out of the parts of a layout."""

    __slots__ = ("_in_reasoning", "_layout", "_rules", "_thinks")

    def __init__(self, layout: Layout, rules: Rules, in_reasoning: bool, thinks: bool) -> None:
        self._layout = layout
        self._rules = rules
        self._in_reasoning = in_reasoning
        self._thinks = thinks

    def root(self, specs: tuple[ToolSpec, ...], wanted: ToolChoice, output: OutputFormat) -> Node:
        tools = [tool_of(spec) for spec in specs] if wanted.mode != "none" else []
        calls = self._layout.calls(tools, wanted.parallel) if tools else None
        if calls is not None and wanted.mode in ("required", "named"):
            return sequence(self._begin(), calls)
        if output.kind == "text":
            return self._layout.prose(calls, wanted.parallel, self._in_reasoning, self._thinks)
        answer = self._layout.answer(self._json(output))
        return sequence(self._begin(), answer if calls is None else one_of(calls, answer))

    def _begin(self) -> Node:
        return self._layout.begin(self._in_reasoning, self._thinks)

    def _json(self, output: OutputFormat) -> Node:
        """The visible answer as JSON: any object, or what the schema says."""
        if output.kind == "json_object" or output.schema is None:
            return Values({}, JSON, self._rules).option(Typed("object", {}))
        return Values(output.schema, JSON, self._rules).value(output.schema)
