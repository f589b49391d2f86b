"""Self-delimiting notations, and the interface between the machine and their decoders."""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from dovetail_model import ToolCallBlock
from dovetail_parsers.arguments.json_validator import JsonValidator


class Progress(Enum):
    MORE = auto()  # the notation continues; unread text waits for more
    END = auto()  # the notation has ended where reading stopped
    FAIL = auto()  # the text is malformed there


class CallSink(Protocol):
    """The target of a decoder. Each method takes the raw text that it accounts for."""

    def skip(self, raw: str) -> None: ...
    def open_call(self, name: str, own_id: str | None) -> None: ...
    def add_arguments(self, text: str, raw: str) -> None: ...
    def close_call(self) -> None: ...
    def diagnose(self, code: str) -> None: ...
    def has_tool(self, name: str) -> bool: ...
    def schema(self) -> Mapping[str, Any]: ...


class BodyDecoder(Protocol):
    """Decodes one body, fed in pieces of any size."""

    @property
    def verbatim(self) -> JsonValidator | None:
        """The validator whose output is the open call's arguments, if text passes it verbatim.

        Text that passes through it unchanged need not be fed.
        """
        ...

    def feed(self, text: str, start: int, sink: CallSink) -> tuple[Progress, int]: ...

    def open_brackets(self) -> str:
        """Return the brackets that are open, to find the end of a body that is malformed."""
        ...

    def finish(self, rest: str, sink: CallSink) -> bool:
        """End the output; `rest` remains to be accounted for.

        Return True if the call is complete enough to be used.
        """
        ...


class Body(Protocol):
    """A notation that can be decoded and written."""

    def decoder(self) -> BodyDecoder: ...

    def write(self, calls: Sequence[ToolCallBlock]) -> str:
        """Write the body of these calls, as many as one body can contain."""
        ...

    @property
    def holds_calls(self) -> bool:
        """Whether it contains complete calls with names, or only the open call's arguments."""
        ...

    @property
    def holds_many(self) -> bool: ...
