"""The transitions of the state machine: markers, edges, and heads that may not become a call.

The text from a call's opening marker to its name and argument opener is a head: it is held, and
read again as plain text if it turns out not to be a call.
"""

import sys
from collections.abc import Mapping

from dovetail_model import ToolSpec
from dovetail_parsers.arguments.body import BodyDecoder
from dovetail_parsers.call import CallBuilder
from dovetail_parsers.grammar import CallAction, Channel, CompiledMode, Edge, Grammar
from dovetail_parsers.spans import SpanBuilder
from dovetail_parsers.unwrapped import Piece, Trial, with_tool_names

PROSE_CHANNELS = (Channel.TEXT, Channel.REASONING, Channel.DISCARDED)


class MachineState:
    """The state of one stream of one family, and its changes at markers.

    The readers of `StateMachine` find markers in the buffer; this class applies their effects.
    """

    __slots__ = (
        "_base",
        "_boundary",
        "_broken",
        "_call",
        "_decoder",
        "_grammar",
        "_head_at",
        "_head_marker",
        "_held",
        "_lost_end",
        "_name",
        "_nested",
        "_open_brackets",
        "_origin",
        "_own_id",
        "_parts",
        "_pending",
        "_plain",
        "_plain_held",
        "_quotes_closers",
        "_rewind",
        "_saw_plain",
        "_scanned",
        "_spans",
        "_special",
        "_special_held",
        "_state",
        "_tools",
        "_trial",
        "_unwrapped_failures",
        "_wait",
        "_word",
    )

    def __init__(
        self,
        grammar: Grammar,
        tools: Mapping[str, ToolSpec],
        in_reasoning: bool | None,
        special: frozenset[str] | None = None,
        *,
        unwrapped: bool = True,
    ) -> None:
        self._grammar = with_tool_names(grammar, tuple(tools)) if unwrapped else grammar
        self._base = grammar
        self._tools = tools
        self._special = grammar.special if special is None else grammar.special & special
        self._spans = SpanBuilder()
        self._call = CallBuilder(self._spans, tools, grammar.name)
        inside = grammar.starts_inside if in_reasoning is None else in_reasoning
        start = "reasoning" if inside and "reasoning" in grammar.states else self._grammar.entry
        self._state = self._grammar.states[start]
        self._held = ""  # text that waits for more
        self._wait = False
        self._plain = self._plain_held = False  # text that contains no special token
        self._saw_plain = False  # the caller distinguishes special tokens from plain text
        self._boundary = 0  # end of the held text in the buffer
        # The open head: the mode before it, its first marker, the start of its raw text.
        self._origin: CompiledMode | None = None
        self._head_marker = ""
        self._head_at = 0
        self._broken = False  # a wrapper was shown as text: its closers are text too
        # After a failure in a body: its open brackets, and the edge to take once they are closed.
        self._open_brackets = ""
        self._lost_end = Edge("text")
        self._rewind: str | None = None  # a head that is not a call, to be read again
        self._word = ""  # the part of a name, id, key or header that was read
        self._parts: list[str] = []  # parts of a header before the word
        self._name = ""
        self._nested = 0  # openers of calls in the value without their closers
        # Of closers in the value that text follows: how far it was searched for the value's own
        # closer, with the openers of calls there; and whether such closers are data.
        self._scanned = (0, 0)
        self._quotes_closers = False
        self._own_id: str | None = None
        self._decoder: BodyDecoder | None = None
        # A possible call without its opening wrapper, its text that is not parsed yet, and the
        # length of all texts that were not calls after all.
        self._trial: Trial | None = None
        self._pending: list[Piece] = []
        self._special_held = ""  # a special token in a body that may end the call
        self._unwrapped_failures = 0

    @property
    def thinking(self) -> bool:
        """Whether the next text belongs to a reasoning span."""
        return self._state.name == "reasoning"

    # Markers

    def _find(
        self, buffer: str, at: int, final: bool, within: int = sys.maxsize
    ) -> tuple[int, str | None]:
        """Find the next marker. A special token that is spelled out in plain text is prose."""
        scanner = self._state.scanner
        end, marker = scanner.search(buffer, at, final, within)
        while marker is not None and not self._is_marker(marker, end):
            end, marker = scanner.search(buffer, end + 1, final, within)
        return end, marker

    def _find_markup(
        self, buffer: str, at: int, final: bool, within: int = sys.maxsize
    ) -> tuple[int, str | None]:
        """Like `_find`, but a partial marker at the end of the output is no content either."""
        end, marker = self._find(buffer, at, False, within)
        if final and marker is None and buffer[end:] in self._state.edges:
            marker = buffer[end:]
        return end, marker

    def _is_marker(self, marker: str, at: int) -> bool:
        plain = self._plain_held if at < self._boundary else self._plain
        return not plain or marker not in self._special

    def _cross(self, marker: str, at: int) -> int:
        """Follow the edge of the marker at `at`."""
        state = self._state
        edge = state.edges[marker]
        target = self._grammar.states[edge.mode]
        entry = self._grammar.entry
        from_prose = state.channel in PROSE_CHANNELS or state.name == entry
        to_prose = target.channel in PROSE_CHANNELS or target.name == entry
        if self._broken and marker in self._grammar.orphans and state.delta is not None:
            self._broken = marker not in self._grammar.outer_closers
            self._write_prose(marker)
            return at + len(marker)
        if target.in_head and self._origin is None and not self._call.is_open:
            self._begin_head(state, target, marker)
        elif not edge.prose and marker not in state.mode.on and (from_prose or self._call.is_open):
            self._call.diagnose("stray_marker" if from_prose else "unexpected_marker")
        if edge.prose:
            self._spans.write("text", marker)
            self._state = target
            return at + len(marker)
        if not edge.peek:
            self._spans.add_markup(marker)
        self._enter(edge)
        if to_prose:
            self._broken = False  # another span starts, or may start
            self._commit_edge(state, target, marker)
        return at if edge.peek else at + len(marker)

    def _begin_head(self, state: CompiledMode, target: CompiledMode, marker: str) -> None:
        """Start a possible call. Until it is one, all of its text can be read again."""
        if state.channel is Channel.REASONING:
            if target.channel is Channel.HEADER:
                self._spans.close_reasoning()
        elif state.channel is Channel.TEXT and target.channel is not Channel.HEADER:
            self._spans.end_reasoning()
        elif state.channel is not Channel.TEXT and state.name != self._grammar.entry:
            self._spans.end_frame()
        self._origin = state
        self._own_id = None
        self._head_marker = marker
        self._head_at = len(self._spans.raw)

    def _commit_edge(self, state: CompiledMode, target: CompiledMode, marker: str) -> None:
        """Assign the raw text of markup that leads into prose."""
        if state.channel is Channel.REASONING:
            if target.channel is not Channel.REASONING:
                self._spans.close_reasoning()
        elif state.channel is Channel.TEXT:
            if target.channel is Channel.TEXT and marker in state.mode.on:
                self._spans.end_text()
        elif self._call.index >= 0 and self._origin is None:
            self._spans.end_frame()

    def _enter(self, edge: Edge) -> None:
        if edge.action & CallAction.OPEN:
            self._open_call(self._name)
        if edge.action & CallAction.CLOSE and self._call.is_open:
            if self._state.channel is Channel.FREE_TEXT:
                self._call.close_call()
            else:
                self._call.close_tagged()
        self._state = self._grammar.states[edge.mode]
        self._word = ""
        self._nested = 0
        self._scanned = (0, 0)
        self._quotes_closers = False
        self._parts.clear()
        self._decoder = None

    def _open_call(self, name: str) -> None:
        self._origin = None
        self._broken = False
        own_id, self._own_id = self._own_id, None
        self._call.open_call(name, own_id)

    def _revert(self) -> None:
        """Revert a head that is not a call: its raw text is read again in the mode before it."""
        assert self._origin is not None
        origin, self._origin = self._origin, None
        from_prose = origin.channel in PROSE_CHANNELS or origin.name == self._grammar.entry
        edge = origin.edges.get(self._head_marker)
        self._broken = from_prose and edge is not None and not edge.peek
        raw = self._spans.raw
        self._rewind = "".join(raw[self._head_at :])
        del raw[self._head_at :]
        self._state = origin if origin.channel in PROSE_CHANNELS else self._grammar.states["text"]
        self._decoder = None

    def _fail(self, at: int, code: str) -> int:
        """Handle malformed text: a head is reverted, an open call stays incomplete."""
        self._wait = False
        if self._origin is not None:
            self._revert()
            return at
        self._call.diagnose(code)
        self._call.is_open = False
        self._open_brackets = self._decoder.open_brackets() if self._decoder else ""
        self._lost_end = self._state.mode.end or Edge("text")
        self._state = self._grammar.states["lost"]
        self._decoder = None
        return at

    def _read_again(self, buffer: str, at: int) -> tuple[str, int]:
        """Read a reverted head again: its marker is prose, and so is the text after it.

        A marker that means nothing here may be the start of one that does: it is read again too.
        """
        head, self._rewind = self._rewind or "", None
        marker = self._head_marker if self._head_marker in self._state.edges else ""
        if marker:
            self._write_prose(marker)
        if len(head) <= at:  # it starts in this buffer: no copy is needed
            return buffer, at - len(head) + len(marker)
        self._boundary, self._plain_held = len(head), self._saw_plain
        return head + buffer[at:], len(marker)

    def _write_prose(self, text: str) -> None:
        if self._state.channel is Channel.DISCARDED:
            self._spans.raw.append(text)
        elif self._state.channel is Channel.TEXT:
            self._spans.write("text", text)
        else:
            self._spans.write("reasoning", text)
