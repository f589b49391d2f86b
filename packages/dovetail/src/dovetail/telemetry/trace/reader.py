"""Read trace files, including rotated ones."""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.telemetry.record import RequestRecord, ToolCallRecord
from dovetail.telemetry.trace.writer import TraceLine


class TraceError(ValueError):
    """A file that is not a trace or cannot be read."""


@dataclass(frozen=True)
class ToolWait:
    """A tool call and the later request with its result."""

    line: RequestRecord
    call: ToolCallRecord
    dispatched: float
    result_line: RequestRecord

    @property
    def seconds(self) -> float:
        return self.result_line.began - self.line.began - self.dispatched


@dataclass(frozen=True)
class Trace:
    """The requests of trace files in order of their start.

    `skipped_lines`: the number of lines that could not be decoded.
    """

    lines: tuple[TraceLine, ...]
    skipped_lines: int = 0

    def select(self, session: str | None = None, tenant: str | None = None) -> "Trace":
        """Return the requests of a tenant, or of a session and the sessions of its sub-agents."""
        lines = tuple(one for one in self.lines if tenant is None or one.tenant == tenant)
        if session is not None:
            tree = _session_tree(lines, session)
            lines = tuple(one for one in lines if one.session in tree)
        return Trace(lines, self.skipped_lines)

    def tool_waits(self) -> Iterator[ToolWait]:
        """Yield the calls with results, in the order of the calls."""
        return find_tool_waits(self.lines)


def find_tool_waits(lines: Sequence[RequestRecord]) -> Iterator[ToolWait]:
    """Yield the calls of these requests with results, in the order of the calls."""
    by_result: dict[tuple[str, str], RequestRecord] = {}
    for line in lines:
        for id in line.results:
            by_result.setdefault((line.tenant, id), line)
    for line in lines:
        for call in line.calls:
            later, dispatched = by_result.get((line.tenant, call.id)), call.dispatched
            if (
                later is not None
                and dispatched is not None
                and later.began >= line.began + dispatched
            ):
                yield ToolWait(line, call, dispatched, later)


def read_traces(paths: Iterable[Path]) -> Trace:
    """Read all requests of these files. Truncated lines, as after a crash, are skipped."""
    lines: list[TraceLine] = []
    skipped = 0
    for path in paths:
        before, invalid = len(lines), 0
        for line in _decode_lines(path):
            if line is None:
                invalid += 1
            else:
                lines.append(line)
        if invalid and len(lines) == before:
            raise TraceError(f"{path} is not a trace of `dovetail serve --trace-file`")
        skipped += invalid
    return Trace(tuple(sorted(lines, key=lambda line: line.began)), skipped)


def _decode_lines(path: Path) -> Iterator[TraceLine | None]:
    decoder = msgspec.json.Decoder(TraceLine)
    open_file = gzip.open if path.name.endswith(".gz") else open
    try:
        with open_file(path, "rb") as file:
            for text in file:
                if not text.strip():
                    continue
                try:
                    yield decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeError, RecursionError):
                    yield None
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _session_tree(lines: Iterable[TraceLine], session: str) -> set[str | None]:
    """Return a session and its descendants."""
    tree: set[str | None] = {session}
    parents = {line.session: line.parent for line in lines if line.parent is not None}
    for _ in parents:
        children = {child for child, parent in parents.items() if parent in tree} - tree
        if not children:
            break
        tree |= children
    return tree
