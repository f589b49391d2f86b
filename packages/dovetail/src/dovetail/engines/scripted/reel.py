"""A take being played: which deltas are due, and when the next one is."""

from itertools import pairwise
from pathlib import Path

import msgspec

from dovetail.engines.engine import TokenDelta
from dovetail.engines.scripted.reply import Take
from dovetail_model import TokenLogprob
from dovetail_tokenizers import Tokenizer

BURST = 16  # deltas that leave together before others may run


class Reel:
    """Plays a take once. Times are seconds since the first token was due.

    With a `speller`, every token has the probability that the script says.
    """

    __slots__ = ("_between", "_cached", "_index", "_rate", "_take", "played", "speller")

    def __init__(self, take: Take, rate: float, cached: int) -> None:
        self._take = take
        self._rate = rate
        self._between = take.answer.delay.between
        self._cached = cached
        self._index = 0
        self.played = 0
        self.speller: Tokenizer | None = None

    @property
    def done(self) -> bool:
        return self._index == len(self._take.ends)

    @property
    def begun(self) -> bool:
        return self._index > 0

    @property
    def wait_for(self) -> Path | None:
        """The file that must be there before the next delta may leave."""
        return self._take.answer.wait_for if self._index == len(self._take.ends) - 1 else None

    @property
    def due(self) -> float:
        """When the next delta is to leave."""
        return self._due(self._index, self.played)

    def burst(self, now: float) -> list[TokenDelta]:
        """The deltas that are due by now, one at least."""
        take, first = self._take, self._index
        self._index = last = self._last(now)
        ends = take.ends[first:last]
        ids = take.ids
        burst = [TokenDelta(ids[a:b]) for a, b in pairwise((self.played, *ends))]
        if self.speller is not None:
            burst = [self._spelled(delta, end) for delta, end in zip(burst, ends, strict=True)]
        if first == 0:
            burst[0] = msgspec.structs.replace(burst[0], cached=self._cached)
        if last == len(take.ends) and take.finish is not None:
            burst[-1] = msgspec.structs.replace(burst[-1], finish=take.finish)
        self.played = ends[-1]
        return burst

    def _last(self, now: float) -> int:
        most = min(self._index + BURST, len(self._take.ends))
        if self._take.answer.wait_for is not None and self._index < len(self._take.ends) - 1:
            most = min(most, len(self._take.ends) - 1)
        if not self._rate and not self._between:
            return most
        last = self._index + 1
        while last < most and self._due(last, self._take.ends[last - 1]) <= now:
            last += 1
        return last

    def _due(self, index: int, tokens: int) -> float:
        return index * self._between + (tokens / self._rate if self._rate else 0.0)

    def _spelled(self, delta: TokenDelta, end: int) -> TokenDelta:
        assert self.speller is not None
        values = self._take.answer.logprobs
        said = []
        for at, id in enumerate(delta.ids, end - len(delta.ids)):
            token, value = self.speller.decode([id]), values[min(at, len(values) - 1)]
            said.append(TokenLogprob(token, value, ((token, value),)))
        return msgspec.structs.replace(delta, logprobs=tuple(said))
