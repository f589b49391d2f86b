"""Families that write messages with headers: reasoning, text and calls in separate messages.

Their headers cannot be generated from the tables, so they are repeated here; a test compares them
with the output of the families' writers. The end of the last message may be missing: it is the
token that ends the turn, which engines do not return.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_parsers.constraint.bodies import GuidedTool, arguments_grammar, calls_grammar
from dovetail_parsers.constraint.calls import CallGrammar
from dovetail_parsers.constraint.nodes import (
    EMPTY,
    FreeText,
    Node,
    Rules,
    choice,
    marker,
    optional,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.grammar import Grammar


@dataclass(frozen=True)
class MessageFormat:
    """How a family opens its messages. In `call`, `{}` is replaced by the tool's name.

    `end` closes a message, `join` leads to the next, `last` closes the turn, `call_end` a call.
    `mode` is the mode in which a call's own table starts, if it has one.
    """

    reasoning: str
    text: str
    call: str
    end: str
    join: str
    call_end: str
    last: str
    mode: str


MESSAGE_FORMATS = {
    "harmony": MessageFormat(
        reasoning="<|channel|>analysis<|message|>",
        text="<|channel|>final<|message|>",
        call="<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
        end="<|end|>",
        join="<|start|>assistant",
        call_end="<|call|>",
        last="<|end|>",
        mode="call",
    ),
    "inkling": MessageFormat(
        reasoning="<|message_model|><|content_thinking|>",
        text="<|message_model|><|content_text|>",
        call="<|message_model|><|content_invoke_tool_json|>",
        end="<|end_message|>",
        join="",
        call_end="<|end_message|>",
        last="<|end_message|>",
        mode="call",
    ),
    "muse_glimmer": MessageFormat(
        reasoning=" to=self<|message|>",
        text=" to=user<|message|>",
        call=" to={}<|message|><atem:function_calls>\n",
        end="<|eom|>",
        join="<|start|>assistant",
        call_end="<|eom|>",
        last="<|eot|>",
        mode="section",
    ),
}


class MessageLayout:
    """The layout of a family that writes messages with headers."""

    __slots__ = ("_format", "_rules", "_table")

    def __init__(self, table: Grammar, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        self._format = MESSAGE_FORMATS[table.name]

    def reasoning(self, in_reasoning: bool, allow_reasoning: bool) -> Node:
        rest = sequence(self._body(), self._join())
        if in_reasoning:
            return rest
        return (
            optional(sequence(marker(self._format.reasoning), rest)) if allow_reasoning else EMPTY
        )

    def calls(self, tools: Sequence[GuidedTool], parallel: bool) -> Node:
        one = self._rules.share("call", choice(*map(self._call, tools)))
        last = optional(choice(marker(self._format.call_end), marker(self._format.last)))
        if not parallel:
            return sequence(one, last)
        between = sequence(marker(self._format.call_end), self._join())
        return sequence(one, repeat(sequence(between, one)), last)

    def structured_output(self, form: Node) -> Node:
        return sequence(marker(self._format.text), form, self._last())

    def prose(
        self, calls: Node | None, parallel: bool, in_reasoning: bool, allow_reasoning: bool
    ) -> Node:
        """Messages other than calls, then the calls or a message that ends the turn."""
        kinds = [self._format.text, *([self._format.reasoning] if allow_reasoning else [])]
        message = sequence(choice(*map(marker, kinds)), self._body(), self._join())
        unended = sequence(
            choice(*map(marker, kinds)), FreeText(never=self._markers()), self._last()
        )
        before = sequence(self._body(), self._join()) if in_reasoning else EMPTY
        end = unended if calls is None else choice(calls, unended)
        return sequence(before, repeat(message), optional(end))

    def _body(self) -> Node:
        """A message's text and its end, without another message inside."""
        end = self._format.end
        return FreeText(stops=(end,), never=tuple(m for m in self._markers() if m != end))

    def _markers(self) -> tuple[str, ...]:
        return tuple(self._table.states["text"].edges)

    def _join(self) -> Node:
        return marker(self._format.join)

    def _last(self) -> Node:
        ends = dict.fromkeys((self._format.end, self._format.last))
        return optional(choice(*map(marker, ends)))

    def _call(self, tool: GuidedTool) -> Node:
        before, _, behind = self._format.call.partition("{}")
        name = text(tool.name) if behind else EMPTY
        return sequence(marker(before), name, marker(behind), self._arguments(tool))

    def _arguments(self, tool: GuidedTool) -> Node:
        assert self._table.tools is not None
        body = self._table.tools.modes[self._format.mode].body
        if body is None:
            calls = CallGrammar(self._table.name, self._table.tools, self._format.mode, self._rules)
            return calls.build([tool], parallel=False)
        if body.holds_calls:
            return calls_grammar(body, [tool], self._rules, parallel=False)
        return arguments_grammar(body, tool, self._rules)
