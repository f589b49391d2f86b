"""Reads traces back: files as they are written, and those that were put away."""

import gzip
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dovetail.telemetry.record import ToolCallRecord
from dovetail.telemetry.trace.writer import TraceLine


class TraceError(ValueError):
    """A file that is no trace, or cannot be read."""


@dataclass(frozen=True)
class ToolWait:
    """A call of a request, and the later request that brought its result: so long a tool ran."""

    line: TraceLine
    call: ToolCallRecord
    dispatched: float
    result_line: TraceLine

    @property
    def seconds(self) -> float:
        return self.result_line.began - self.line.began - self.dispatched


@dataclass(frozen=True)
class Trace:
    """The requests of some files in the order they began. `unread` lines were none of ours."""

    lines: tuple[TraceLine, ...]
    skipped_lines: int = 0

    def select(self, session: str | None = None, tenant: str | None = None) -> "Trace":
        """What belongs to a session, its sub-agents' sessions included, or to a tenant."""
        lines = tuple(one for one in self.lines if tenant is None or one.tenant == tenant)
        if session is not None:
            family = _session_tree(lines, session)
            lines = tuple(one for one in lines if one.session in family)
        return Trace(lines, self.skipped_lines)

    def tool_waits(self) -> Iterator[ToolWait]:
        """The calls whose results came back, in the order they were made."""
        brought: dict[tuple[str, str], TraceLine] = {}
        for line in self.lines:
            for id in line.results:
                brought.setdefault((line.tenant, id), line)
        for line in self.lines:
            for call in line.calls:
                later, run = brought.get((line.tenant, call.id)), call.dispatched
                if later is not None and run is not None and later.began >= line.began + run:
                    yield ToolWait(line, call, run, later)


def read_traces(paths: Iterable[Path]) -> Trace:
    """All requests of these files. A line that was cut, as by a crash, is passed over."""
    lines: list[TraceLine] = []
    unread = 0
    for path in paths:
        before, strange = len(lines), 0
        for line in _decode_lines(path):
            if line is None:
                strange += 1
            else:
                lines.append(line)
        if strange and len(lines) == before:
            raise TraceError(f"{path} is no trace of `dovetail serve --trace-file`")
        unread += strange
    return Trace(tuple(sorted(lines, key=lambda line: line.began)), unread)


def _decode_lines(path: Path) -> Iterator[TraceLine | None]:
    decoder = msgspec.json.Decoder(TraceLine)
    opened = gzip.open if path.name.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            for text in file:
                if not text.strip():
                    continue
                try:
                    yield decoder.decode(text)
                except (msgspec.MsgspecError, UnicodeError, RecursionError):
                    yield None
    except (OSError, EOFError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error


def _session_tree(lines: Iterable[TraceLine], session: str) -> set[str | None]:
    """A session and those that name it, or one of these, as their parent."""
    family: set[str | None] = {session}
    parents = {line.session: line.parent for line in lines if line.parent is not None}
    for _ in parents:
        found = {child for child, parent in parents.items() if parent in family} - family
        if not found:
            break
        family |= found
    return family
