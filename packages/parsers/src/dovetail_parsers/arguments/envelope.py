"""Complete calls as JSON: `{"name": ..., "arguments": {...}}`, alone or in a list."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments.body import CallSink, Progress
from dovetail_parsers.arguments.json_body import JsonArgumentsDecoder, report_repairs
from dovetail_parsers.arguments.json_validator import JsonValidator

_SPACE = re.compile(r"\s*")
_MAX_HEAD_CHARS = 4096  # characters of an envelope before its arguments
_NAME = re.compile(r"[^\s<>{}\[\]()\"'`=,;|]{1,200}\Z")


@dataclass(frozen=True)
class Envelope:
    """The keys of an envelope. Without `name`, each key is a name and its value the arguments.

    `bare` is for formats without an opening marker, in which JSON may also be plain output: a call
    must then have arguments and name an offered tool.
    """

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    many: bool = False
    bare: bool = False
    write_id: bool = False
    holds_calls: bool = True

    @property
    def holds_many(self) -> bool:
        return self.many

    def decoder(self) -> "_EnvelopeDecoder":
        return _EnvelopeDecoder(self)

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        written = ", ".join(self._write_one(call, i) for i, call in enumerate(calls))
        return f"[{written}]" if self.many else written

    def _write_one(self, call: ToolCallBlock, index: int) -> str:
        name = json.dumps(call.name, ensure_ascii=False)
        if not self.name:
            return f"{{{name}: {call.arguments}}}"
        own_id = f'"{self.id[0]}": "{index}", ' if self.write_id else ""
        return f'{{{own_id}"{self.name[0]}": {name}, "{self.arguments[0]}": {call.arguments}}}'


_START, _ITEM, _KEY, _COLON, _VALUE, _ARGUMENTS, _AFTER, _NEXT = range(8)


class _EnvelopeDecoder:
    """Decodes one envelope, or a list of them."""

    __slots__ = (
        "_any",
        "_arguments",
        "_begun",
        "_buffer",
        "_capture",
        "_depth",
        "_envelope",
        "_head",
        "_id",
        "_key",
        "_list",
        "_name",
        "_opened",
        "_part",
        "_state",
        "verbatim",
    )

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._list = False
        self._any = False  # whether a call was read
        self._state = _START
        self._begin()

    def _begin(self) -> None:
        """Prepare for an envelope's first key."""
        self._name: str | None = None
        self._id: str | None = None
        self._key = ""
        self._capture: list[str] = []
        self._begun = False  # whether a key or value has started
        self._part = JsonValidator()
        self._arguments: JsonArgumentsDecoder | None = None
        self.verbatim: JsonValidator | None = None
        self._buffer: list[str] = []  # arguments that preceded the name
        self._opened = False
        self._depth = 1
        self._head = 0

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]:
        at = start
        while True:
            if self._state == _ARGUMENTS:
                progress, at = self._feed_arguments(text, at, sink)
                if progress is not Progress.END:
                    return progress, at
            if not self._begun:
                white = _SPACE.match(text, at).end()  # type: ignore[union-attr]
                if white > at:
                    sink.skip(text[at:white])
                    at = white
            if at == len(text):
                return Progress.MORE, at
            progress, at = self._step(text, at, sink)
            if progress is not Progress.MORE:
                return progress, at

    def open_brackets(self) -> str:
        outer = "[" if self._list else ""
        if self._state in (_START, _ITEM, _NEXT):
            return outer
        inner = self._arguments if self._state == _ARGUMENTS and self._arguments else self._part
        return outer + "{" * self._depth + inner.open_brackets()

    def finish(self, rest: str, sink: CallSink) -> bool:
        """Complete arguments make a call even if the envelope was not closed."""
        sink.skip(rest)
        if self._state == _ARGUMENTS and self._arguments is not None:
            self._emit(self._arguments.finish(), "", sink)
            if not self._arguments.done:
                return False
        elif self._state in (_START, _ITEM, _NEXT):
            return True
        if self._arguments is None or self._name is None or not self._arguments.done:
            return False
        if self._opened:
            self._complete(sink)
        return True

    def _step(self, text: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        char = text[at]
        state = self._state
        if state in (_KEY, _VALUE):
            return self._feed_part(text, at, sink)
        if state == _COLON:
            if char != ":":
                return Progress.FAIL, at
            sink.skip(char)
            return self._after_colon(), at + 1
        if state == _AFTER:
            return self._after_value(char, at, sink)
        return self._between(char, at, sink)

    def _between(self, char: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        """Read outside an envelope: the list's brackets and commas, or an opening brace."""
        state = self._state
        if char == "{" and state in (_START, _ITEM):
            self._begin()
            self._state = _KEY
        elif char == "[" and state == _START:
            self._list = True
            self._state = _ITEM
        elif char == "]" and self._list and state in (_ITEM, _NEXT):
            if not self._any and self._envelope.bare:
                return Progress.FAIL, at
            sink.skip(char)
            return Progress.END, at + 1
        elif char == "," and state == _NEXT:
            self._state = _ITEM
        else:
            return Progress.FAIL, at
        sink.skip(char)
        return Progress.MORE, at + 1

    def _feed_part(self, text: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        """Read a key, or a value other than the arguments."""
        state = self._state
        if state == _KEY and not self._begun and text[at] == "}":
            self._state = _AFTER
            return Progress.MORE, at
        if state == _VALUE and not self._begun and self._nests(text, at):
            sink.skip(text[at])
            self._depth += 1
            self._state = _KEY
            return Progress.MORE, at + 1
        self._begun = True
        out, end = self._part.feed(text, at)
        self._capture.append(out)
        self._head += end - at
        sink.skip(text[at:end])
        if self._part.failed or (self._head > _MAX_HEAD_CHARS and not self._opened):
            return Progress.FAIL, end
        if self._part.done:
            value = _scalar("".join(self._capture))
            self._capture, self._part, self._begun = [], JsonValidator(), False
            return self._take(value, sink), end
        return Progress.MORE, end

    def _nests(self, text: str, at: int) -> bool:
        """Whether the envelope is nested, as in `"function": {...}` of the API's own form."""
        return self._key == "function" and text[at] == "{"

    def _take(self, value: object, sink: CallSink) -> Progress:
        if self._state == _KEY:
            if not isinstance(value, str):
                return Progress.FAIL
            self._key = value
            self._state = _COLON
            return Progress.MORE
        self._state = _AFTER
        if self._key in self._envelope.name or (self._key == "function" and self._name is None):
            if not isinstance(value, str) or not _NAME.match(value):
                return Progress.FAIL
            self._name = value
            return self._open_buffered(sink)
        if self._key in self._envelope.id and isinstance(value, str | int):
            self._id = str(value)
        return Progress.MORE

    def _after_colon(self) -> Progress:
        envelope, key = self._envelope, self._key
        if not envelope.name:
            self._name, self._arguments = key, None
        if not envelope.name or (key in envelope.arguments and self._arguments is None):
            self._arguments = JsonArgumentsDecoder()
            self._state = _ARGUMENTS
            return Progress.MORE if _NAME.match(self._name or "x") else Progress.FAIL
        known = key in envelope.name or key in envelope.id or key in ("type", "function")
        if envelope.bare and not known and not self._opened:
            return Progress.FAIL
        self._state = _VALUE
        return Progress.MORE

    def _feed_arguments(self, text: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        arguments = self._arguments
        assert arguments is not None
        out, end = arguments.feed(text, at)
        if not self._opened and out and self._name is not None and not self._open(sink):
            return Progress.FAIL, at
        self.verbatim = arguments.verbatim if self._opened else None
        self._emit(out, text[at:end] if at or end < len(text) else text, sink)
        if arguments.repairs:
            report_repairs(arguments.repairs, sink)
        if arguments.failed:
            return Progress.FAIL, end
        if arguments.done:
            self._state = _AFTER
            if not self._envelope.name:  # each key is a separate call
                self._complete(sink)
            return Progress.END, end
        return Progress.MORE, end

    def _emit(self, out: str, raw: str, sink: CallSink) -> None:
        if self._opened:
            sink.add_arguments(out, raw)
        else:
            self._buffer.append(out)
            sink.skip(raw)

    def _open(self, sink: CallSink) -> bool:
        assert self._name is not None
        if self._envelope.bare and not sink.has_tool(self._name):
            return False
        sink.open_call(self._name, self._id)
        self._opened = self._any = True
        return True

    def _open_buffered(self, sink: CallSink) -> Progress:
        """Emit arguments that preceded the name, which is now known."""
        if self._arguments is None:
            return Progress.MORE
        if not self._open(sink):
            return Progress.FAIL
        sink.diagnose("arguments_before_name")
        sink.add_arguments("".join(self._buffer), "")
        return Progress.MORE

    def _after_value(self, char: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        if char == ",":
            sink.skip(char)
            self._state = _KEY
            return Progress.MORE, at + 1
        if char != "}":
            if self._opened and not self._list and self._arguments and self._arguments.done:
                sink.diagnose("missing_end")
                self._complete(sink)
                return Progress.END, at
            return Progress.FAIL, at
        self._depth -= 1
        if self._depth:
            sink.skip(char)
            return Progress.MORE, at + 1
        if self._name is None or (self._envelope.bare and self._arguments is None):
            return Progress.FAIL, at
        sink.skip(char)
        if self._envelope.name:
            if not self._opened:
                if not self._open(sink):
                    return Progress.FAIL, at
                sink.add_arguments("".join(self._buffer) or "{}", "")
            self._complete(sink)
        if not self._list:
            return Progress.END, at + 1
        self._state = _NEXT
        return Progress.MORE, at + 1

    def _complete(self, sink: CallSink) -> None:
        sink.close_call()
        self._opened = False


def _scalar(text: str) -> object:
    """Return a string or number; other values are not needed, however deep they are."""
    return json.loads(text) if text[:1] not in ("{", "[") else None
