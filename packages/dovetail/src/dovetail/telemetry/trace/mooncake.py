"""Convert traces to Mooncake's format, which simulators and load generators read.

A line has lengths, times and block ids: no text, no token ids, no names of tenants or sessions.
"""

from collections.abc import Iterator
from itertools import count

import msgspec

from dovetail.telemetry.trace.reader import Trace, TraceError
from dovetail.telemetry.trace.writer import TraceLine


class MooncakeLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of a trace.

    `timestamp`: milliseconds since the start of the trace.
    `hash_ids`: the ids of the prompt's blocks. Equal ids mean equal prefixes.
    `session_id`: the conversation, if it is known. This field is an extension of the format.
    """

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]
    session_id: str | None = None


def convert_trace(trace: Trace, block_tokens: int | None = None) -> Iterator[MooncakeLine]:
    """Yield the requests of a trace that have a prompt.

    `block_tokens`: a multiple of the block size of the trace, which is the default.
    """
    lines = [line for line in trace.lines if line.prefix_blocks and line.usage is not None]
    recorded = {line.prefix_block_tokens for line in lines}
    if len(recorded) > 1:
        sizes = ", ".join(str(size) for size in sorted(recorded))
        raise TraceError(
            f"the traces have different block sizes ({sizes}); convert them separately"
        )
    size = recorded.pop() if recorded else 1
    step, rest = divmod(block_tokens or size, size)
    if rest or not step:
        raise TraceError(f"--block-size must be a multiple of {size}, the block size of the trace")
    return _convert(lines, size, step)


def _convert(lines: list[TraceLine], size: int, step: int) -> Iterator[MooncakeLine]:
    numbers = count()
    blocks: dict[str, int] = {}
    sessions: dict[tuple[str, str], str] = {}
    for line in lines:
        assert line.usage is not None
        digests = line.prefix_blocks[step - 1 :: step]
        for digest in digests:
            if digest not in blocks:
                blocks[digest] = next(numbers)
        ids = [blocks[digest] for digest in digests]
        if len(ids) * step * size < line.usage.input_tokens:
            ids.append(next(numbers))  # the last block is not complete, so it is never shared
        session = None
        if line.session is not None:
            session = sessions.setdefault((line.tenant, line.session), f"s{len(sessions)}")
        yield MooncakeLine(
            round((line.began - lines[0].began) * 1000),
            line.usage.input_tokens,
            line.usage.output_tokens,
            tuple(ids),
            session,
        )
