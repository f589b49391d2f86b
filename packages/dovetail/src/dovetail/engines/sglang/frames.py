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

from dovetail.engines.completions.errors import (
    CompletionErrorBody,
    error_from_body,
    error_from_status,
)
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineUnavailable,
    InvalidRequest,
    Overloaded,
    TokenLogprob,
)
from dovetail_tokenizers import Tokenizer

SERVER_NAME = "SGLang"

#: Its words for a prompt, or prompt and answer, that do not fit the window or the cache's pool.
_CONTEXT_OVERFLOW_PHRASES = (
    "model's context length",
    "maximum context length",
    "exceeds the maximum allowed length",
    "exceeds the KV memory budget",
)
_QUEUE_FULL_PHRASE = "queue is full"


class SglangFinishReason(msgspec.Struct, frozen=True, gc=False):
    """How a turn ended. `matched` is the token or text that stopped it."""

    type: str = ""
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


def sglang_error_from_status(status: int, content: bytes) -> DovetailError:
    """The error behind a status that is not 200."""
    return _refine_error(error_from_status(SERVER_NAME, status, content))


def sglang_error_from_body(body: CompletionErrorBody) -> DovetailError:
    """The error that a frame of the stream tells of."""
    return _refine_error(error_from_body(SERVER_NAME, body))


def abort_error(finish_reason: SglangFinishReason) -> DovetailError:
    """The error of a turn that SGLang gave up. Without a status nobody is to blame."""
    message = finish_reason.message or "no reason given"
    if finish_reason.status_code is None:
        return EngineUnavailable(f"{SERVER_NAME} gave the request up: {message}")
    return sglang_error_from_body(
        CompletionErrorBody(message=message, code=finish_reason.status_code)
    )


def _refine_error(error: DovetailError) -> DovetailError:
    if isinstance(error, InvalidRequest) and any(
        words in error.message for words in _CONTEXT_OVERFLOW_PHRASES
    ):
        return ContextOverflow(error.message)
    if isinstance(error, EngineUnavailable) and _QUEUE_FULL_PHRASE in error.message:
        return Overloaded(error.message)
    return error


_DONE = b"[DONE]"
_EMPTY_LIST = msgspec.Raw(b"[]")

#: Logarithm, id, and a text that is not asked for.
SglangLogprob = tuple[float | None, int, str | None]


class SglangMetaInfo(msgspec.Struct, frozen=True, gc=False):
    """What SGLang tells beside the ids. The counts are of all tokens so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: SglangFinishReason | None = None
    output_token_logprobs: msgspec.Raw = _EMPTY_LIST
    output_top_logprobs: msgspec.Raw = _EMPTY_LIST


class SglangFrame(msgspec.Struct, frozen=True, gc=False):
    output_ids: msgspec.Raw = _EMPTY_LIST
    meta_info: SglangMetaInfo = SglangMetaInfo()
    error: CompletionErrorBody | None = None


_decode_frame = msgspec.json.Decoder(SglangFrame).decode
_decode_ids = msgspec.json.Decoder(list[int]).decode
_decode_token_logprobs = msgspec.json.Decoder(list[SglangLogprob] | None).decode
_decode_top_logprobs = msgspec.json.Decoder(list[list[SglangLogprob] | None] | None).decode


class SglangFrameReader:
    """Makes deltas of frames. The one with a `finish` is the last: what follows is not wanted.

    `over` is whether SGLang has ended the turn itself: a turn that is cut here goes on there.
    """

    __slots__ = (
        "_cached_reported",
        "_count",
        "_is_cumulative",
        "_request",
        "_seen_json",
        "_tokenizer",
        "is_finished",
    )

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._count = 0
        self._seen_json = b""
        self._is_cumulative: bool | None = None
        self._cached_reported = False
        self.is_finished = False

    def read(self, payloads: Sequence[bytes]) -> TokenDelta | None:
        """The delta of frames that came together; None while there is nothing to tell."""
        done = payloads[-1].startswith(_DONE)
        frames = payloads[:-1] if done else payloads
        deltas: list[TokenDelta] = []
        for payload in frames[-1:] if self._is_cumulative else frames:
            deltas.append(self._read_frame(payload))
            if deltas[-1].finish is not None:
                return _merge_deltas(deltas)
        if done:
            raise EngineUnavailable(f"{SERVER_NAME} ended its answer without saying why")
        delta = _merge_deltas(deltas)
        return delta if delta.ids or delta.cached is not None else None

    def _read_frame(self, payload: bytes) -> TokenDelta:
        try:
            frame = _decode_frame(payload)
            if frame.error is not None:
                self.is_finished = True
                raise sglang_error_from_body(frame.error)
            return self._to_delta(frame)
        except msgspec.DecodeError as fault:
            raise EngineError(f"{SERVER_NAME} sent what is not understood ({fault})") from fault

    def _to_delta(self, frame: SglangFrame) -> TokenDelta:
        meta, ending = frame.meta_info, frame.meta_info.finish_reason
        if ending is not None and ending.type not in ("stop", "length"):
            self.is_finished = True
            raise abort_error(ending)
        before = self._count
        ids = self._new_ids(frame)
        self._count += len(ids)
        self.is_finished = ending is not None
        kept, finish = self._truncate(ids, before, ending)
        return TokenDelta(
            ids=kept,
            logprobs=self._logprobs(kept, meta, before),
            finish=finish,
            cached=self._take_cached(meta),
            exact=meta.prompt_tokens in (None, len(self._request.prompt)),
        )

    def _new_ids(self, frame: SglangFrame) -> list[int]:
        """The ids that were not told before."""
        count, told = frame.meta_info.completion_tokens, _json_list(frame.output_ids)
        if count is None:
            raise EngineError(
                f"{SERVER_NAME} does not count its tokens: completion_tokens is missing"
            )
        wanted, ending = count - self._count, frame.meta_info.finish_reason
        if (
            self._count
            and self._is_cumulative is not False
            and _continues_list(told, self._seen_json)
        ):
            tail = b"[" + told[len(self._seen_json) :].lstrip(b", ")
            ids = _with_stop_token(_decode_ids(tail), wanted, ending)
            if len(ids) == wanted:
                self._is_cumulative = True
                self._seen_json = told.rstrip(b"] ")
                return ids
        ids = _with_stop_token(_decode_ids(told), wanted, ending)
        if self._is_cumulative or len(ids) != wanted:
            raise EngineError(
                f"{SERVER_NAME} counts {count} tokens and told {self._count} of them before: "
                f"its {len(ids)} ids do not add up with that"
            )
        if self._count:
            self._is_cumulative = False
        else:
            self._seen_json = told.rstrip(b"] ")
        return ids

    def _truncate(
        self, ids: list[int], before: int, finish_reason: SglangFinishReason | None
    ) -> tuple[list[int], Literal["stop", "length"] | None]:
        """The ids up to the end of the turn, or up to the limit: not every server keeps to them."""
        finish: Literal["stop", "length"] | None = None
        if finish_reason is not None:
            finish = "length" if finish_reason.type == "length" else "stop"
        room = self._request.max_tokens - before
        if len(ids) > room or (len(ids) == room and finish is None):
            ids, finish = ids[:room], "length"
        if not self._request.stop_ids.isdisjoint(ids):
            stops = self._request.stop_ids
            place = next(place for place, id in enumerate(ids, 1) if id in stops)
            return ids[:place], "stop"
        return ids, finish

    def _take_cached(self, meta: SglangMetaInfo) -> int | None:
        if self._cached_reported or meta.cached_tokens is None:
            return None
        self._cached_reported = True
        return meta.cached_tokens

    def _logprobs(
        self, ids: list[int], meta: SglangMetaInfo, before: int
    ) -> tuple[TokenLogprob, ...]:
        """One for each id. Those of repeating frames begin with the first token of the turn."""
        wanted = self._request.sampling.logprobs
        if wanted is None or not ids:
            return ()
        sampled = _decode_token_logprobs(meta.output_token_logprobs) or []
        likely = _decode_top_logprobs(meta.output_top_logprobs) or [] if wanted else []
        first = before if self._is_cumulative else 0
        spelled = self._tokenizer.decode
        found: list[TokenLogprob] = []
        for place, id in enumerate(ids, first):
            known = place < len(sampled) and sampled[place][1] == id
            top = likely[place] or [] if known and place < len(likely) else []
            beside = tuple(
                (spelled([other]), _logprob_or_unknown(log)) for log, other, _ in top[:wanted]
            )
            value = sampled[place][0] if known else None
            found.append(TokenLogprob(spelled([id]), _logprob_or_unknown(value), beside))
        return tuple(found)


def _json_list(raw: msgspec.Raw) -> bytes:
    """A list as it was sent; one that is missing is empty."""
    sent = bytes(raw)
    return sent if sent != b"null" else b"[]"


def _continues_list(current: bytes, seen: bytes) -> bool:
    """Whether a list begins with all of another one, whose end is cut: `[123]` not with `[12`."""
    return current.startswith(seen) and current[len(seen) : len(seen) + 1] in (b",", b"]", b" ")


def _with_stop_token(
    ids: list[int], expected: int, finish_reason: SglangFinishReason | None
) -> list[int]:
    """With the token that ended the turn, where it is counted and kept out of the ids."""
    if (
        finish_reason is not None
        and isinstance(finish_reason.matched, int)
        and len(ids) + 1 == expected
    ):
        return [*ids, finish_reason.matched]
    return ids


def _merge_deltas(deltas: Sequence[TokenDelta]) -> TokenDelta:
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


def _logprob_or_unknown(log: float | None) -> float:
    return UNKNOWN_LOGPROB if log is None else log
