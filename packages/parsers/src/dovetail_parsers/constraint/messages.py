"""Families that write messages with headers: thoughts, text and calls each in one of their own.

Their headers cannot be run backwards, so what their writers write stands here once more; a test
holds the two together. The last message's end may be missing: it is the token that ends the
turn, which engines keep to themselves.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

from dovetail_parsers.constraint.bodies import Tool, arguments_form, calls_form
from dovetail_parsers.constraint.calls import Calls
from dovetail_parsers.constraint.nodes import (
    NOTHING,
    Free,
    Node,
    Rules,
    choice,
    marker,
    optional,
    sequence,
    several,
    text,
)
from dovetail_parsers.grammar import Grammar


@dataclass(frozen=True)
class Messages:
    """How a family opens its messages. `call` holds the tool's name where `{}` stands.

    `end` closes a message, `join` leads to the next, `last` closes the turn; `call_end` a call.
    `mode` is where a call's own table begins, if it has one.
    """

    thought: str
    text: str
    call: str
    end: str
    join: str
    call_end: str
    last: str
    mode: str


FORMATS = {
    "harmony": Messages(
        thought="<|channel|>analysis<|message|>",
        text="<|channel|>final<|message|>",
        call="<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
        end="<|end|>",
        join="<|start|>assistant",
        call_end="<|call|>",
        last="<|end|>",
        mode="call",
    ),
    "inkling": Messages(
        thought="<|message_model|><|content_thinking|>",
        text="<|message_model|><|content_text|>",
        call="<|message_model|><|content_invoke_tool_json|>",
        end="<|end_message|>",
        join="",
        call_end="<|end_message|>",
        last="<|end_message|>",
        mode="call",
    ),
    "muse_glimmer": Messages(
        thought=" to=self<|message|>",
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
    __slots__ = ("_format", "_rules", "_table")

    def __init__(self, table: Grammar, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        self._format = FORMATS[table.name]

    def begin(self, in_reasoning: bool, thinks: bool) -> Node:
        rest = sequence(self._body(), self._join())
        if in_reasoning:
            return rest
        return optional(sequence(marker(self._format.thought), rest)) if thinks else NOTHING

    def calls(self, tools: Many[Tool], parallel: bool) -> Node:
        one = self._rules.share("call", choice(*map(self._call, tools)))
        last = optional(choice(marker(self._format.call_end), marker(self._format.last)))
        if not parallel:
            return sequence(one, last)
        between = sequence(marker(self._format.call_end), self._join())
        return sequence(one, several(sequence(between, one)), last)

    def answer(self, form: Node) -> Node:
        return sequence(marker(self._format.text), form, self._last())

    def prose(self, calls: Node | None, parallel: bool, in_reasoning: bool, thinks: bool) -> Node:
        """Messages that are no calls, then the calls or a message that ends the turn."""
        kinds = [self._format.text, *([self._format.thought] if thinks else [])]
        message = sequence(choice(*map(marker, kinds)), self._body(), self._join())
        unended = sequence(choice(*map(marker, kinds)), Free(never=self._markers()), self._last())
        before = sequence(self._body(), self._join()) if in_reasoning else NOTHING
        end = unended if calls is None else choice(calls, unended)
        return sequence(before, several(message), optional(end))

    def _body(self) -> Node:
        """A message's text and its end; no other message inside."""
        end = self._format.end
        return Free(stops=(end,), never=tuple(m for m in self._markers() if m != end))

    def _markers(self) -> tuple[str, ...]:
        return tuple(self._table.states["text"].edges)

    def _join(self) -> Node:
        return marker(self._format.join)

    def _last(self) -> Node:
        ends = dict.fromkeys((self._format.end, self._format.last))
        return optional(choice(*map(marker, ends)))

    def _call(self, tool: Tool) -> Node:
        before, _, behind = self._format.call.partition("{}")
        name = text(tool.name) if behind else NOTHING
        return sequence(marker(before), name, marker(behind), self._arguments(tool))

    def _arguments(self, tool: Tool) -> Node:
        assert self._table.tools is not None
        body = self._table.tools.modes[self._format.mode].body
        if body is None:
            calls = Calls(self._table.name, self._table.tools, self._format.mode, self._rules)
            return calls.form([tool], parallel=False)
        if body.holds_calls:
            return calls_form(body, [tool], self._rules, parallel=False)
        return arguments_form(body, tool, self._rules)
