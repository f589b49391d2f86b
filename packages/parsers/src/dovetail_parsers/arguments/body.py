"""Notations that end by themselves, and the interface between the machine and their decoders."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments.json_validator import JsonValidator


class Progress(Enum):
    MORE = auto()  # the notation goes on; text that was not read waits for more
    END = auto()  # the notation has ended where reading stopped
    FAIL = auto()  # it is malformed there


class CallSink(Protocol):
    """What a decoder writes to. Each method takes the raw text it accounts for."""

    def skip(self, raw: str) -> None: ...
    def open_call(self, name: str, own_id: str | None) -> None: ...
    def add_arguments(self, text: str, raw: str) -> None: ...
    def close_call(self) -> None: ...
    def diagnose(self, code: str) -> None: ...
    def has_tool(self, name: str) -> bool: ...
    def schema(self) -> Mapping[str, Any]: ...


class BodyDecoder(Protocol):
    """Read one body, fed in pieces of any size."""

    @property
    def verbatim(self) -> JsonValidator | None:
        """The text being read whose output is the open call's arguments, as it stands.

        What passes through it unchanged need not be fed.
        """
        ...

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]: ...

    def finish(self, rest: str, sink: CallSink) -> bool:
        """The output ends here, with `rest` to be accounted for.

        True if the call is complete enough to stand.
        """
        ...


class Body(Protocol):
    """A notation: it can be decoded, and written."""

    def decoder(self) -> BodyDecoder: ...

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        """The body of these calls: all that one body can hold."""
        ...

    @property
    def holds_calls(self) -> bool:
        """Whether names stand inside (whole calls), or only the arguments of the open call."""
        ...

    @property
    def holds_many(self) -> bool: ...
