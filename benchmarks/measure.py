"""Time per chunk on machines that are noisy.

A stream is timed in windows of a few hundred chunks. Every window keeps the best of all rounds, so
one disturbance spoils one window of one round. All sizes feed the same number of chunks in a round,
the short streams simply more often: each then has the same chance to meet a quiet moment. Time is
processor time, the collector is off, and what is compared is measured in turns.
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
    """The text in pieces. Equal pieces are one object: the input's memory is not what we ask."""
    seen: dict[str, str] = {}
    pieces = (text[i : i + CHUNK] for i in range(0, len(text), CHUNK))
    return [seen.setdefault(piece, piece) for piece in pieces]


class Timed(ABC):
    """One output to feed, `times` in a round, and the best that its windows have done."""

    def __init__(self, count: int, times: int = 1) -> None:
        self.count = count  # chunks of one run
        self.times = times
        self.best: list[int] = []

    @abstractmethod
    def run(self) -> Iterator[int]:
        """Feeds it anew: the nanoseconds of every window."""

    def round(self) -> None:
        spent = [ns for _ in range(self.times) for ns in self.run()]
        self.best = list(map(min, self.best, spent)) if self.best else spent

    @property
    def us(self) -> float:
        """Microseconds per chunk."""
        return sum(self.best) / 1000 / (self.times * self.count)


class Stream(Timed):
    """An output fed to a parser of ours."""

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
    """Runs the streams in turns."""
    streams = list(streams)
    with quiet():
        for _ in range(rounds):
            for stream in streams:
                stream.round()


@contextmanager
def quiet() -> Iterator[None]:
    """The garbage collector stays out of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
