"""Complete calls as Python: `[get_weather(city="Paris", days=3), now()]`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments.body import CallSink, Progress
from dovetail_parsers.arguments.json_body import report_repairs
from dovetail_parsers.arguments.json_validator import PYTHON, JsonValidator
from dovetail_parsers.arguments.notation import load_arguments, write_python

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_REST_OF_NAME = re.compile(r"[\w.\-]+")
_MAX_WORD_CHARS = 200


@dataclass(frozen=True)
class Pythonic:
    """`brackets`: the calls are in a list; otherwise one per line, up to the closing marker.

    `bare` is for formats without an opening marker: only offered tools are calls.
    """

    brackets: bool = True
    bare: bool = False
    holds_calls: bool = True
    holds_many: bool = True

    def decoder(self) -> "_PythonicDecoder":
        return _PythonicDecoder(self)

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        written = [_write_one(call) for call in calls]
        return "[" + ", ".join(written) + "]" if self.brackets else "\n".join(written)


def _write_one(call: ToolCallBlock) -> str:
    pairs = (
        f"{key}={write_python(value)}" for key, value in load_arguments(call.arguments).items()
    )
    return f"{call.name}({', '.join(pairs)})"


class _State(Enum):
    """What comes next."""

    START = auto()
    NAME_OF_CALL = auto()
    PAREN = auto()
    NAME_OF_PARAMETER = auto()
    EQUALS = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    AFTER_CALL = auto()


class _PythonicDecoder:
    __slots__ = (
        "_bare",
        "_empty",
        "_listed",
        "_name",
        "_opened",
        "_state",
        "_value",
        "_word",
        "verbatim",
    )

    def __init__(self, body: Pythonic) -> None:
        self._bare = body.bare
        self._listed = body.brackets
        self._state = _State.START if body.brackets else _State.NAME_OF_CALL
        self._word = ""  # a name that may be incomplete
        self._name = ""  # of the current call
        self._opened = False
        self._empty = True  # whether the call has no parameter yet
        self._value = JsonValidator(PYTHON)
        self.verbatim: JsonValidator | None = None

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]:
        at = start
        while at < len(text):
            if self._state == _State.VALUE:
                progress, at = self._feed_value(text, at, sink)
            else:
                progress, at = self._feed_mark(text, at, sink)
            if progress is not Progress.MORE:
                return progress, at
        return Progress.MORE, at

    def open_brackets(self) -> str:
        outer = "[" if self._listed else ""
        if self._state in (_State.START, _State.NAME_OF_CALL, _State.PAREN, _State.AFTER_CALL):
            return outer
        inner = self._value.open_brackets() if self._state is _State.VALUE else ""
        return f"({outer}{inner}"

    def finish(self, rest: str, sink: CallSink) -> bool:
        """A call is complete only with its closing parenthesis; a list may lack its bracket."""
        sink.skip(rest)
        if self._state == _State.AFTER_CALL:
            return True
        return self._state == _State.NAME_OF_CALL and not self._listed and not self._word

    def _feed_value(self, text: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        value = self._value
        out, end = value.feed(text, at)
        sink.add_arguments(out, text[at:end] if at or end < len(text) else text)
        if value.repairs:
            report_repairs(value.repairs, sink)
        if value.done:
            self._state = _State.AFTER_VALUE
        return (Progress.FAIL if value.failed else Progress.MORE), end

    def _feed_mark(self, text: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        """Read one name or punctuation mark, with the white space before it."""
        end = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if end > at:
            if self._word:
                self._end_word()
            sink.skip(text[at:end])
            return Progress.MORE, end
        if self._state in (_State.NAME_OF_CALL, _State.NAME_OF_PARAMETER):
            found = (_REST_OF_NAME if self._word else _NAME).match(text, at)
            if found is not None:
                return self._feed_word(found.group(), at, sink)
            if self._word:
                self._end_word()
                return Progress.MORE, at
        return self._punctuation(text[at], at, sink)

    def _feed_word(self, grown: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        if len(self._word) + len(grown) > _MAX_WORD_CHARS:
            return Progress.FAIL, at
        self._word += grown
        sink.skip(grown)
        return Progress.MORE, at + len(grown)

    def _end_word(self) -> None:
        if self._state == _State.NAME_OF_CALL:
            self._name, self._word = self._word, ""
            self._state = _State.PAREN
        else:
            self._state = _State.EQUALS

    def _punctuation(self, char: str, at: int, sink: CallSink) -> tuple[Progress, int]:
        match self._state, char:
            case (_State.EQUALS, "="):
                self._begin_value(sink)
                return Progress.MORE, at + 1
            case (_State.NAME_OF_PARAMETER | _State.AFTER_VALUE, ")") if self._may_close():
                self._close(sink)
                return Progress.MORE, at + 1
            case (_State.NAME_OF_CALL | _State.AFTER_CALL, "]") if self._listed and not (
                self._bare and not self._name
            ):
                sink.skip(char)
                return Progress.END, at + 1
            case (_State.NAME_OF_CALL, _) if not self._listed and self._name:
                return Progress.END, at
            case (_State.AFTER_CALL, other) if not self._listed and other not in ",;":
                self._state = _State.NAME_OF_CALL
                return Progress.MORE, at
        follows = _TRANSITIONS.get((self._state, char))
        if follows is None or (follows == _State.NAME_OF_PARAMETER and not self._accepts(sink)):
            return Progress.FAIL, at
        if self._state == _State.PAREN:
            self._opened, self._empty = False, True
        self._state = follows
        sink.skip(char)
        return Progress.MORE, at + 1

    def _accepts(self, sink: CallSink) -> bool:
        return not self._bare or self._opened or sink.has_tool(self._name)

    def _may_close(self) -> bool:
        return self._state == _State.AFTER_VALUE or not self._word

    def _open(self, sink: CallSink) -> None:
        """Open the call: only a name, a parenthesis and what must follow make it certain."""
        if not self._opened:
            sink.open_call(self._name, None)
            self._opened = True

    def _begin_value(self, sink: CallSink) -> None:
        self._open(sink)
        lead = "{" if self._empty else ", "
        sink.add_arguments(f'{lead}"{self._word}": ', "=")
        self._word, self._empty = "", False
        self._value = self.verbatim = JsonValidator(PYTHON)
        self._state = _State.VALUE

    def _close(self, sink: CallSink) -> None:
        self._open(sink)
        sink.add_arguments("{}" if self._empty else "}", ")")
        sink.close_call()
        self._word = ""
        self._state = _State.AFTER_CALL


_TRANSITIONS = {
    (_State.START, "["): _State.NAME_OF_CALL,
    (_State.PAREN, "("): _State.NAME_OF_PARAMETER,
    (_State.AFTER_VALUE, ","): _State.NAME_OF_PARAMETER,
    (_State.AFTER_CALL, ","): _State.NAME_OF_CALL,
    (_State.AFTER_CALL, ";"): _State.NAME_OF_CALL,
}
