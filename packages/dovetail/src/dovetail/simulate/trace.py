"""Traces for simulations: those of a Dovetail server, or in Mooncake's format.

Mooncake's format has one JSON object per line, with block ids instead of text.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from dovetail.telemetry.trace.mooncake import MooncakeLine, convert_trace
from dovetail.telemetry.trace.reader import TraceError, read_traces
from dovetail.telemetry.trace.writer import TRACE_SCHEMA

#: Errors of reading a file that may be compressed and damaged.
_READ_ERRORS = (OSError, EOFError, zlib.error)


class TraceFormatError(ValueError):
    """A file that is not a trace in Mooncake's format."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a trace.

    `time`: seconds since the start of the trace.
    `blocks`: the ids of the complete blocks of the prompt.
    `seconds`: how long it took; None if the trace does not contain it.
    `tools`: the tools that the client runs after it; None if the trace does not contain them.
    """

    time: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    session: str | None = None
    seconds: float | None = None
    tools: tuple[str, ...] | None = None


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
    if _is_server_trace(path):
        return _read_server_trace(path, block_tokens)
    lines = list(_decode_lines(path))
    if not lines:
        raise TraceFormatError(f"{path} contains no requests")
    if block_tokens is not None:
        _check_block_tokens(path, lines, block_tokens)
    size = block_tokens or _derive_block_tokens(path, lines)
    return RequestTrace(
        tuple(
            sorted((_to_request(line, size) for line in lines), key=lambda request: request.time)
        ),
        size,
    )


def _is_server_trace(path: Path) -> bool:
    with suppress(*_READ_ERRORS), _open(path) as file:
        return TRACE_SCHEMA.encode() in file.readline()
    return False  # reading it as the other format reports the error


def _read_server_trace(path: Path, block_tokens: int | None) -> RequestTrace:
    """Read a trace of `dovetail serve --trace-file`, with the durations and tools of requests."""
    try:
        trace = read_traces([path])
        lines = [one for one in trace.lines if one.prefix_blocks and one.usage is not None]
        converted = list(convert_trace(trace, block_tokens))
    except TraceError as error:
        raise TraceFormatError(str(error)) from error
    if not lines:
        raise TraceFormatError(f"{path} contains no requests with a prompt")
    size = block_tokens or lines[0].prefix_block_tokens
    requests = (
        replace(
            _to_request(request, size),
            seconds=line.duration,
            tools=tuple(call.name for call in line.calls if call.name),
        )
        for request, line in zip(converted, lines, strict=True)
    )
    return RequestTrace(tuple(sorted(requests, key=lambda request: request.time)), size)


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


def _check_block_tokens(path: Path, lines: Sequence[MooncakeLine], block_tokens: int) -> None:
    """Raise if the prompts have other numbers of blocks than blocks of this size would give.

    Some traces omit the ids of incomplete blocks, and single lines may be wrong.
    """
    unlike = [
        line
        for line in lines
        if len(line.hash_ids) - line.input_length // block_tokens not in (0, 1)
    ]
    if 2 * len(unlike) > len(lines):
        first = unlike[0]
        raise TraceFormatError(
            f"{path} does not have blocks of {block_tokens} tokens (--block-size): a prompt of "
            f"{first.input_length} tokens has {len(first.hash_ids)} block ids"
        )


def _open(path: Path) -> BinaryIO:
    if path.name.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def _decode_lines(path: Path) -> Iterator[MooncakeLine]:
    decoder = msgspec.json.Decoder(MooncakeLine)
    try:
        with _open(path) as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _decode(decoder, path, number, text)
    except _READ_ERRORS as error:
        raise TraceFormatError(f"{path} cannot be read: {error}") from error


def _decode(
    decoder: msgspec.json.Decoder[MooncakeLine], path: Path, number: int, text: bytes
) -> MooncakeLine:
    try:
        line = decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise TraceFormatError(f"{path}, line {number}: {error}") from error
    for name in ("timestamp", "input_length", "output_length"):
        if (value := getattr(line, name)) < 0:
            raise TraceFormatError(f"{path}, line {number}: `{name}` must be >= 0, got {value}")
    return line
