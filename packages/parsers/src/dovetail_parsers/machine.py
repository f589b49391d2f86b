"""The state machine that runs a family's grammar: text in, events out.

Text is emitted as soon as it cannot be part of a marker. The work per chunk is bounded by the chunk
and the open head (the beginning of a possible call, see `transitions`).

Each channel has a reader: it reads the buffer from `at`, and returns where the next reader starts.
It sets `_wait` if the rest of the buffer must be held until more text arrives. `final` is True at
the end of the output.
"""

import re
from typing import ClassVar

from dovetail_model import CallArgs, Event
from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.body import Progress
from dovetail_parsers.arguments.tree import TreeDecoder
from dovetail_parsers.custom_input import CustomInputMachine
from dovetail_parsers.grammar import CallAction, Channel, Edge
from dovetail_parsers.transitions import PROSE_CHANNELS

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"\s{0,200}(?:[^\s<>{}\[\]()\"'`=,;|]{1,200}\s{0,200})?")
_HEADER = re.compile(r"[\w\s.=:/@-]{0,300}")
_MAX_HEADER_PARTS = 5  # per header
_KEY = re.compile(r"\s{0,50}[^<>\r\n]{0,500}\s{0,50}")  # markup means that its end is missing
_ID = re.compile(r"\s{0,50}[^\s<>{}\[\]]{0,500}\s{0,50}")
_WORD = re.compile(r"(?s:.{0,600})")  # an attribute
_MAX_WORD_CHARS = 1000  # longer than any allowed word with the marker after it
_BRACKETS, _BRACKETS_AND_PARENS = re.compile(r"[{}\[\]]"), re.compile(r"[{}\[\]()]")
_LITERAL = schemas.ANY - schemas.STRING
_ALLOWED = {Channel.STRING: schemas.STRING, Channel.LITERAL: _LITERAL}


class StateMachine(CustomInputMachine):
    """Parses one stream of one family."""

    __slots__ = ()

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        if not text:
            return []
        self._plain = plain = special is False
        if plain:
            self._saw_plain = True
        if self._special_held or (special and self._decoder is not None):
            self._feed_special(text, special)
            return self._spans.take_events()
        held = self._held
        if held:
            text = held + text
            self._held = ""
        if not self._spans.raw:
            state = self._state
            delta = state.delta
            if delta is None:
                event = self._continue_call(text)
                if event is not None:
                    return [event]
            # The path of nearly all text: it only continues the open span.
            elif (
                delta is self._spans.delta
                and not text[-1].isspace()
                and state.scanner.spot(text) is None
            ):
                return [delta(text, text)]
        self._boundary = len(held)
        self._run(text, final=False)
        if self._pending:
            self._resolve_trials()
        return self._spans.take_events()

    def finish(self) -> list[Event]:
        self._plain, self._boundary = self._plain_held, 0
        self._finish_special()
        self._run(self._held, final=True)
        ended = self._finish_trials()
        while self._origin is not None and not ended and not self._ends_in_header():
            self._call.diagnose("incomplete_head")
            self._revert()
            self._run(self._held, final=True)
            ended = self._finish_trials()
        if ended:
            return self._spans.take_events()
        if self._call.is_open:
            self._finish_call()
        elif self._decoder is not None:
            self._call.diagnose("incomplete_head")
        self._spans.raw.append(self._held)  # a partial marker after a call or in its value
        self._held = ""
        self._spans.finish()
        return self._spans.take_events()

    def _continue_call(self, text: str) -> Event | None:
        """Return the event of text that only continues the open call; None in other cases.

        This is the path of nearly all text of calls; the readers below would return the same
        events. It must not be called while raw text waits for its event.
        """
        state = self._state
        if self._decoder is not None:
            json, call = self._decoder.verbatim, self._call
            if json is None or call.freeform is not None or not json.passes(text):
                return None
            return CallArgs(call.index, text, text)
        if state.is_value and state.scanner.spot(text) is None:
            if text[-1] != "\n":
                return self._call.continue_value(text)
            event = self._call.continue_value(text[:-1]) if len(text) > 1 else None
            if event is not None:  # the line break may precede the closers of the call
                self._held, self._plain_held = "\n", self._plain
            return event
        return None

    def _ends_in_header(self) -> bool:
        """Return whether the output ends in a partial message header, which is not content."""
        in_header = self._state.channel is Channel.HEADER
        return in_header and self._head_marker in self._special

    def _run(self, buffer: str, final: bool) -> None:
        at, self._wait = 0, False
        while at < len(buffer) or self._rewind is not None:
            if self._rewind is not None:
                buffer, at = self._read_again(buffer, at)
                continue
            at = self._READ[self._state.channel](self, buffer, at, final)
            if self._wait:
                break
        self._held = buffer[at:] if at < len(buffer) else ""
        if at >= self._boundary:  # else it started in an earlier piece, whose flag applies
            self._plain_held = self._plain

    # Prose

    def _text(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find(buffer, at, final)
        if end > at:
            self._spans.write("text", buffer[at:end])
        return self._leave(buffer, end, marker)

    def _reasoning(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find(buffer, at, final)
        if end > at:
            self._spans.write("reasoning", buffer[at:end])
        return self._leave(buffer, end, marker)

    def _discarded(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find(buffer, at, final)
        if self._open_brackets:
            closed = self._close_brackets(buffer, at, end)
            if closed is not None:
                self._spans.raw.append(buffer[at:closed])
                self._enter(self._lost_end)
                return closed
        self._spans.raw.append(buffer[at:end])
        return self._leave(buffer, end, marker)

    def _close_brackets(self, buffer: str, at: int, end: int) -> int | None:
        """Return where all brackets of a broken call are closed; strings are not recognized."""
        count = len(self._open_brackets)
        pattern = _BRACKETS_AND_PARENS if "(" in self._open_brackets else _BRACKETS
        for found in pattern.finditer(buffer, at, end):
            count += 1 if found.group() in "{[(" else -1
            if count == 0:
                return found.end()
        self._open_brackets = self._open_brackets[:1] * count
        return None

    def _leave(self, buffer: str, end: int, marker: str | None) -> int:
        if marker is not None:
            return self._cross(marker, end)
        self._wait = end < len(buffer)
        return end

    # Framing and heads

    def _gap(self, buffer: str, at: int, final: bool) -> int:
        end = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
        if end > at:
            if self._state.name == self._grammar.entry:
                self._spans.write("text", buffer[at:end])
            else:
                self._spans.raw.append(buffer[at:end])
        if end == len(buffer):
            return end
        undecided, marker = self._state.scanner.match(buffer, end)
        if undecided and final:
            marker = buffer[end:] if buffer[end:] in self._state.edges else None
            undecided = marker is None and self._state.name != self._grammar.entry
        if undecided:
            self._wait = True
            return end
        if marker is not None and self._is_marker(marker, end):
            return self._cross(marker, end)
        return self._leave_gap(end)

    def _leave_gap(self, at: int) -> int:
        """Leave a gap at text that is neither white space nor a marker of the gap."""
        entry = self._state.name == self._grammar.entry
        otherwise = self._state.mode.otherwise
        if otherwise is None:
            if self._origin is not None or self._call.is_open:
                return self._fail(at, "text_in_call")
            if not entry:
                self._call.diagnose("text_in_calls")
            otherwise = Edge("text")
        self._enter(otherwise)
        if self._state.channel is Channel.TEXT:
            self._origin = None
            if not entry:
                self._spans.end_frame()
                self._state = self._grammar.states[self._grammar.after_calls]
        return at

    def _read_word(
        self, buffer: str, at: int, final: bool, allowed: re.Pattern[str] = _WORD
    ) -> tuple[int, str | None, bool]:
        """Collect a word up to a marker. The flag is False if the text is not a valid word."""
        end, marker = self._find_markup(buffer, at, final, _MAX_WORD_CHARS)
        word = self._word + buffer[at:end]
        fits = allowed.match(word).end()  # type: ignore[union-attr]
        end -= len(word) - fits
        self._word = word[:fits]
        self._spans.raw.append(buffer[at:end])
        whole = fits == len(word)
        self._wait = marker is None and whole and end < len(buffer)
        return end, marker, whole

    def _header(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final, _HEADER)
        if not fits:
            return self._fail(end, "malformed_header")
        if marker is None:
            return end
        edge = self._state.edges[marker]
        if edge.mode == self._state.name:
            if len(self._parts) == _MAX_HEADER_PARTS:
                return self._fail(end, "malformed_header")
            self._parts.append(self._word)
            self._word = ""
            self._spans.add_markup(marker)
            return end + len(marker)
        return self._leave_header(marker, edge, end)

    def _leave_header(self, marker: str, edge: Edge, at: int) -> int:
        """Leave a complete header: the header or the marker after it determines what follows."""
        target, name = edge.mode, None
        if self._state.mode.route is not None:
            route = self._state.mode.route(" ".join([*self._parts, self._word]))
            target, name = route.mode, route.name
        self._spans.add_markup(marker)
        if name is not None:
            self._open_call(name)
        elif self._grammar.states[target].channel in PROSE_CHANNELS:
            self._origin = None
        self._enter(Edge(target))
        return at + len(marker)

    def _name_of_tool(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final, _NAME)
        if fits and marker is None:
            return end
        name = self._word.strip()
        if not fits or not name or marker is None:
            return self._fail(end, "malformed_name")
        self._name = name
        if self._state.mode.read is not None:
            self._name, self._own_id = self._state.mode.read(name)
        return self._cross(marker, end)

    def _id_of_call(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final, _ID)
        if not fits:
            return self._fail(end, "malformed_id")
        if marker is None:
            return end
        self._own_id = self._word.strip() or None
        return self._cross(marker, end)

    def _attribute(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final)
        if not fits:
            return self._fail(end, "malformed_attribute")
        return end if marker is None else self._cross(marker, end)

    # Parameters

    def _key(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final, _KEY)
        if fits and marker is None:
            return end
        key = self._word.strip()
        if not fits or not key or marker is None:
            return self._fail(end, "malformed_key")
        if self._state.mode.read is not None:
            key = self._state.mode.read(key)[0]
        after = self._cross(marker, end)
        self._call.begin_value(key, _ALLOWED.get(self._state.channel))
        return after

    def _raw_value(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find_markup(buffer, at, final)
        if marker is None:
            if not final and buffer[at:end].endswith("\n"):
                end -= 1  # it may precede the closers of the call
            self._call.add_value(buffer[at:end])
            self._wait = end < len(buffer)
            return end
        closes = self._ends_value(buffer, end, marker, final)
        if closes is False:
            self._call.add_value(buffer[at : end + 1])
            return end + 1
        edge = self._state.edges.get(marker)
        if edge is None and buffer[at:end].endswith("\n"):
            end -= 1
        self._call.add_value(buffer[at:end])
        if closes is None:
            self._wait = True
            return end
        if edge is None:  # the closers are read again, as if the value's own had preceded them
            self._call.diagnose("missing_value_end")
            marker, edge = "", next(iter(self._state.edges.values()))
        self._spans.add_markup(marker)
        if not self._call.end_value():
            return self._fail(end + len(marker), "malformed_value")
        self._enter(edge)
        return end + len(marker)

    # Bodies

    def _body(self, buffer: str, at: int, final: bool) -> int:
        if self._decoder is None:
            at = self._begin_body(buffer, at, final)
            if self._decoder is None:
                return at
        calls = self._call.index
        feed = self._decoder.feed
        if final and isinstance(self._decoder, TreeDecoder):
            feed = self._decoder.feed_last  # text may follow the call
        progress, at = feed(buffer, at, self._call)
        if self._call.index > calls:
            self._origin, self._broken = None, False
        if progress is Progress.FAIL:
            return self._fail(at, "malformed_call")
        if progress is Progress.END:
            self._origin = None
            self._enter(self._state.mode.end or Edge("text"))
        else:
            self._wait = at < len(buffer)
        return at

    def _begin_body(self, buffer: str, at: int, final: bool) -> int:
        """Skip white space before the body. A marker there means that there is no body."""
        end = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
        self._spans.raw.append(buffer[at:end])
        if end == len(buffer):
            return end
        undecided, marker = self._state.scanner.match(buffer, end)
        if undecided:
            self._wait = True
        elif marker is not None and self._is_marker(marker, end):
            return self._cross(marker, end)
        elif self._call.is_custom and self._call.is_open:
            self._begin_custom_input(buffer, end, final)
        elif self._state.mode.body is not None:
            self._decoder = self._state.mode.body.decoder()
        return end

    def _finish_call(self) -> None:
        """Finish a call that is open at the end: complete if only its end marker is missing."""
        complete = False
        if self._decoder is not None:
            complete = self._decoder.finish(self._held, self._call)
            self._held = ""
        elif self._state.channel is Channel.GAP and not self._call.awaits_value:
            ways = [edge for marker, edge in self._state.edges.items() if self._may_be(marker)]
            complete = all(edge.action & CallAction.CLOSE for edge in ways)
            if complete:
                self._call.close_tagged()
        self._call.diagnose("missing_end" if complete else "cut_call")

    def _may_be(self, marker: str) -> bool:
        """Return whether the text at the end of the output is a prefix of this marker."""
        return bool(self._held) and marker.startswith(self._held)

    _READ: ClassVar = {
        Channel.TEXT: _text,
        Channel.REASONING: _reasoning,
        Channel.GAP: _gap,
        Channel.HEADER: _header,
        Channel.NAME: _name_of_tool,
        Channel.ID: _id_of_call,
        Channel.ATTRIBUTE: _attribute,
        Channel.KEY: _key,
        Channel.VALUE: _raw_value,
        Channel.STRING: _raw_value,
        Channel.LITERAL: _raw_value,
        Channel.BODY: _body,
        Channel.FREE_TEXT: CustomInputMachine._free_text,
        Channel.DISCARDED: _discarded,
        Channel.TRIAL: CustomInputMachine._hold,
    }
