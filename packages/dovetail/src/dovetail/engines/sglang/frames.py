"""Decode the stream of `/generate` into deltas.

By default each frame repeats all ids so far. With `--incremental-streaming-output` the server sends
only the new ones. The mode is detected in every frame: SGLang reports the number of generated
tokens, and the ids must add up to that count in one of the two ways. After the first tokens, only
one of them can match.

Of repeated ids only the new tail is decoded, and of cumulative frames that arrived together only
the last one. A stream of n tokens still requires reading n² bytes, but no work in Python per byte.
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
from dovetail.engines.frame_depth import MAX_UNCHECKED_BYTES, check_frame_depth
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.engines.token_ids import FRAME_ERRORS, TokenId
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

#: Phrases in errors about input, or input and output, that exceed the context window or KV cache.
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
    matched: TokenId | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


def sglang_error_from_status(status: int, content: bytes) -> DovetailError:
    """Return the error for a status other than 200."""
    return _refine_error(error_from_status(SERVER_NAME, status, content))


def sglang_error_from_body(body: CompletionErrorBody) -> DovetailError:
    """Return the error for an error frame of a stream."""
    return _refine_error(error_from_body(SERVER_NAME, body))


def abort_error(finish_reason: SglangFinishReason) -> DovetailError:
    """Return the error for a turn that SGLang aborted. Without a status it is an engine error."""
    message = finish_reason.message or "no reason given"
    if finish_reason.status_code is None:
        return EngineUnavailable(f"{SERVER_NAME} aborted the request: {message}")
    return sglang_error_from_body(
        CompletionErrorBody(message=message, code=finish_reason.status_code)
    )


def _refine_error(error: DovetailError) -> DovetailError:
    if isinstance(error, InvalidRequest) and any(
        phrase in error.message for phrase in _CONTEXT_OVERFLOW_PHRASES
    ):
        return ContextOverflow(error.message)
    if isinstance(error, EngineUnavailable) and _QUEUE_FULL_PHRASE in error.message:
        return Overloaded(error.message)
    return error


_DONE = b"[DONE]"
_EMPTY_LIST = msgspec.Raw(b"[]")

#: Logprob, id, and the text, which is not requested.
SglangLogprob = tuple[float | None, int, str | None]


class SglangMetaInfo(msgspec.Struct, frozen=True, gc=False):
    """The metadata of a frame. The counts include all tokens so far."""

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
_decode_ids = msgspec.json.Decoder(list[TokenId]).decode
_decode_token_logprobs = msgspec.json.Decoder(list[SglangLogprob] | None).decode
_decode_top_logprobs = msgspec.json.Decoder(list[list[SglangLogprob] | None] | None).decode


class SglangFrameReader:
    """Converts frames to deltas.

    The delta with a `finish` is the last one; later frames are ignored.

    `is_finished`: whether SGLang itself has ended the turn. A turn that was truncated by this
    reader still runs in SGLang.
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
        """Return the delta of frames that arrived together; None if they complete no delta."""
        done = payloads[-1].startswith(_DONE)
        frames = payloads[:-1] if done else payloads
        deltas: list[TokenDelta] = []
        for payload in frames[-1:] if self._is_cumulative else frames:
            deltas.append(self._read_frame(payload))
            if deltas[-1].finish is not None:
                return _merge_deltas(deltas)
        if done:
            raise EngineUnavailable(f"{SERVER_NAME} closed the stream without a finish reason")
        delta = _merge_deltas(deltas)
        return delta if delta.ids or delta.cached is not None else None

    def _read_frame(self, payload: bytes) -> TokenDelta:
        try:
            if len(payload) > MAX_UNCHECKED_BYTES:
                check_frame_depth(payload)
            frame = _decode_frame(payload)
            if frame.error is not None:
                self.is_finished = True
                raise sglang_error_from_body(frame.error)
            return self._to_delta(frame)
        except FRAME_ERRORS as fault:
            raise EngineError(
                f"{SERVER_NAME} sent a frame that cannot be decoded ({fault})"
            ) from fault

    def _to_delta(self, frame: SglangFrame) -> TokenDelta:
        meta, finish_reason = frame.meta_info, frame.meta_info.finish_reason
        if finish_reason is not None and finish_reason.type not in ("stop", "length"):
            self.is_finished = True
            raise abort_error(finish_reason)
        before = self._count
        ids = self._new_ids(frame)
        self._count += len(ids)
        self.is_finished = finish_reason is not None
        retained, finish = self._truncate(ids, before, finish_reason)
        return TokenDelta(
            ids=retained,
            logprobs=self._logprobs(retained, meta, before),
            finish=finish,
            cached=self._take_cached(meta),
            exact=meta.prompt_tokens in (None, len(self._request.prompt)),
        )

    def _new_ids(self, frame: SglangFrame) -> list[int]:
        """Return the ids that were not in earlier frames."""
        count, id_json = frame.meta_info.completion_tokens, _json_list(frame.output_ids)
        if count is None:
            raise EngineError(f"{SERVER_NAME} sent a frame without completion_tokens")
        expected, finish_reason = count - self._count, frame.meta_info.finish_reason
        if (
            self._count
            and self._is_cumulative is not False
            and _continues_list(id_json, self._seen_json)
        ):
            tail = b"[" + id_json[len(self._seen_json) :].lstrip(b", ")
            ids = _with_stop_token(_decode_ids(tail), expected, finish_reason)
            if len(ids) == expected:
                self._is_cumulative = True
                self._seen_json = id_json.rstrip(b"] ")
                return ids
        ids = _with_stop_token(_decode_ids(id_json), expected, finish_reason)
        if self._is_cumulative or len(ids) != expected:
            raise EngineError(
                f"{SERVER_NAME} reported {count} generated tokens after {self._count} were "
                f"received, but the {len(ids)} ids in the frame do not match that count"
            )
        if self._count:
            self._is_cumulative = False
        else:
            self._seen_json = id_json.rstrip(b"] ")
        return ids

    def _truncate(
        self, ids: list[int], before: int, finish_reason: SglangFinishReason | None
    ) -> tuple[list[int], Literal["stop", "length"] | None]:
        """Return the ids up to the stop token or the limit, which some servers do not enforce."""
        finish: Literal["stop", "length"] | None = None
        if finish_reason is not None:
            finish = "length" if finish_reason.type == "length" else "stop"
        room = self._request.max_tokens - before
        if len(ids) > room or (len(ids) == room and finish is None):
            ids, finish = ids[:room], "length"
        if not self._request.stop_ids.isdisjoint(ids):
            stops = self._request.stop_ids
            index = next(index for index, id in enumerate(ids, 1) if id in stops)
            return ids[:index], "stop"
        return ids, finish

    def _take_cached(self, meta: SglangMetaInfo) -> int | None:
        if self._cached_reported or meta.cached_tokens is None:
            return None
        self._cached_reported = True
        return meta.cached_tokens

    def _logprobs(
        self, ids: list[int], meta: SglangMetaInfo, before: int
    ) -> tuple[TokenLogprob, ...]:
        """Return one logprob per id.

        Those of cumulative frames begin with the turn's first token.
        """
        count = self._request.sampling.logprobs
        if count is None or not ids:
            return ()
        sampled = _decode_token_logprobs(meta.output_token_logprobs) or []
        tops = _decode_top_logprobs(meta.output_top_logprobs) or [] if count else []
        first = before if self._is_cumulative else 0
        decode = self._tokenizer.decode
        found: list[TokenLogprob] = []
        for index, id in enumerate(ids, first):
            known = index < len(sampled) and sampled[index][1] == id
            top = tops[index] or [] if known and index < len(tops) else []
            top_logprobs = tuple(
                (decode([other]), _logprob_or_unknown(log)) for log, other, _ in top[:count]
            )
            value = sampled[index][0] if known else None
            found.append(TokenLogprob(decode([id]), _logprob_or_unknown(value), top_logprobs))
        return tuple(found)


def _json_list(raw: msgspec.Raw) -> bytes:
    """Return a list as it was sent; a missing list is empty."""
    sent = bytes(raw)
    return sent if sent != b"null" else b"[]"


def _continues_list(current: bytes, seen: bytes) -> bool:
    """Return whether a JSON list begins with all items of another list without its `]`.

    The items must be complete: `[123]` does not begin with `[12`.
    """
    return current.startswith(seen) and current[len(seen) : len(seen) + 1] in (b",", b"]", b" ")


def _with_stop_token(
    ids: list[int], expected: int, finish_reason: SglangFinishReason | None
) -> list[int]:
    """Add the token that ended the turn if it is counted but not in the ids."""
    if (
        finish_reason is not None
        and isinstance(finish_reason.matched, int)
        and len(ids) + 1 == expected
    ):
        return [*ids, finish_reason.matched]
    return ids


def _merge_deltas(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """Merge deltas that arrived together."""
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
