"""Arguments as one JSON value: the object itself, or a string that contains it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments.body import CallSink, Progress
from dovetail_parsers.arguments.json_string import JsonStringDecoder
from dovetail_parsers.arguments.json_validator import JSON, Dialect, JsonValidator
from dovetail_parsers.arguments.notation import write_dialect


class JsonArgumentsDecoder:
    """Reads a value that should be an object, and returns the object's JSON text.

    An object passes verbatim. A string is decoded and its content read as the object; null and the
    empty string mean the empty object. Any other value fails.
    """

    __slots__ = (
        "_blank",
        "_inner",
        "_json",
        "_kind",
        "_shape",
        "_string",
        "_whole",
        "done",
        "failed",
        "verbatim",
    )

    def __init__(self, dialect: Dialect = JSON) -> None:
        self._json = JsonValidator(dialect)
        self._kind = ""  # first character of the value
        self._string = JsonStringDecoder()
        self._blank = True  # whether the string was empty so far
        self._shape = ""  # first character of its content
        self._whole = True  # whether there is nothing after its object
        self._inner = JsonValidator()
        self.verbatim: JsonValidator | None = (
            None  # what reads the object, once it is known to be one
        )
        self.done = False
        self.failed = False

    def feed(self, text: str, start: int = 0) -> tuple[str, int]:
        out, at = self._json.feed(text, start)
        if out and self._kind != "{":
            out = self._other(out)
        self._update()
        return out, at

    def finish(self, rest: str = "") -> str:
        out = self._json.finish(rest)
        if out and self._kind != "{":
            out = self._other(out)
        self._update()
        return out

    def open_brackets(self) -> str:
        return self._json.open_brackets()

    @property
    def repairs(self) -> list[str]:
        return self._json.repairs

    def _other(self, out: str) -> str:
        """Handle output that is not, or not yet known to be, an object's."""
        if not self._kind:
            self._kind = out[0]
            if self._kind == "{":
                self.verbatim = self._json
                return out
            self._json.repairs.append("arguments_not_an_object")
            if self._kind == '"':
                out = out[1:]
        if self._kind == "n":
            return "{}"
        if self._kind != '"':
            return ""
        return self._from_string(self._string.feed(out)[0])

    def _from_string(self, decoded: str) -> str:
        """Handle the content of a string: an object, or an empty text."""
        out, read = self._inner.feed(decoded)
        if out and not self._shape:
            self._shape = out[0]
        self._blank &= not decoded.strip()
        self._whole &= not decoded[read:].strip()
        if self._string.done and self._blank:
            self._kind = "n"
            return "{}"
        return out if self._shape == "{" else ""

    def _update(self) -> None:
        """Fail at the end of a value that is not an object, regardless of chunk boundaries."""
        self.failed = self._json.failed
        if self._json.done:
            held = self._shape == "{" and self._whole and self._inner.done
            self.done = self._kind in "{n" or (self._kind == '"' and held)
            self.failed = not self.done


@dataclass(frozen=True)
class JsonBody:
    """`{"city": "Paris"}`: the arguments of a call that is already open."""

    dialect: Dialect = JSON
    holds_calls: bool = False
    holds_many: bool = False

    def decoder(self) -> "_JsonBodyDecoder":
        return _JsonBodyDecoder(self.dialect)

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        return write_dialect(calls[0].arguments, self.dialect)


class _JsonBodyDecoder:
    __slots__ = ("_arguments", "verbatim")

    def __init__(self, dialect: Dialect) -> None:
        self._arguments = JsonArgumentsDecoder(dialect)
        self.verbatim: JsonValidator | None = None

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]:
        arguments = self._arguments
        out, at = arguments.feed(text, start)
        self.verbatim = arguments.verbatim
        sink.add_arguments(out, text[start:at] if start or at < len(text) else text)
        if arguments.repairs:
            report_repairs(arguments.repairs, sink)
        if arguments.failed:
            return Progress.FAIL, at
        if arguments.done:
            sink.close_call()
            return Progress.END, at
        return Progress.MORE, at

    def open_brackets(self) -> str:
        return self._arguments.open_brackets()

    def finish(self, rest: str, sink: CallSink) -> bool:
        sink.add_arguments(self._arguments.finish(rest), rest)
        report_repairs(self._arguments.repairs, sink)
        if self._arguments.done:
            sink.close_call()
        return self._arguments.done


def report_repairs(repairs: list[str], sink: CallSink) -> None:
    """Report the repairs made so far to the sink, once."""
    for code in repairs:
        sink.diagnose(code)
    repairs.clear()
