"""Traces in Mooncake's format: one JSON object per line, with block ids instead of text."""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.telemetry.trace.mooncake import MooncakeLine


class TraceFormatError(ValueError):
    """A file that is not a trace in Mooncake's format."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    `time`: seconds since the start of the trace.
    `blocks`: the ids of the complete blocks of the prompt.
    """

    time: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: str | None = None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The requests of a trace in the order of their times."""

    requests: tuple[TraceRequest, ...]
    block_tokens: int

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)


def read_trace(path: Path, block_tokens: int | None = None) -> RequestTrace:
    """Read a trace. Without `block_tokens`, the size of the blocks is derived from the lengths."""
    lines = list(_decode_lines(path))
    if not lines:
        raise TraceFormatError(f"{path} contains no requests")
    size = block_tokens or _derive_block_tokens(path, lines)
    return RequestTrace(
        tuple(
            sorted((_to_request(line, size) for line in lines), key=lambda request: request.time)
        ),
        size,
    )


def _to_request(line: MooncakeLine, block_tokens: int) -> TraceRequest:
    return TraceRequest(
        line.timestamp / 1000,
        line.input_length,
        line.output_length,
        line.hash_ids[: line.input_length // block_tokens],
        line.session_id,
    )


def _derive_block_tokens(path: Path, lines: Iterable[MooncakeLine]) -> int:
    """Return the power of two that fits the number of blocks of every prompt."""
    lengths = [(line.input_length, len(line.hash_ids)) for line in lines if line.hash_ids]
    for exponent in range(3, 14):
        size = 1 << exponent
        if lengths and all(tokens <= blocks * size < tokens + size for tokens, blocks in lengths):
            return size
    raise TraceFormatError(
        f"{path}: the block size cannot be derived from `input_length` and `hash_ids`; "
        "set --block-size"
    )


def _decode_lines(path: Path) -> Iterator[MooncakeLine]:
    decoder = msgspec.json.Decoder(MooncakeLine)
    open_file = gzip.open if path.name.endswith(".gz") else open
    try:
        with open_file(path, "rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _decode(decoder, path, number, text)
    except (OSError, EOFError) as error:
        raise TraceFormatError(f"{path} cannot be read: {error}") from error


def _decode(
    decoder: msgspec.json.Decoder[MooncakeLine], path: Path, number: int, text: bytes
) -> MooncakeLine:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        hint = (
            "; convert traces of `dovetail serve` with `dovetail trace mooncake`"
            if b'"schema"' in text
            else ""
        )
        raise TraceFormatError(f"{path}, line {number}: {error}{hint}") from error
