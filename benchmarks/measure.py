"""Measure the time per chunk on noisy machines.

A stream is timed in windows of a few hundred chunks. Each window counts with the best of all
rounds, so a disturbance affects one window of one round. All sizes feed the same number of chunks
per round (short streams run more often), so each has the same chance of a quiet moment. Times are
CPU time, garbage collection is disabled, and the compared streams alternate.
"""

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

CHUNK = 4  # characters
WINDOW = 500  # chunks

Feed = Callable[[str], object]


def chunks(text: str) -> list[str]:
    """Split a text into chunks. Equal chunks are one object, to exclude the input's memory."""
    seen: dict[str, str] = {}
    pieces = (text[i : i + CHUNK] for i in range(0, len(text), CHUNK))
    return [seen.setdefault(piece, piece) for piece in pieces]


class Timed(ABC):
    """An output to feed `times` per round, and the best time of each window."""

    def __init__(self, count: int, times: int = 1) -> None:
        self.count = count  # chunks of one run
        self.times = times
        self.best: list[int] = []

    @abstractmethod
    def run(self) -> Iterator[int]:
        """Feed the output once. Yields the nanoseconds of each window."""

    def round(self) -> None:
        spent = [ns for _ in range(self.times) for ns in self.run()]
        self.best = list(map(min, self.best, spent)) if self.best else spent

    @property
    def us(self) -> float:
        """Microseconds per chunk."""
        return sum(self.best) / 1000 / (self.times * self.count)


class Stream(Timed):
    """An output fed to one of our parsers."""

    def __init__(self, begin: Callable[[], Feed], pieces: Sequence[str], times: int = 1) -> None:
        super().__init__(len(pieces), times)
        self._begin = begin
        self._windows = [pieces[i : i + WINDOW] for i in range(0, len(pieces), WINDOW)]

    def run(self) -> Iterator[int]:
        feed = self._begin()
        for window in self._windows:
            begun = time.process_time_ns()
            for piece in window:
                feed(piece)
            yield time.process_time_ns() - begun


def measure(streams: Iterable[Timed], rounds: int) -> None:
    """Run the streams alternately."""
    streams = list(streams)
    with quiet():
        for _ in range(rounds):
            for stream in streams:
                stream.round()


@contextmanager
def quiet() -> Iterator[None]:
    """Disable garbage collection in the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
