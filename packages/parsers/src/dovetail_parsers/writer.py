"""Write a message as the model would have generated it, from a family's table.

Only the prescribed edges (`on`) are used, along the shortest path from mode to mode.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from dovetail_model import Message, OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_parsers.arguments.notation import load_arguments, loaded_type, write_raw
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import CallAction, Channel, Edge, Grammar, Mode
from dovetail_parsers.registry import load_grammar, resolve_family

_PASSABLE = (Channel.GAP, Channel.ID, Channel.ATTRIBUTE, Channel.TEXT)
_VALUES = (Channel.VALUE, Channel.STRING, Channel.LITERAL)


def write_message(message: Message | Sequence[OutputBlock], family: str | Family) -> str:
    """Write a message as raw text in a family's format, with reasoning in its paired format."""
    found = resolve_family(family) if isinstance(family, str) else family
    if found is None:
        raise ValueError(f"unknown family {family!r}")
    blocks = message.blocks if isinstance(message, Message) else message
    if found.unified is not None:
        return found.unified([_wrap_custom_call(block) for block in blocks])
    return _MessageWriter(load_grammar(found.tool_parser, found.reasoning_parser)).write(blocks)


def _wrap_custom_call(block: OutputBlock) -> OutputBlock:
    """Wrap a custom tool's free text as one string argument, as the model sees it."""
    if isinstance(block, ToolCallBlock) and block.custom:
        wrapped = json.dumps({"input": block.arguments}, ensure_ascii=False)
        return ToolCallBlock(block.id, block.name, wrapped, block.namespace)
    return block


class _MessageWriter:
    def __init__(self, table: Grammar) -> None:
        self._modes = {name: state.mode for name, state in table.states.items()}
        self._table = table
        self._out: list[str] = []
        self._at = table.entry
        self._calls = 0

    def write(self, blocks: Sequence[OutputBlock]) -> str:
        for kind, group in groupby(blocks, key=lambda block: block.type):
            for block in self._leave_calls(kind, list(group)):
                if isinstance(block, TextBlock):
                    self._out.append(block.text)
                    self._at = "text"
                elif isinstance(block, ReasoningBlock):
                    self._write_reasoning(block)
        self._end_calls()
        return "".join(self._out)

    def _leave_calls(self, kind: str, group: list[OutputBlock]) -> list[OutputBlock]:
        """Write a group of calls; return any other group, after closing the section of calls."""
        if kind == "tool_call":
            self._write_calls(
                [b for b in map(_wrap_custom_call, group) if isinstance(b, ToolCallBlock)]
            )
            return []
        self._end_calls()
        return group

    def _end_calls(self) -> None:
        if self._at != self._table.entry:
            self._go(lambda mode: mode.channel is Channel.TEXT)

    def _write_reasoning(self, block: ReasoningBlock) -> None:
        form = self._table.reasoning
        if form is None:
            raise ValueError(f"{self._table.name} has no format for reasoning")
        behind_opener, before_closer, behind_closer = form.pads
        self._out += [form.openers[0], behind_opener, block.text]
        self._out += [before_closer, form.closers[0], behind_closer]
        self._at = self._table.entry

    def _write_calls(self, calls: list[ToolCallBlock]) -> None:
        whole = self._modes[self._first_of_call()]
        if whole.body is not None:
            groups = [calls] if whole.body.holds_many else [[call] for call in calls]
            for group in groups:
                self._go(lambda mode: mode is whole)
                self._write_body(group)
            return
        for call in calls:
            self._go(lambda mode: mode.channel is Channel.NAME, call)
            spell = self._modes[self._at].spell
            self._out.append(spell(call.name, self._calls) if spell else call.name)
            self._calls += 1
            self._write_arguments(call)

    def _first_of_call(self) -> str:
        """Return the mode of a call's name: its own, or a body that contains complete calls."""
        way = self._shortest_path(
            lambda mode: mode.channel is Channel.NAME or bool(mode.body and mode.body.holds_calls)
        )
        return way[-1][1].mode

    def _write_body(self, calls: list[ToolCallBlock]) -> None:
        mode = self._modes[self._at]
        assert mode.body is not None
        self._out.append(mode.body.write(calls))
        self._follow("", mode.end or Edge("text"))

    def _write_arguments(self, call: ToolCallBlock) -> None:
        way = self._shortest_path(lambda mode: mode.channel in (Channel.BODY, Channel.KEY))
        if self._modes[way[-1][1].mode].channel is Channel.BODY:
            self._go(lambda mode: mode.channel is Channel.BODY)
            self._write_body([call])
            return
        for key, value in load_arguments(call.arguments).items():
            self._go(lambda mode: mode.channel is Channel.KEY)
            spell = self._modes[self._at].spell
            self._out.append(spell(key, self._calls) if spell else key)
            self._go_to_value(value)
            self._out.append(write_raw(value))
            self._follow(*next(iter(self._modes[self._at].on.items())))
        self._go(lambda mode: False, until=CallAction.CLOSE)

    def _go_to_value(self, value: Any) -> None:
        """Go from the key to its value, by the edge that names the value's type if there is one."""
        edge = value_edge(self._modes, self._at, loaded_type(value))
        if edge is None:
            self._go(is_value)
        else:
            self._follow(*edge)

    def _go(
        self,
        goal: Callable[[Mode], bool],
        call: ToolCallBlock | None = None,
        until: CallAction = CallAction.NONE,
    ) -> None:
        """Write the shortest path to a mode, or across an edge with an action."""
        if goal(self._modes[self._at]):
            return
        for marker, edge in self._shortest_path(goal, until):
            mode = self._modes[self._at]
            if mode.channel is Channel.TEXT:
                self._write_lead()
            elif mode.channel is Channel.ID:
                self._out.append(call.id if call else "")
            elif mode.spell is not None and mode.channel is Channel.ATTRIBUTE:
                self._out.append(mode.spell("", self._calls - 1))
            self._follow(marker, edge)

    def _write_lead(self) -> None:
        before = next((part for part in reversed(self._out) if part), "")
        if self._table.tools is not None and before and not before.endswith("\n"):
            self._out.append(self._table.tools.lead)

    def _follow(self, marker: str, edge: Edge) -> None:
        self._out.append(edge.pad if edge.peek else marker + edge.pad)
        self._at = edge.mode

    def _shortest_path(
        self, goal: Callable[[Mode], bool], until: CallAction = CallAction.NONE
    ) -> list[tuple[str, Edge]]:
        way = shortest_path(self._modes, self._at, goal, until)
        if way is None:
            raise ValueError(f"{self._table.name} has no path to write from mode {self._at!r}")
        return way


def shortest_path(
    modes: Mapping[str, Mode],
    start: str,
    goal: Callable[[Mode], bool],
    until: CallAction = CallAction.NONE,
) -> list[tuple[str, Edge]] | None:
    """Return the shortest path of prescribed edges to a mode, or across an action, or None."""
    ways: deque[tuple[str, list[tuple[str, Edge]]]] = deque([(start, [])])
    seen = {start}
    while ways:
        name, way = ways.popleft()
        for marker, edge in _edges(modes[name]):
            there = [*way, (marker, edge)]
            if edge.action & until or (not until and goal(modes[edge.mode])):
                return there
            if edge.mode not in seen and modes[edge.mode].channel in _PASSABLE:
                seen.add(edge.mode)
                ways.append((edge.mode, there))
    return None


def is_value(mode: Mode) -> bool:
    """Return whether the mode's text is a parameter's value."""
    return mode.channel in _VALUES


def value_edge(modes: Mapping[str, Mode], key: str, kind: str) -> tuple[str, Edge] | None:
    """Return the edge from a key to a value of this type, preferring one that names the type."""
    wrong = Channel.LITERAL if kind == "string" else Channel.STRING
    fitting = [
        (marker, edge)
        for marker, edge in modes[key].on.items()
        if is_value(modes[edge.mode]) and modes[edge.mode].channel != wrong
    ]
    return next(((m, e) for m, e in fitting if f'"{kind}"' in m), fitting[0] if fitting else None)


def _edges(mode: Mode) -> list[tuple[str, Edge]]:
    edges = list(mode.on.items())
    if mode.otherwise is not None:
        edges.append(("", mode.otherwise))
    return edges
