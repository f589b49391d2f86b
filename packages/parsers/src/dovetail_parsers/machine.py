"""The interpreter of the tables: text in, events out, whichever the family.

Text leaves as soon as it cannot be part of a marker. From a call's opening marker until its name
and argument opener the text is a head: held, and given back as plain text if it turns out to be
no call. Work per chunk is bounded by the chunk and by the head.
"""

import re
from collections.abc import Mapping
from typing import Any

from dovetail_model import CallArgs, CallClose, CallOpen, Diagnostic, Event, SpanEnd, ToolSpec
from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.body import Decoder, Progress
from dovetail_parsers.arguments.freeform import FREEFORM_SCHEMA, Freeform
from dovetail_parsers.arguments.json_text import escape
from dovetail_parsers.arguments.value import Value
from dovetail_parsers.grammar import Act, Channel, Grammar, State, To
from dovetail_parsers.spans import Spans

_SPACE = re.compile(r"\s*")
_BEGINS_AS_NAME = re.compile(r"\s{0,200}(?:[^\s<>{}\[\]()\"'`=,;|]{1,200}\s{0,200})?")
_ANY_WORD = re.compile(r"(?s:.{0,600})")  # a header, an id or a key
_LOOK_AHEAD = 256  # white space between a value's closer and what must follow it
_PROSE = (Channel.TEXT, Channel.REASONING, Channel.LOST)
_LITERAL = schemas.ANY - schemas.STRING


class Machine:
    """One stream of one family."""

    def __init__(
        self, grammar: Grammar, tools: Mapping[str, ToolSpec], in_reasoning: bool | None
    ) -> None:
        self._grammar = grammar
        self._tools = tools
        self._spans = Spans()
        inside = grammar.starts_inside if in_reasoning is None else in_reasoning
        start = "reasoning" if inside and "reasoning" in grammar.states else grammar.entry
        self._state = grammar.states[start]
        self._held = ""  # text that waits for more
        self._wait = False
        self._rewind: str | None = None  # a head that was none, to be read again
        self._plain_held = self._plain = False  # whether text is known to hold no special token
        self._boundary = 0  # where held text ends in the buffer
        # the head that is open: where it came from, its first marker, where its raw text begins
        self._origin: State | None = None
        self._head_marker = ""
        self._head_at = 0
        # the call that is open
        self._index = -1
        self._call_open = False
        self._spec: ToolSpec | None = None
        self._schema: Mapping[str, Any] = {}
        self._freeform: Freeform | None = None
        self._decoder: Decoder | None = None
        self._word = ""
        self._name = ""
        self._own_id: str | None = None
        self._keys = 0
        self._awaits_value = False
        self._value = Value(schemas.ANY)
        self._handlers = {
            Channel.TEXT: self._text,
            Channel.REASONING: self._reasoning,
            Channel.GAP: self._gap,
            Channel.HEADER: self._header,
            Channel.NAME: self._name_of_tool,
            Channel.ID: self._id_of_call,
            Channel.ATTRIBUTE: self._attribute,
            Channel.KEY: self._key,
            Channel.VALUE: self._raw_value,
            Channel.STRING: self._raw_value,
            Channel.LITERAL: self._raw_value,
            Channel.BODY: self._body,
            Channel.LOST: self._lost,
        }

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        if not text:
            return []
        self._plain = special is False
        self._boundary = len(self._held)
        self._run(self._held + text if self._held else text, final=False)
        return self._take_events()

    def finish(self) -> list[Event]:
        self._plain, self._boundary = self._plain_held, 0
        self._run(self._held, final=True)
        while self._origin is not None and self._state.channel is not Channel.HEADER:
            self._diagnose("incomplete_head")
            self._revert()
            self._run("", final=True)
        self._spans.raw += self._held
        if self._call_open:
            self._finish_call()
        self._spans.finish()
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._spans.events = self._spans.events, []
        return events

    def _run(self, buffer: str, final: bool) -> None:
        at, self._wait = 0, False
        while at < len(buffer) or self._rewind is not None:
            if self._rewind is not None:
                buffer, at = self._read_again(buffer[at:])
                continue
            at = self._handlers[self._state.channel](buffer, at, final)
            if self._wait:
                break
        self._held = buffer[at:] if at < len(buffer) else ""
        self._plain_held = self._plain if self._held else False

    def _read_again(self, rest: str) -> tuple[str, int]:
        """A head that was no call: its marker is prose, what follows is read as such."""
        buffer, self._rewind = (self._rewind or "") + rest, None
        self._boundary = 0
        marker = self._head_marker
        if self._state.channel is Channel.LOST:
            self._spans.raw += marker
        else:
            self._spans.write(
                "text" if self._state.channel is Channel.TEXT else "reasoning", marker
            )
        return buffer, len(marker)

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

    def _lost(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find(buffer, at, final)
        self._spans.raw += buffer[at:end]
        return self._leave(buffer, end, marker)

    def _leave(self, buffer: str, end: int, marker: str | None) -> int:
        if marker is not None:
            return self._cross(marker, end)
        self._wait = end < len(buffer)
        return end

    def _find(self, buffer: str, at: int, final: bool) -> tuple[int, str | None]:
        """The next marker. One that is a special token, spelled out in plain text, is prose."""
        scanner = self._state.scanner
        end, marker = scanner.search(buffer, at, final)
        while marker is not None and not self._counts(marker, end):
            end, marker = scanner.search(buffer, end + 1, final)
        return end, marker

    def _counts(self, marker: str, at: int) -> bool:
        plain = self._plain_held if at < self._boundary else self._plain
        return not plain or marker not in self._grammar.special

    # Edges

    def _cross(self, marker: str, at: int) -> int:
        """Follows the edge of a marker that stands at `at`."""
        state = self._state
        edge = state.edges[marker]
        target = self._grammar.states[edge.mode]
        if state.channel in _PROSE or state.name == self._grammar.entry:
            self._leave_prose(state, target, marker, edge)
        elif not edge.peek:
            self._spans.marker(marker)
        if marker not in state.mode.on and self._call_open:
            self._diagnose("unexpected_marker")
        self._enter(edge)
        if target.channel is Channel.TEXT and state.channel is Channel.GAP:
            self._end_frame()
        return at if edge.peek else at + len(marker)

    def _end_frame(self) -> None:
        """Behind a call: the markup that closed its section belongs to it."""
        if self._spans.raw and self._index >= 0 and self._origin is None:
            self._spans.events.append(SpanEnd("frame", self._spans.take_raw()))

    def _leave_prose(self, state: State, target: State, marker: str, edge: To) -> None:
        """From text or thought: into the other, or into a head that may become a call."""
        thinking = state.channel is Channel.REASONING
        if target.channel in _PROSE or target.name == self._grammar.entry:
            prescribed = marker in state.mode.on
            if not prescribed:
                self._diagnose("stray_marker")
            self._spans.marker(marker)
            if thinking and target.channel is not Channel.REASONING:
                self._spans.close_thought()
            elif state.channel is Channel.LOST:
                self._end_frame()
            elif prescribed and state.channel is target.channel is Channel.TEXT:
                self._spans.drop_white()
            return
        if state.channel is Channel.LOST:
            self._end_frame()
        if thinking and target.channel is Channel.HEADER:
            self._spans.close_thought()
        self._origin = state
        self._own_id = None
        self._head_marker = marker
        self._head_at = len(self._spans.raw)
        if not edge.peek:
            self._spans.marker(marker)

    def _enter(self, edge: To) -> None:
        if edge.act & Act.OPEN:
            self.open_call(self._name, self._own_id)
        if edge.act & Act.CLOSE and self._call_open:
            self._close_tagged()
        self._state = self._grammar.states[edge.mode]
        self._word = ""
        if self._state.mode.body is not None:
            self._decoder = None

    def _revert(self) -> None:
        """The head is no call: take its raw text back, to be read again where it came from."""
        assert self._origin is not None
        origin, self._origin = self._origin, None
        self._rewind = self._spans.raw[self._head_at :]
        self._spans.raw = self._spans.raw[: self._head_at]
        self._state = origin if origin.channel in _PROSE else self._grammar.states["text"]
        self._decoder = None

    def _fail(self, at: int, code: str) -> int:
        """Malformed here: a head is given back, an open call stays incomplete."""
        if self._origin is not None:
            self._revert()
            return at
        self._diagnose(code)
        self._call_open = False
        self._state = self._grammar.states["lost"]
        return at

    # Framing and heads

    def _gap(self, buffer: str, at: int, final: bool) -> int:
        end = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
        if end > at:
            if self._state.name == self._grammar.entry:
                self._spans.write("text", buffer[at:end])
            else:
                self._spans.raw += buffer[at:end]
        if end == len(buffer):
            return end
        undecided, marker = self._state.scanner.match(buffer, end, final)
        if undecided:
            self._wait = True
            return end
        if marker is not None and self._counts(marker, end):
            return self._cross(marker, end)
        return self._leave_gap(end)

    def _leave_gap(self, at: int) -> int:
        """Text that is neither white space nor a marker of the gap."""
        if self._state.mode.otherwise is not None:
            self._enter(self._state.mode.otherwise)
        elif self._origin is not None or self._call_open:
            return self._fail(at, "text_in_call")
        else:
            if self._state.name != self._grammar.entry:
                self._diagnose("text_in_calls")
            self._state = self._grammar.states["text"]
        return at

    def _read_word(
        self, buffer: str, at: int, final: bool, allowed: re.Pattern[str] = _ANY_WORD
    ) -> tuple[int, str | None, bool]:
        """Collects a word up to a marker. False where it ceases to be one."""
        end, marker = self._find(buffer, at, final)
        word = self._word + buffer[at:end]
        fits = allowed.match(word).end()  # type: ignore[union-attr]
        if fits < len(word):
            end -= len(word) - fits
        self._word = word[:fits]
        self._spans.raw += buffer[at:end]
        self._wait = marker is None and end < len(buffer) and fits == len(word)
        return end, marker, fits == len(word)

    def _header(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final)
        if not fits:
            return self._fail(end, "malformed_header")
        if marker is None:
            return end
        edge = self._state.edges[marker]
        if edge.mode == self._state.name:
            self._word += " "
            self._spans.marker(marker)
            return end + len(marker)
        if self._state.mode.route is None:
            return self._cross_header(marker, end)
        found = self._state.mode.route(self._word)
        if found is None:
            return self._fail(end, "malformed_header")
        self._spans.marker(marker)
        if found.name is not None:
            self.open_call(found.name, None)
        elif self._grammar.states[found.mode].channel in _PROSE:
            self._origin = None
        self._enter(To(found.mode))
        return end + len(marker)

    def _cross_header(self, marker: str, at: int) -> int:
        """The marker behind the header says itself what follows."""
        if self._grammar.states[self._state.edges[marker].mode].channel in _PROSE:
            self._origin = None
        return self._cross(marker, at)

    def _name_of_tool(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final, _BEGINS_AS_NAME)
        if fits and marker is None:
            return end
        name = self._word.strip()
        if not fits or not name:
            return self._fail(end, "malformed_name")
        self._name = name
        if self._state.mode.read is not None:
            self._name, self._own_id = self._state.mode.read(name)
        return self._cross(str(marker), end)

    def _id_of_call(self, buffer: str, at: int, final: bool) -> int:
        end, marker, fits = self._read_word(buffer, at, final)
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
        end, marker, fits = self._read_word(buffer, at, final)
        if fits and marker is None:
            return end
        key = self._word.strip()
        if not fits or not key or marker is None:
            return self._fail(end, "malformed_key")
        lead = ", " if self._keys else "{"
        self._keys += 1
        self._awaits_value = True
        after = self._cross(marker, end)
        self._value = Value(self._types_of(key))
        self.add_arguments(f'{lead}"{escape(key)}": ', "")
        return after

    def _types_of(self, key: str) -> frozenset[str]:
        channel = self._state.channel
        if channel is Channel.STRING:
            return schemas.STRING
        found = schemas.types(
            schemas.property_schema(self._schema, key, self._schema), self._schema
        )
        if channel is Channel.LITERAL:
            return found if "string" not in found else _LITERAL
        return found

    def _raw_value(self, buffer: str, at: int, final: bool) -> int:
        end, marker = self._find(buffer, at, False)
        if marker is None:
            self._add_value(buffer[at:end])
            if final:
                self._spans.raw += buffer[end:]  # half a closer: no content, and no close
                return len(buffer)
            self._wait = end < len(buffer)
            return end
        closes = self._closes(buffer, end, marker, final)
        if closes is None:
            self._add_value(buffer[at:end])
            self._wait = True
            return end
        if not closes:
            self._add_value(buffer[at : end + 1])
            return end + 1
        self._add_value(buffer[at:end])
        self._spans.marker(marker)
        self.add_arguments(self._value.end(), "")
        if self._value.failed:
            return self._fail_value(end + len(marker))
        self._report_value()
        self._awaits_value = False
        self._enter(self._state.edges[marker])
        return end + len(marker)

    def _closes(self, buffer: str, at: int, marker: str, final: bool) -> bool | None:
        """Whether a closer in a raw value counts: only if a legal marker follows. None: wait."""
        target = self._grammar.states[self._state.edges[marker].mode]
        start = at + len(marker)
        end = _SPACE.match(buffer, start).end()  # type: ignore[union-attr]
        if end - start > _LOOK_AHEAD:
            return False
        if end == len(buffer):
            return True if final else None
        undecided, following = target.scanner.match(buffer, end, final)
        return None if undecided else following is not None

    def _add_value(self, text: str) -> None:
        if not text:
            return
        self.add_arguments(self._value.feed(text), text)

    def _fail_value(self, at: int) -> int:
        self._report_value()
        return self._fail(at, "malformed_value")

    def _report_value(self) -> None:
        for code in self._value.diagnostics:
            self._diagnose(code)
        self._value.diagnostics.clear()

    # Bodies

    def _body(self, buffer: str, at: int, final: bool) -> int:
        if self._decoder is None:
            at = self._begin_body(buffer, at, final)
            if self._decoder is None:
                return at
        progress, at = self._decoder.feed(buffer, at, self)
        if progress is Progress.FAIL:
            return self._fail(at, "malformed_call")
        if progress is Progress.END:
            self._origin = None
            self._decoder = None
            self._enter(self._state.mode.end or To("text"))
        else:
            self._wait = at < len(buffer)
        return at

    def _begin_body(self, buffer: str, at: int, final: bool) -> int:
        """Before the body: a marker that says that there is none, or the body's first character."""
        end = _SPACE.match(buffer, at).end()  # type: ignore[union-attr]
        self._spans.raw += buffer[at:end]
        if end == len(buffer):
            return end
        undecided, marker = self._state.scanner.match(buffer, end, final)
        if undecided:
            self._wait = True
        elif marker is not None and self._counts(marker, end):
            return self._cross(marker, end)
        elif self._state.mode.body is not None:
            self._decoder = self._state.mode.body.decoder()
        return end

    # What decoders report

    def skip(self, raw: str) -> None:
        self._spans.raw += raw

    def open_call(self, name: str, own_id: str | None) -> None:
        if self._spans.thinking:
            self._diagnose("call_inside_reasoning")
        self._origin = None
        self._spans.end()
        self._index += 1
        self._keys = 0
        self._awaits_value = False
        self._call_open = True
        self._spec = spec = self._tools.get(name)
        self._schema = spec.parameters if spec else {}
        self._freeform = None
        if spec is not None and spec.custom:
            self._freeform, self._schema = Freeform(), FREEFORM_SCHEMA
        self._own_id = None
        self._spans.events.append(
            CallOpen(
                index=self._index,
                name=spec.name if spec else name,
                id=own_id,
                namespace=spec.namespace if spec else None,
                custom=bool(spec and spec.custom),
                raw=self._spans.take_raw(),
            )
        )
        if spec is None and self._tools:
            self._diagnose("unknown_tool")

    def add_arguments(self, text: str, raw: str) -> None:
        spans = self._spans
        if self._freeform is not None:
            text = self._freeform.feed(text)
        if not text:
            spans.raw += raw
            return
        if spans.raw:
            raw = spans.take_raw() + raw
        spans.events.append(CallArgs(self._index, text, raw))

    def close_call(self) -> None:
        if self._freeform is not None:
            rest = self._freeform.finish()
            if rest:
                self._spans.events.append(CallArgs(self._index, rest, self._spans.take_raw()))
        self._call_open = False
        self._spans.events.append(CallClose(self._index, self._spans.take_raw()))

    def diagnose(self, code: str) -> None:
        self._diagnose(code)

    def knows(self, name: str) -> bool:
        return not self._tools or name in self._tools

    def schema(self) -> Mapping[str, Any]:
        return self._schema

    @property
    def call_is_open(self) -> bool:
        return self._call_open

    # The end

    def _close_tagged(self) -> None:
        self.add_arguments("}" if self._keys else "{}", "")
        self.close_call()

    def _finish_call(self) -> None:
        """An open call at the end: what was closed by its own delimiter is recovered."""
        complete = False
        if self._decoder is not None:
            complete = self._decoder.finish(self)
        elif self._state.channel is Channel.GAP and not self._awaits_value:
            self._close_tagged()
            complete = True
        self._diagnose("missing_end" if complete else "cut_call")

    def _diagnose(self, code: str) -> None:
        self._spans.events.append(Diagnostic(code, self._grammar.name))
