"""Prepare and play back the reply to one request: its ids, its deltas, how it ends."""

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, repeat, takewhile
from pathlib import Path
from typing import Literal

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.scripted.script import ReplyInterruption, Script, ScriptedReply, ScriptError
from dovetail.storage.lru import LruCache
from dovetail_model import TokenLogprob
from dovetail_tokenizers import Tokenizer

MAX_REMEMBERED = 1_024
STOP_LOOKBACK_TOKENS = 256  # at the end of a prompt, in which a stop token is searched


@dataclass(frozen=True)
class PreparedReply:
    """The ids of a reply, split into deltas that end at `delta_ends`, and how it ends."""

    source: ScriptedReply
    ids: list[int]
    delta_ends: Sequence[int]
    finish: Literal["stop", "length"] | None
    interruption: ReplyInterruption | None = None


class ReplyBuilder:
    """Prepares replies. Every reply is tokenized once, at the start, so that errors appear early.

    `stop_ids`: the model's own, the most common one first.
    `chunk`: the default size of a delta.
    `continues`: a prompt that ends with the beginning of its reply is continued.
    """

    def __init__(
        self,
        script: Script,
        tokenizer: Tokenizer,
        chunk: int = 1,
        stop_ids: Sequence[int] = (),
        *,
        continues: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._chunk = chunk
        self._stop_ids = tuple(stop_ids)
        self._continues = continues
        replies = {reply: None for rule in script.rules for reply in rule.replies}
        self._pieces = {reply: self._tokenize(reply) for reply in replies}
        self._explicit_stop_ids = {reply: self._explicit_stop_id(reply) for reply in replies}
        self._full_replies: LruCache[
            tuple[ScriptedReply, int | None, frozenset[int]], PreparedReply
        ] = LruCache(MAX_REMEMBERED)
        # Per request id: its reply, and the reply's offset at the end of a prompt of each length.
        self._progress: LruCache[str, tuple[ScriptedReply, dict[int, int]]] = LruCache(
            MAX_REMEMBERED
        )

    def resume(self, request: EngineRequest) -> PreparedReply | None:
        """Return the rest of a reply, for a request that continues one.

        A server that closes a reasoning span for the model stops the generation and sends a new
        request with the same id for the rest. The script then continues after its own end of the
        span. There may be several spans, each closed in turn.
        """
        reply, offsets = self._progress.peek(request.id) or (None, {})
        length = max((known for known in offsets if known < len(request.prompt)), default=None)
        if reply is None or length is None:
            return None
        whole = self._full_reply(reply, request)
        start = offsets[length]
        skipped = _resume_offset(whole.ids[start:], request.prompt[length:].tolist())
        if skipped is None:
            return None
        offsets[len(request.prompt)] = start + skipped
        rest = replace(whole, interruption=None)
        return _truncate(_skip_tokens(rest, start + skipped), request.max_tokens)

    def build(self, source: ScriptedReply, request: EngineRequest) -> PreparedReply:
        """Return the reply to this request."""
        whole = self._full_reply(source, request)
        replayed = _replayed_tokens(whole.ids, request.prompt) if self._continues else 0
        self._progress.put(request.id, (source, {len(request.prompt): replayed}))
        return _truncate(_skip_tokens(whole, replayed), request.max_tokens)

    def _full_reply(self, source: ScriptedReply, request: EngineRequest) -> PreparedReply:
        """Return the complete reply with its stop token. It is cached: most requests are alike."""
        stop = self._stop_id(source, request)
        key = (source, stop, request.stop_ids)
        reply = self._full_replies.peek(key)
        if reply is None:
            reply = self._build_full_reply(*key)
            self._full_replies.put(key, reply)
        return reply

    def _build_full_reply(
        self, source: ScriptedReply, stop: int | None, stop_ids: frozenset[int]
    ) -> PreparedReply:
        # A selector of its own returns replies that are not in the script.
        pieces = self._pieces.get(source) or self._tokenize(source)
        ids = list(chain.from_iterable(pieces))
        end = next((at for at, id in enumerate(ids) if id in stop_ids), None)
        if end is not None:
            ids = ids[: end + 1]
        elif stop is not None:
            ids.append(stop)
        sizes: Iterable[int] = source.chunk_sizes or (self._chunk,)
        if source.one_delta_per_piece:
            sizes = [*map(len, pieces[:-1]), len(ids)]
        finish = "stop" if end is not None else source.finish or "stop"
        return PreparedReply(source, ids, _delta_ends(sizes, len(ids)), finish, source.interruption)

    def _stop_id(self, source: ScriptedReply, request: EngineRequest) -> int | None:
        """Return the stop token of the reply; None if it has none."""
        if source.stop is False or source.finish == "length":
            return None
        explicit = self._explicit_stop_ids.get(source)
        if explicit is not None:
            return explicit
        wanted = [id for id in self._stop_ids if id in request.stop_ids]
        if wanted or not request.stop_ids:
            return next(iter(wanted or self._stop_ids), None)
        return _default_stop_id(request.prompt, request.stop_ids)

    def _tokenize(self, source: ScriptedReply) -> list[list[int]]:
        tokenizer = self._tokenizer
        pieces = [tokenizer.encode(p) if isinstance(p, str) else list(p) for p in source.pieces]
        unknown = next((id for piece in pieces for id in piece if id >= tokenizer.size), None)
        if unknown is not None:
            raise ScriptError(
                f"{source.location}: token id {unknown} is not in the model's vocabulary"
            )
        return pieces

    def _explicit_stop_id(self, source: ScriptedReply) -> int | None:
        stop = source.stop
        if isinstance(stop, bool):
            return None
        ids = [stop] if isinstance(stop, int) else self._tokenizer.encode(stop)
        if len(ids) != 1 or ids[0] >= self._tokenizer.size:
            raise ScriptError(f"{source.location}: {stop!r} is not a single token of this model")
        return ids[0]


def _default_stop_id(prompt: "array[int]", stop_ids: frozenset[int]) -> int:
    """Return the stop id that last ended a turn of the prompt, else the lowest."""
    if len(stop_ids) > 1:
        for id in reversed(prompt[-STOP_LOOKBACK_TOKENS:]):
            if id in stop_ids:
                return id
    return min(stop_ids)


def _delta_ends(sizes: Iterable[int], length: int) -> list[int]:
    """Return where deltas end. The last size is repeated. There is at least one, for the finish."""
    sizes = tuple(sizes)
    ends = accumulate(chain(sizes, repeat(sizes[-1])))
    return [*takewhile(lambda end: end < length, ends), length]


def _truncate(reply: PreparedReply, max_tokens: int) -> PreparedReply:
    """Truncate the reply at a limit or an interruption."""
    length, finish, interruption = len(reply.ids), reply.finish, reply.interruption
    if length > max_tokens:
        length, finish = max(0, max_tokens), "length"
    if interruption is not None and (interruption.after < length or not reply.ids):
        length, finish = min(interruption.after, length), None
    else:
        interruption = None
    if length == len(reply.ids) and finish == reply.finish and interruption is reply.interruption:
        return reply
    ends = list(reply.delta_ends[: bisect_left(reply.delta_ends, length)])
    if length or finish:
        ends.append(length)
    return PreparedReply(reply.source, reply.ids[:length], ends, finish, interruption)


def _replayed_tokens(ids: Sequence[int], prompt: "array[int]") -> int:
    """Return how many tokens of the reply the prompt ends with."""
    longest = min(len(ids) - 1, len(prompt))
    tail = prompt[len(prompt) - longest :].tolist()
    return next((n for n in range(longest, 0, -1) if tail[longest - n :] == ids[:n]), 0)


def _skip_tokens(reply: PreparedReply, count: int) -> PreparedReply:
    """Return the reply without its first tokens."""
    if not count:
        return reply
    interruption = reply.interruption
    if interruption is not None:
        interruption = replace(interruption, after=max(0, interruption.after - count))
    ends = [end - count for end in reply.delta_ends if end > count]
    return PreparedReply(reply.source, reply.ids[count:], ends, reply.finish, interruption)


def _resume_offset(ids: Sequence[int], added_ids: Sequence[int]) -> int | None:
    """Return where to continue after a prompt that grew by a part of the reply and its closing."""
    common = next((n for n, (a, b) in enumerate(zip(ids, added_ids, strict=False)) if a != b), None)
    if common is None:
        common = min(len(ids), len(added_ids))
    closing = added_ids[common:]
    if common >= len(ids) - 1:
        return None
    found = _find_subsequence(ids, closing, common)
    if found is not None:
        return found + len(closing)
    return common or None


def _find_subsequence(ids: Sequence[int], wanted: Sequence[int], start: int) -> int | None:
    places: Collection[int] = range(start, len(ids) - len(wanted) + 1)
    return next((at for at in places if ids[at : at + len(wanted)] == wanted), None)


MAX_BATCH_DELTAS = 16  # sent together before other tasks may run


class ReplyPlayback:
    """Plays back a prepared reply once. Times are seconds since the first token was due.

    With a `logprob_tokenizer`, every token has the logprob that the script sets.
    """

    __slots__ = (
        "_cached",
        "_delta_interval",
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
        """The file that must exist before the next delta may be sent."""
        return (
            self._reply.source.wait_for if self._index == len(self._reply.delta_ends) - 1 else None
        )

    @property
    def next_due(self) -> float:
        """When the next delta is due."""
        return self._due_at(self._index, self.emitted_tokens)

    def next_batch(self, now: float) -> list[TokenDelta]:
        """Return the deltas that are due by now, at least one."""
        reply, first = self._reply, self._index
        self._index = last = self._batch_end(now)
        ends = reply.delta_ends[first:last]
        ids = reply.ids
        batch = [TokenDelta(ids[a:b]) for a, b in pairwise((self.emitted_tokens, *ends))]
        if self.logprob_tokenizer is not None:
            batch = [
                self._with_logprobs(delta, end) for delta, end in zip(batch, ends, strict=True)
            ]
        if first == 0:
            batch[0] = msgspec.structs.replace(batch[0], cached=self._cached)
        if last == len(reply.delta_ends) and reply.finish is not None:
            batch[-1] = msgspec.structs.replace(batch[-1], finish=reply.finish)
        self.emitted_tokens = ends[-1]
        return batch

    def _batch_end(self, now: float) -> int:
        max_end = min(self._index + MAX_BATCH_DELTAS, len(self._reply.delta_ends))
        if (
            self._reply.source.wait_for is not None
            and self._index < len(self._reply.delta_ends) - 1
        ):
            max_end = min(max_end, len(self._reply.delta_ends) - 1)
        if not self._rate and not self._delta_interval:
            return max_end
        last = self._index + 1
        while last < max_end and self._due_at(last, self._reply.delta_ends[last - 1]) <= now:
            last += 1
        return last

    def _due_at(self, index: int, tokens: int) -> float:
        return index * self._delta_interval + (tokens / self._rate if self._rate else 0.0)

    def _with_logprobs(self, delta: TokenDelta, end: int) -> TokenDelta:
        assert self.logprob_tokenizer is not None
        values = self._reply.source.logprobs
        logprobs = []
        for at, id in enumerate(delta.ids, end - len(delta.ids)):
            token, value = self.logprob_tokenizer.decode([id]), values[min(at, len(values) - 1)]
            logprobs.append(TokenLogprob(token, value, ((token, value),)))
        return msgspec.structs.replace(delta, logprobs=tuple(logprobs))
