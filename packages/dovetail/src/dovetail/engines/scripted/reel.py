"""A take being played: which deltas are due, and when the next one is."""

from itertools import pairwise
from pathlib import Path

import msgspec

from dovetail.engines.engine import TokenDelta
from dovetail.engines.scripted.reply import PreparedReply
from dovetail_model import TokenLogprob
from dovetail_tokenizers import Tokenizer

MAX_BATCH_DELTAS = 16  # deltas that leave together before others may run


class ReplyPlayback:
    """Plays a take once. Times are seconds since the first token was due.

    With a `speller`, every token has the probability that the script says.
    """

    __slots__ = (
        "_delta_interval",
        "_cached",
        "_index",
        "_rate",
        "_reply",
        "emitted_tokens",
        "logprob_tokenizer",
    )

    def __init__(self, reply: PreparedReply, rate: float, cached: int) -> None:
        self._reply = reply
        self._rate = rate
        self._delta_interval = reply.source.delay.between
        self._cached = cached
        self._index = 0
        self.emitted_tokens = 0
        self.logprob_tokenizer: Tokenizer | None = None

    @property
    def is_finished(self) -> bool:
        return self._index == len(self._reply.delta_ends)

    @property
    def is_started(self) -> bool:
        return self._index > 0

    @property
    def wait_for(self) -> Path | None:
        """The file that must be there before the next delta may leave."""
        return (
            self._reply.source.wait_for if self._index == len(self._reply.delta_ends) - 1 else None
        )

    @property
    def next_due(self) -> float:
        """When the next delta is to leave."""
        return self._due_at(self._index, self.emitted_tokens)

    def next_batch(self, now: float) -> list[TokenDelta]:
        """The deltas that are due by now, one at least."""
        take, first = self._reply, self._index
        self._index = last = self._batch_end(now)
        ends = take.delta_ends[first:last]
        ids = take.ids
        burst = [TokenDelta(ids[a:b]) for a, b in pairwise((self.emitted_tokens, *ends))]
        if self.logprob_tokenizer is not None:
            burst = [
                self._with_logprobs(delta, end) for delta, end in zip(burst, ends, strict=True)
            ]
        if first == 0:
            burst[0] = msgspec.structs.replace(burst[0], cached=self._cached)
        if last == len(take.delta_ends) and take.finish is not None:
            burst[-1] = msgspec.structs.replace(burst[-1], finish=take.finish)
        self.emitted_tokens = ends[-1]
        return burst

    def _batch_end(self, now: float) -> int:
        most = min(self._index + MAX_BATCH_DELTAS, len(self._reply.delta_ends))
        if (
            self._reply.source.wait_for is not None
            and self._index < len(self._reply.delta_ends) - 1
        ):
            most = min(most, len(self._reply.delta_ends) - 1)
        if not self._rate and not self._delta_interval:
            return most
        last = self._index + 1
        while last < most and self._due_at(last, self._reply.delta_ends[last - 1]) <= now:
            last += 1
        return last

    def _due_at(self, index: int, tokens: int) -> float:
        return index * self._delta_interval + (tokens / self._rate if self._rate else 0.0)

    def _with_logprobs(self, delta: TokenDelta, end: int) -> TokenDelta:
        assert self.logprob_tokenizer is not None
        values = self._reply.source.logprobs
        said = []
        for at, id in enumerate(delta.ids, end - len(delta.ids)):
            token, value = self.logprob_tokenizer.decode([id]), values[min(at, len(values) - 1)]
            said.append(TokenLogprob(token, value, ((token, value),)))
        return msgspec.structs.replace(delta, logprobs=tuple(said))
