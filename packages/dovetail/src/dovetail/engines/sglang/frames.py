"""The stream of `/generate`, frame by frame, as deltas.

By default each frame repeats all ids so far; started with `--incremental-streaming-output` a server
sends only the new ones. Which it is shows in every frame: SGLang counts what it has generated, and
the ids must add up to that count in one of the two ways. Behind the first tokens only one can fit.

Of repeated ids only the new tail is decoded, and of repeating frames that came together only the
last: a stream of n tokens still costs n² bytes to read, but no work in Python for each of them.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from dovetail.engines.completions.errors import Fault
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.engines.sglang.faults import WHO, Ending, abortion, failure
from dovetail_model import EngineError, EngineUnavailable, TokenLogprob
from dovetail_tokenizers import Tokenizer

_DONE = b"[DONE]"
_NOTHING = msgspec.Raw(b"[]")

#: Logarithm, id, and a text that is not asked for.
Probability = tuple[float | None, int, str | None]


class Meta(msgspec.Struct, frozen=True, gc=False):
    """What SGLang tells beside the ids. The counts are of all tokens so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Ending | None = None
    output_token_logprobs: msgspec.Raw = _NOTHING
    output_top_logprobs: msgspec.Raw = _NOTHING


class Frame(msgspec.Struct, frozen=True, gc=False):
    output_ids: msgspec.Raw = _NOTHING
    meta_info: Meta = Meta()
    error: Fault | None = None


_decode_frame = msgspec.json.Decoder(Frame).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_sampled = msgspec.json.Decoder(list[Probability] | None).decode
_decode_likely = msgspec.json.Decoder(list[list[Probability] | None] | None).decode


class FrameReader:
    """Makes deltas of frames. The one with a `finish` is the last: what follows is not wanted.

    `over` is whether SGLang has ended the turn itself: a turn that is cut here goes on there.
    """

    __slots__ = ("_cached", "_count", "_repeats", "_request", "_seen", "_tokenizer", "over")

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._count = 0
        self._seen = b""
        self._repeats: bool | None = None
        self._cached = False
        self.over = False

    def read(self, payloads: Sequence[bytes]) -> TokenDelta | None:
        """The delta of frames that came together; None while there is nothing to tell."""
        done = payloads[-1].startswith(_DONE)
        frames = payloads[:-1] if done else payloads
        deltas: list[TokenDelta] = []
        for payload in frames[-1:] if self._repeats else frames:
            deltas.append(self._take(payload))
            if deltas[-1].finish is not None:
                return _joined(deltas)
        if done:
            raise EngineUnavailable(f"{WHO} ended its answer without saying why")
        delta = _joined(deltas)
        return delta if delta.ids or delta.cached is not None else None

    def _take(self, payload: bytes) -> TokenDelta:
        try:
            frame = _decode_frame(payload)
            if frame.error is not None:
                self.over = True
                raise failure(frame.error)
            return self._delta(frame)
        except msgspec.DecodeError as fault:
            raise EngineError(f"{WHO} sent what is not understood ({fault})") from fault

    def _delta(self, frame: Frame) -> TokenDelta:
        meta, ending = frame.meta_info, frame.meta_info.finish_reason
        if ending is not None and ending.type not in ("stop", "length"):
            self.over = True
            raise abortion(ending)
        before = self._count
        ids = self._fresh(frame)
        self._count += len(ids)
        self.over = ending is not None
        kept, finish = self._cut(ids, before, ending)
        return TokenDelta(
            ids=kept,
            logprobs=self._logprobs(kept, meta, before),
            finish=finish,
            cached=self._tell_cached(meta),
            exact=meta.prompt_tokens in (None, len(self._request.prompt)),
        )

    def _fresh(self, frame: Frame) -> list[int]:
        """The ids that were not told before."""
        count, told = frame.meta_info.completion_tokens, _listed(frame.output_ids)
        if count is None:
            raise EngineError(f"{WHO} does not count its tokens: completion_tokens is missing")
        wanted, ending = count - self._count, frame.meta_info.finish_reason
        if self._count and self._repeats is not False and _goes_on(told, self._seen):
            tail = b"[" + told[len(self._seen) :].lstrip(b", ")
            ids = _whole(_decode_ids(tail), wanted, ending)
            if len(ids) == wanted:
                self._repeats = True
                self._seen = told.rstrip(b"] ")
                return ids
        ids = _whole(_decode_ids(told), wanted, ending)
        if self._repeats or len(ids) != wanted:
            raise EngineError(
                f"{WHO} counts {count} tokens and told {self._count} of them before: "
                f"its {len(ids)} ids do not add up with that"
            )
        if self._count:
            self._repeats = False
        else:
            self._seen = told.rstrip(b"] ")
        return ids

    def _cut(
        self, ids: list[int], before: int, ending: Ending | None
    ) -> tuple[list[int], Literal["stop", "length"] | None]:
        """The ids up to the end of the turn, or up to the limit: not every server keeps to them."""
        finish: Literal["stop", "length"] | None = None
        if ending is not None:
            finish = "length" if ending.type == "length" else "stop"
        room = self._request.max_tokens - before
        if len(ids) > room or (len(ids) == room and finish is None):
            ids, finish = ids[:room], "length"
        if not self._request.stop_ids.isdisjoint(ids):
            stops = self._request.stop_ids
            place = next(place for place, id in enumerate(ids, 1) if id in stops)
            return ids[:place], "stop"
        return ids, finish

    def _tell_cached(self, meta: Meta) -> int | None:
        if self._cached or meta.cached_tokens is None:
            return None
        self._cached = True
        return meta.cached_tokens

    def _logprobs(self, ids: list[int], meta: Meta, before: int) -> tuple[TokenLogprob, ...]:
        """One for each id. Those of repeating frames begin with the first token of the turn."""
        wanted = self._request.sampling.logprobs
        if wanted is None or not ids:
            return ()
        sampled = _decode_sampled(meta.output_token_logprobs) or []
        likely = _decode_likely(meta.output_top_logprobs) or [] if wanted else []
        first = before if self._repeats else 0
        spelled = self._tokenizer.decode
        found: list[TokenLogprob] = []
        for place, id in enumerate(ids, first):
            known = place < len(sampled) and sampled[place][1] == id
            top = likely[place] or [] if known and place < len(likely) else []
            beside = tuple((spelled([other]), _number(log)) for log, other, _ in top[:wanted])
            value = sampled[place][0] if known else None
            found.append(TokenLogprob(spelled([id]), _number(value), beside))
        return tuple(found)


def _listed(raw: msgspec.Raw) -> bytes:
    """A list as it was sent; one that is missing is empty."""
    sent = bytes(raw)
    return sent if sent != b"null" else b"[]"


def _goes_on(told: bytes, seen: bytes) -> bool:
    """Whether a list begins with all of another one, whose end is cut: `[123]` not with `[12`."""
    return told.startswith(seen) and told[len(seen) : len(seen) + 1] in (b",", b"]", b" ")


def _whole(ids: list[int], wanted: int, ending: Ending | None) -> list[int]:
    """With the token that ended the turn, where it is counted and kept out of the ids."""
    if ending is not None and isinstance(ending.matched, int) and len(ids) + 1 == wanted:
        return [*ids, ending.matched]
    return ids


def _joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """Deltas that came together as one."""
    if len(deltas) == 1:
        return deltas[0]
    ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish: Literal["stop", "length"] | None = None
    cached: int | None = None
    exact = True
    for delta in deltas:
        ids += delta.ids
        logprobs += delta.logprobs
        finish = delta.finish
        cached = delta.cached if cached is None else cached
        exact = exact and delta.exact
    return TokenDelta(ids, tuple(logprobs), finish, cached, exact)


def _number(log: float | None) -> float:
    return UNKNOWN_LOGPROB if log is None else log
