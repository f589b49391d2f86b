"""The types that describe a family's format.

A family is a table of modes. A mode defines what plain text means while it is active (its channel)
and to which mode each marker leads. `on` contains what the format prescribes, `tolerate` what
models also write; Dovetail itself writes only `on`. The machine, the writer and the table lint use
the same table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Flag, IntEnum, auto

from dovetail_model import ReasoningDelta, TextDelta
from dovetail_parsers.arguments.body import Body
from dovetail_parsers.arguments.json_body import JsonBody
from dovetail_parsers.arguments.json_validator import JSON
from dovetail_parsers.scanner import Scanner
from dovetail_parsers.spans import Delta


class Channel(IntEnum):
    """The meaning of a mode's plain text."""

    TEXT = auto()  # shown to the user
    REASONING = auto()  # inside reasoning markers
    GAP = auto()  # framing: white space only, other text leaves by `otherwise`
    HEADER = auto()  # determines by `route` what the following body is
    NAME = auto()  # the tool's name
    ID = auto()  # the model's own id of the call
    ATTRIBUTE = auto()  # redundant, ignored
    KEY = auto()  # a parameter's name
    VALUE = auto()  # a parameter's value, typed by the tool's schema
    STRING = auto()  # a parameter's value that is known to be a string
    LITERAL = auto()  # a parameter's value that is known to be JSON
    BODY = auto()  # arguments or complete calls in a self-delimiting notation
    FREE_TEXT = auto()  # text for a custom tool without a notation around it
    DISCARDED = auto()  # the rest of a broken call, retained only as raw text
    TRIAL = auto()  # what may be a call without its opening wrapper, see `unwrapped`


class CallAction(Flag):
    """The effect of an edge on the call."""

    NONE = 0
    OPEN = auto()  # its name is known and its arguments have begun
    CLOSE = auto()  # it is complete and may run


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge. `pad` is white space after the marker; `peek` does not consume the marker.

    The marker of a `prose` edge is text.
    """

    mode: str
    action: CallAction = CallAction.NONE
    pad: str = ""
    peek: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The mode to which a header leads, and the tool's name if the header contains it."""

    mode: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Mode:
    channel: Channel
    on: Mapping[str, Edge] = field(default_factory=dict)
    tolerate: Mapping[str, Edge] = field(default_factory=dict)
    otherwise: Edge | None = None  # GAP: edge for other text (default: it is plain text)
    end: Edge | None = None  # BODY: edge taken when the notation has ended
    body: Body | None = None  # BODY: the notation
    route: Callable[[str], Route] | None = None  # HEADER
    read: Callable[[str], tuple[str, str | None]] | None = None  # NAME, KEY: text -> name, own id
    spell: Callable[[str, int], str] | None = None  # inverse of `read`, with the call's index

    @property
    def edges(self) -> dict[str, Edge]:
        return {**self.tolerate, **self.on}


@dataclass(frozen=True)
class UnwrappedCall:
    """How a call starts if its opening wrapper is missing: with one of `heads`.

    A head is the text before and after the tool's name. `mode` reads the call from there. With
    `needs_closer`, the notation may also be ordinary text, such as JSON: it is a call only if the
    closing wrapper follows.
    """

    mode: str
    heads: tuple[tuple[str, str], ...]
    needs_closer: bool = False


@dataclass(frozen=True)
class ToolFormat:
    """How a family writes calls. `entry` is the mode at the start of visible output."""

    modes: Mapping[str, Mode]
    entry: str = "text"
    orphans: tuple[str, ...] = ()  # outer closers: dropped if no call is open
    lead: str = ""  # white space written before a call that is not at the start
    unwrapped: UnwrappedCall | None = None  # calls without their opening wrapper


@dataclass(frozen=True)
class ReasoningFormat:
    """How a family writes reasoning. The first opener and closer are the prescribed ones."""

    openers: tuple[str, ...]
    closers: tuple[str, ...]
    starts_inside: bool = False  # default if the end of the prompt is unknown
    pads: tuple[str, str, str] = ("", "", "")  # after the opener, before and after the closer
    frames: tuple[str, ...] = ()  # markers around visible output, dropped
    orphans: tuple[str, ...] | None = None  # closers dropped outside reasoning (default: all)


#: Markers that start with a special token of the vocabulary. `<｜DSML｜` starts with a plain `<`.
_SPECIAL = re.compile(r"<[|｜](?!DSML)|\]<\]|\[[A-Z_/]+\]|<\w+\|>")


#: Closers that are tags, as opposed to punctuation.
_CLOSER = re.compile(r"[<\[]\|?/\w")

_DELTAS: Mapping[Channel, Delta] = {Channel.TEXT: TextDelta, Channel.REASONING: ReasoningDelta}


class CompiledMode:
    """A mode prepared for the machine. `delta` is the event type of its text if it is prose.

    `enclosing` are the closers of the call that contains a value: with the closers around the call
    they end a value whose own closer is missing. `nested` are openers of calls, which a value may
    mention together with their closers.
    """

    __slots__ = (
        "channel",
        "delta",
        "edges",
        "enclosing",
        "in_head",
        "is_value",
        "mode",
        "name",
        "nested",
        "scanner",
    )

    def __init__(self, name: str, modes: Mapping[str, Mode]) -> None:
        self.name = name
        self.mode = modes[name]
        self.channel = self.mode.channel
        self.edges = self.mode.edges
        self.in_head = _in_head(name, modes)
        self.delta = _DELTAS.get(self.channel)
        self.is_value = self.channel in (Channel.VALUE, Channel.STRING, Channel.LITERAL)
        self.enclosing = _enclosing_closers(self.mode, modes) if self.is_value else {}
        self.nested = _call_openers(modes) if self.is_value else frozenset()
        self.scanner = Scanner([*self.edges, *self.enclosing, *self.nested])


class Grammar:
    """A tool format and a reasoning format combined in one table, ready for the machine."""

    def __init__(
        self, name: str, tools: ToolFormat | None, reasoning: ReasoningFormat | None
    ) -> None:
        self.name = name
        self.tools = tools
        self.reasoning = reasoning
        self.entry = tools.entry if tools else "text"
        self.after_calls = "text"  # the mode of text behind a gap
        modes = combine_formats(tools, reasoning)
        self.states = {name: CompiledMode(name, modes) for name in modes}
        self.starts_inside = reasoning is not None and reasoning.starts_inside
        self.orphans = frozenset(tools.orphans if tools else ())
        gaps = [state.edges for state in self.states.values() if state.channel is Channel.GAP]
        self.outer_closers = frozenset(
            closer
            for closer in self.orphans
            if {edges[closer].mode for edges in gaps if closer in edges} <= {"text"}
        )
        markers = {marker for state in self.states.values() for marker in state.edges}
        self.special = frozenset(filter(_SPECIAL.match, markers))


def _in_head(name: str, modes: Mapping[str, Mode]) -> bool:
    """Whether the mode precedes a call that is not open yet: all of its edges lead into one."""
    mode = modes[name]
    if mode.channel is Channel.BODY:
        return mode.body is not None and mode.body.holds_calls
    if mode.channel is not Channel.GAP:
        return mode.channel in (Channel.HEADER, Channel.NAME, Channel.ID, Channel.ATTRIBUTE)
    ways = [*mode.on.values(), *filter(None, [mode.otherwise])]
    return bool(ways) and all(
        way.action & CallAction.OPEN or (way.mode != name and _in_head(way.mode, modes))
        for way in ways
    )


def _enclosing_closers(value: Mode, modes: Mapping[str, Mode]) -> dict[str, Edge]:
    """Return the closers of the call, in the spellings that the format prescribes."""
    return {
        marker: edge
        for after in {edge.mode for edge in value.edges.values()}
        for marker, edge in modes[after].edges.items()
        if edge.action & CallAction.CLOSE and edge in modes[after].on.values()
    }


def _call_openers(modes: Mapping[str, Mode]) -> frozenset[str]:
    """Return the openers of single calls: those that lead to a name."""
    return frozenset(
        marker
        for mode in modes.values()
        for marker, edge in mode.edges.items()
        if modes[edge.mode].channel is Channel.NAME and mode.channel in (Channel.TEXT, Channel.GAP)
    )


PLAIN_TEXT_MODES: Mapping[str, Mode] = {"text": Mode(Channel.TEXT)}


def combine_formats(tools: ToolFormat | None, reasoning: ReasoningFormat | None) -> dict[str, Mode]:
    """Merge both formats into one table. A well-formed call inside reasoning ends the reasoning."""
    modes = dict(tools.modes if tools else PLAIN_TEXT_MODES)
    entry = tools.entry if tools else "text"
    orphans = {marker: Edge("text") for marker in (tools.orphans if tools else ())}
    calls = dict(modes["text"].edges)
    modes["text"] = replace(modes["text"], tolerate={**orphans, **modes["text"].tolerate})
    modes |= {
        free_text_mode(name): _free_text(mode, modes) for name, mode in _argument_bodies(modes)
    }
    opens = {marker: Edge("reasoning") for marker in (reasoning.openers if reasoning else ())}
    resumptions = {**opens, **_resumptions(modes, orphans), **calls}
    modes["lost"] = Mode(Channel.DISCARDED, on=resumptions)
    if reasoning is None:
        return modes
    closes = {marker: Edge(entry) for marker in reasoning.closers}
    strays = closes if reasoning.orphans is None else dict.fromkeys(reasoning.orphans, Edge(entry))
    frames = {marker: Edge("text") for marker in reasoning.frames}
    into_calls = {marker: edge for marker, edge in calls.items() if edge.mode != "text"}
    swallowed = {marker: Edge("reasoning") for marker in (*orphans, *opens)}
    modes["reasoning"] = Mode(
        Channel.REASONING, on=closes, tolerate={**swallowed, **frames, **into_calls}
    )
    for name in {"text", entry}:
        mode = modes[name]
        on = {**mode.on, **opens, **frames}
        modes[name] = replace(mode, on=on, tolerate={**strays, **mode.tolerate})
    return modes


def free_text_mode(body: str) -> str:
    """Return the name of the mode for free text where a body should be."""
    return f"{body} as free text"


def _argument_bodies(modes: Mapping[str, Mode]) -> list[tuple[str, Mode]]:
    return [
        (name, mode)
        for name, mode in modes.items()
        if isinstance(mode.body, JsonBody)
        and mode.body.dialect is JSON
        and _free_text(mode, modes).on
    ]


def _free_text(body: Mode, modes: Mapping[str, Mode]) -> Mode:
    """Return the mode of free text: the markers behind the body end it and close the call."""
    behind = modes[body.end.mode].edges if body.end else {}
    return Mode(
        Channel.FREE_TEXT,
        on={
            marker: Edge(edge.mode, CallAction.CLOSE)
            for marker, edge in {**behind, **body.edges}.items()
            if len(marker) > 2 and not edge.peek  # punctuation may be part of the text
        },
    )


def _resumptions(modes: Mapping[str, Mode], orphans: Mapping[str, Edge]) -> dict[str, Edge]:
    """Return the edges of a broken call's closers: the same as in a valid call, if known."""
    found = dict(orphans)
    for mode in modes.values():
        if mode.channel is Channel.GAP:
            found |= {
                marker: Edge(edge.mode)
                for marker, edge in mode.edges.items()
                if marker in orphans or (_CLOSER.match(marker) and not _in_head(edge.mode, modes))
            }
    return found
