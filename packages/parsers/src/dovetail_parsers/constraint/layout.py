"""Grammars of the parts of an output: reasoning, prose, calls, structured output."""

from collections import abc
from typing import Protocol

from dovetail_model import Unsupported
from dovetail_parsers.constraint.bodies import GuidedTool
from dovetail_parsers.constraint.calls import CallGrammar
from dovetail_parsers.constraint.nodes import (
    EMPTY,
    FreeText,
    Marker,
    Node,
    Rules,
    Sequence,
    choice,
    marker,
    optional,
    repeat,
    sequence,
    text,
)
from dovetail_parsers.grammar import Channel, Grammar

#: Framing between reasoning and what follows it. Bounded, since models can loop on white space.
GAP = repeat(text("\n"), 0, 2)
_WHITESPACE = " \t\r\n"


class OutputLayout(Protocol):
    """Grammars for the parts of a family's output.

    `in_reasoning`: the prompt ended inside an open reasoning span.
    """

    def reasoning(self, in_reasoning: bool, allow_reasoning: bool) -> Node:
        """The reasoning span before visible output, if the model may generate one."""

    def calls(self, tools: abc.Sequence[GuidedTool], parallel: bool) -> Node:
        """One call, or several."""

    def structured_output(self, form: Node) -> Node:
        """Visible output that follows this grammar."""

    def prose(
        self, calls: Node | None, parallel: bool, in_reasoning: bool, allow_reasoning: bool
    ) -> Node:
        """Free output, only with the given calls, or without calls."""


class TableLayout:
    """The layout of a family whose reasoning and calls are described by tables."""

    __slots__ = ("_openers", "_rules", "_starts", "_table")

    def __init__(self, table: Grammar, rules: Rules) -> None:
        self._table = table
        self._rules = rules
        modes = table.tools.modes if table.tools else {}
        edges = [
            (mark, edge)
            for name in dict.fromkeys(("text", table.entry))
            if name in modes
            for mark, edge in modes[name].edges.items()
            if modes[edge.mode].channel is not Channel.TEXT
        ]
        self._openers = tuple(dict.fromkeys(mark for mark, edge in edges if not edge.peek))
        # First characters of calls that start the output without a marker.
        self._starts = "".join(dict.fromkeys(mark[0] for mark, edge in edges if edge.peek))

    def reasoning(self, in_reasoning: bool, allow_reasoning: bool) -> Node:
        form = self._table.reasoning
        if form is None or not (in_reasoning or allow_reasoning):
            return EMPTY
        # a call or frame marker inside reasoning would end it, so it is excluded
        others = (
            mark for mark in self._table.states["reasoning"].edges if mark not in form.closers
        )
        span = FreeText(stops=form.closers, never=tuple(others))
        if in_reasoning:
            return sequence(span, GAP)
        return optional(sequence(marker(form.openers[0]), span, GAP))

    def calls(self, tools: abc.Sequence[GuidedTool], parallel: bool) -> Node:
        table = self._table
        if table.tools is None:
            raise Unsupported("guided tool calls require a tool parser, but the model has none")
        return CallGrammar(table.name, table.tools, table.entry, self._rules).build(tools, parallel)

    def structured_output(self, form: Node) -> Node:
        reasoning = self._table.reasoning
        frames = [marker(mark) for mark in reasoning.frames] if reasoning else []
        frame = optional(sequence(choice(*frames), GAP)) if frames else EMPTY
        behind = optional(sequence(GAP, choice(*frames))) if frames else EMPTY
        return sequence(frame, form, behind)

    def prose(
        self, calls: Node | None, parallel: bool, in_reasoning: bool, allow_reasoning: bool
    ) -> Node:
        free = FreeText(never=self._openers)
        if not self._starts:
            if calls is None:
                return free
            up_to_calls = sequence(*self._until(calls))
            return sequence(repeat(up_to_calls), free) if parallel else choice(up_to_calls, free)
        plain = FreeText(never=self._openers, not_first=self._starts + _WHITESPACE)
        begin = self.reasoning(in_reasoning, allow_reasoning)
        return sequence(begin, plain if calls is None else choice(calls, plain))

    def _until(self, calls: Node) -> tuple[Node, ...]:
        """Text up to the first marker of the calls, followed by the rest of the calls."""
        parts = calls.parts if isinstance(calls, Sequence) else (calls,)
        first = parts[0]
        if not isinstance(first, Marker):
            return FreeText(never=self._openers), calls
        others = tuple(mark for mark in self._openers if not first.text.startswith(mark))
        return FreeText(stops=(first.text,), never=others), *parts[1:]
