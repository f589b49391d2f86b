"""Calls without their opening wrapper: where they may start, and whether they are calls.

Such a call starts a line of visible text, outside code fences, with the notation of the family and
the name of an offered tool. A second machine parses it while its text is held. It is a call if it
is complete and nothing but its closing wrapper, a line break or the end of the output follows;
otherwise the held text is text.
"""

from collections.abc import Mapping
from copy import copy
from enum import Enum, auto
from functools import lru_cache
from typing import Protocol

from dovetail_model import CallClose, Event, ReasoningDelta, TextDelta
from dovetail_parsers.fences import NAMES, FenceMatcher, fence_name
from dovetail_parsers.grammar import Channel, CompiledMode, Edge, Grammar, Mode
from dovetail_parsers.scanner import LineScanner, LiteralScanner

TRIAL, START = "trial", "start"
MAX_TRIAL_CHARS = 1_000_000  # of one held call
MAX_FAILED_CHARS = 100_000  # of all texts that were held in vain

_TEXT = {"text": Mode(Channel.TEXT)}

Piece = tuple[str, bool]  # text, and whether it contains no special token


class Verdict(Enum):
    UNDECIDED = auto()
    CALL = auto()
    TEXT = auto()


@lru_cache(maxsize=64)
def with_tool_names(grammar: Grammar, names: tuple[str, ...]) -> Grammar:
    """Return the grammar with edges to calls of these tools that lack the opening wrapper."""
    unwrapped = grammar.tools.unwrapped if grammar.tools else None
    if unwrapped is None or not names:
        return grammar
    heads = [f"{a}{name}{b}" for name in names for a, b in unwrapped.heads]
    text = grammar.states["text"].mode
    quoted = Mode(
        Channel.TEXT, on={m: e for m, e in text.edges.items() if m not in grammar.orphans}
    )
    lines = {"\n" + head: Edge(TRIAL, peek=True) for head in heads}
    found = copy(grammar)
    found.entry = found.after_calls = START
    found.states = {
        **grammar.states,
        "text": _line_mode("text", text, lines),
        START: _start_mode(heads),
        TRIAL: CompiledMode(TRIAL, {TRIAL: Mode(Channel.TRIAL)}),
    }
    for fence in NAMES:
        found.states[fence] = _line_mode(fence, quoted, {}, closes=fence)
    found.states[TRIAL].in_head = True
    if "reasoning" in grammar.states:
        found.states["reasoning"] = _to_start(grammar.states["reasoning"])
    return found


def _start_mode(heads: list[str]) -> CompiledMode:
    """Return the mode at the start of visible text: a call or a fence may start at once."""
    found = CompiledMode(START, {START: Mode(Channel.GAP, otherwise=Edge("text")), **_TEXT})
    calls = {head: Edge(TRIAL, peek=True) for head in heads}
    found.edges = _Edges(calls)
    found.scanner = LiteralScanner(calls, FenceMatcher())
    return found


def _line_mode(name: str, mode: Mode, lines: Mapping[str, Edge], closes: str = "") -> CompiledMode:
    """Return a mode of text, or of the fence `closes`, with markers that start a line."""
    found = CompiledMode(name, {name: mode})
    found.edges = _Edges({**found.edges, **lines}, closes)
    found.scanner = LineScanner(mode.edges, lines, FenceMatcher(closes))
    return found


class _Edges(dict[str, Edge]):
    """Edges of markers. Every other text that the scanner finds is the line of a fence."""

    def __init__(self, edges: Mapping[str, Edge], closes: str = "") -> None:
        super().__init__(edges)
        self._closes = closes

    def __missing__(self, line: str) -> Edge:
        return Edge("text" if self._closes else fence_name(line), prose=True)


def _to_start(reasoning: CompiledMode) -> CompiledMode:
    """Return the mode with its closers leading to the start of visible text."""
    found = copy(reasoning)
    found.edges = {
        marker: Edge(START) if marker in found.mode.on and edge.mode == "text" else edge
        for marker, edge in found.edges.items()
    }
    return found


class CallReader(Protocol):
    """The machine of a trial."""

    def feed(self, text: str, special: bool | None = None) -> list[Event]: ...

    def finish(self) -> list[Event]: ...

    @property
    def mode(self) -> str: ...

    @property
    def in_call(self) -> bool:
        """Whether the next text belongs to a call or to a list of calls."""
        ...

    @property
    def holds_text(self) -> bool: ...


class Trial:
    """The text of a possible call, and the machine that parses it as one."""

    def __init__(self, machine: CallReader, needs_closer: bool) -> None:
        self.machine = machine
        self.pieces: list[Piece] = []
        self.events: list[Event] = []
        self.size = 0
        self._needs_closer = needs_closer
        self._has_text = False
        self._closes = 0
        self._closed_in: str | None = None  # the mode behind the call, once it is complete

    def feed(self, text: str, plain: bool) -> tuple[Verdict, int]:
        """Return the verdict, and the length of the text that belongs to the call."""
        self.size += len(text)
        self.pieces.append((text, plain))
        for at, char in enumerate(text, start=1):
            self._take(self.machine.feed(char, False if plain else None))
            verdict = self._judge(char)
            if verdict is not Verdict.UNDECIDED:
                return verdict, at
        return (Verdict.TEXT if self.size > MAX_TRIAL_CHARS else Verdict.UNDECIDED), len(text)

    def finish(self) -> Verdict:
        self._take(self.machine.finish())
        is_call = self._closes and not self._needs_closer and not self._has_text
        return Verdict.CALL if is_call else Verdict.TEXT

    def _judge(self, char: str) -> Verdict:
        """Decide after one more character. A call that is complete needs a proper end."""
        machine = self.machine
        if self._has_text or machine.mode == "lost":
            return Verdict.TEXT
        if not self._closes or machine.in_call:
            return Verdict.UNDECIDED
        before, self._closed_in = self._closed_in, machine.mode
        if machine.mode == "text" or machine.mode != (before or machine.mode):
            return Verdict.TEXT if machine.holds_text else Verdict.CALL  # a closer was read
        ends_line = char == "\n" and before is not None and not self._needs_closer
        return Verdict.CALL if ends_line else Verdict.UNDECIDED

    def _take(self, events: list[Event]) -> None:
        self.events += events
        for event in events:
            self._has_text |= isinstance(event, TextDelta | ReasoningDelta)
            self._closes += isinstance(event, CallClose)
