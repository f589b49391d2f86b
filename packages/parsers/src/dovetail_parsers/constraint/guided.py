"""Guided decoding: convert the constraints of a request to a grammar for the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from dovetail_model import InvalidRequest, OutputFormat, ToolChoice, ToolSpec, Unsupported
from dovetail_parsers.constraint.bodies import to_guided_tool
from dovetail_parsers.constraint.ebnf import write_ebnf, write_structural_tag
from dovetail_parsers.constraint.gbnf import write_gbnf
from dovetail_parsers.constraint.lark import write_lark
from dovetail_parsers.constraint.layout import OutputLayout, TableLayout
from dovetail_parsers.constraint.limits import check_output_size, check_tool_sizes
from dovetail_parsers.constraint.messages import MESSAGE_FORMATS, MessageLayout
from dovetail_parsers.constraint.nodes import GrammarSpec, Node, Rules, choice, sequence
from dovetail_parsers.constraint.output_form import output_form
from dovetail_parsers.constraint.tokens import resolve_markers
from dovetail_parsers.parser import to_tool_spec
from dovetail_parsers.plugin import find_plugin
from dovetail_parsers.registry import load_grammar

_AUTO = ToolChoice()
_TEXT = OutputFormat()
_NO_TOKENS: Mapping[str, int] = MappingProxyType({})

Syntax = Literal["gbnf", "ebnf", "lark", "structural_tag"]

_WRITERS: Mapping[str, Callable[[GrammarSpec], str]] = {
    "gbnf": write_gbnf,
    "ebnf": write_ebnf,
    "lark": write_lark,
    "structural_tag": write_structural_tag,
}


@dataclass(frozen=True)
class GuidedGrammar:
    """A grammar in one syntax. `notes` list constraints it does not enforce, for the client."""

    syntax: Syntax
    text: str
    notes: tuple[str, ...] = ()


def build_guided_grammar(  # noqa: PLR0913 - every fact of a request that shapes its output
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    tools: Sequence[ToolSpec | Mapping[str, Any]],
    choice: ToolChoice = _AUTO,
    output: OutputFormat = _TEXT,
    in_reasoning: bool,
    allow_reasoning: bool = True,
    syntax: Syntax = "gbnf",
    tokens: Mapping[str, int] = _NO_TOKENS,
) -> GuidedGrammar | None:
    """Build the grammar that the output must follow; None for a request without constraints.

    `in_reasoning`: the prompt ended inside an open reasoning span.
    `allow_reasoning`: the model may open a reasoning span.
    `tokens`: the spelling and id of every control token of the vocabulary; a marker that is a
    control token must be generated as that token. The same request always returns the same text.
    Raises `InvalidRequest` for a tool choice that the tools cannot satisfy, and `Unsupported` for
    a family without a grammar, an unknown syntax, or an output format that no grammar expresses.
    """
    if syntax not in _WRITERS:
        raise Unsupported(f"unknown grammar syntax {syntax!r}")
    specs = _callable_tools(tuple(map(to_tool_spec, tools)), choice)
    if not _is_constrained(specs, choice, output):
        return None
    if find_plugin(tool_parser) or find_plugin(reasoning_parser):
        raise Unsupported(f"the parser {tool_parser!r} does not support guided decoding")
    check_output_size(output)
    if choice.mode != "none":
        check_tool_sizes(specs)
    rules = Rules()
    table = load_grammar(tool_parser, reasoning_parser)
    layout: OutputLayout = (
        MessageLayout(table, rules) if table.name in MESSAGE_FORMATS else TableLayout(table, rules)
    )
    root = _OutputGrammar(layout, rules, in_reasoning, allow_reasoning).root(specs, choice, output)
    text = _WRITERS[syntax](resolve_markers(GrammarSpec(root, rules), tokens))
    return GuidedGrammar(syntax, text, tuple(rules.notes))


def _callable_tools(specs: tuple[ToolSpec, ...], choice: ToolChoice) -> tuple[ToolSpec, ...]:
    """Return the tools that may be called."""
    if choice.allowed is not None:
        specs = tuple(spec for spec in specs if spec.model_name in choice.allowed)
    if choice.mode == "named":
        named = tuple(spec for spec in specs if choice.name in (spec.name, spec.model_name))
        if not named:
            raise InvalidRequest(
                f"tool_choice: there is no tool named {choice.name!r}", param="tool_choice"
            )
        return named[:1]
    if choice.mode == "required" and not specs:
        message = "tool_choice: requires a tool call, but there are no tools"
        raise InvalidRequest(message, param="tool_choice")
    return specs


def _is_constrained(specs: tuple[ToolSpec, ...], choice: ToolChoice, output: OutputFormat) -> bool:
    if output.kind != "text":
        return True
    if not specs:
        return False
    free = choice.mode == "auto" and choice.parallel and choice.allowed is None
    return not free or any(spec.strict for spec in specs)


class _OutputGrammar:
    """Composes the grammar of an output from the parts of a layout."""

    __slots__ = ("_allow_reasoning", "_in_reasoning", "_layout", "_rules")

    def __init__(
        self, layout: OutputLayout, rules: Rules, in_reasoning: bool, allow_reasoning: bool
    ) -> None:
        self._layout = layout
        self._rules = rules
        self._in_reasoning = in_reasoning
        self._allow_reasoning = allow_reasoning

    def root(
        self, specs: tuple[ToolSpec, ...], tool_choice: ToolChoice, output: OutputFormat
    ) -> Node:
        tools = [to_guided_tool(spec) for spec in specs] if tool_choice.mode != "none" else []
        calls = self._layout.calls(tools, tool_choice.parallel) if tools else None
        if calls is not None and tool_choice.mode in ("required", "named"):
            return sequence(self._reasoning(), calls)
        if output.kind == "text":
            return self._layout.prose(
                calls, tool_choice.parallel, self._in_reasoning, self._allow_reasoning
            )
        structured = self._layout.structured_output(output_form(output, self._rules))
        return sequence(
            self._reasoning(), structured if calls is None else choice(calls, structured)
        )

    def _reasoning(self) -> Node:
        return self._layout.reasoning(self._in_reasoning, self._allow_reasoning)
