"""Decode the stream of `/v1/completions` into deltas.

This code runs for every token: the decoder skips fields that are not needed, and frames that
arrived together are merged into one delta.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from dovetail.engines.completions.errors import CompletionErrorBody, error_from_body
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.frame_depth import MAX_UNCHECKED_BYTES, check_frame_depth
from dovetail.engines.sampling import TOKEN_ID_PREFIX, UNKNOWN_LOGPROB
from dovetail.engines.token_ids import FRAME_ERRORS, TokenId
from dovetail_model import DovetailError, EngineError, EngineUnavailable, TokenLogprob
from dovetail_tokenizers import Tokenizer

_DONE = b"[DONE]"


class TokenIdLogprob(msgspec.Struct, frozen=True, gc=False):
    """A token by its id, as in vLLM's token API."""

    token_id: TokenId
    logprob: float | None = None
    top_logprobs: "list[TokenIdLogprob]" = []


class CompletionLogprobs(msgspec.Struct, frozen=True, gc=False):
    """The logprobs of each token. `top_logprobs` include the sampled token.

    `content`: The same in the form of vLLM's token API.
    """

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[TokenIdLogprob] | None = None

    def as_tokens(self) -> "CompletionLogprobs":
        """Return the logprobs with tokens that are identified by their ids."""
        if self.content is None:
            return self
        return CompletionLogprobs(
            [f"{TOKEN_ID_PREFIX}{one.token_id}" for one in self.content],
            [one.logprob for one in self.content],
            [
                {
                    f"{TOKEN_ID_PREFIX}{top.token_id}": top.logprob
                    for top in one.top_logprobs
                    if top.logprob is not None
                }
                for one in self.content
            ],
        )


class CompletionFrameChoice(msgspec.Struct, frozen=True, gc=False):
    """One choice. The fields have vLLM's order, which is the fastest to decode."""

    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: TokenId | str | None = None
    token_ids: list[TokenId] | None = None


class CompletionExtension(msgspec.Struct, frozen=True, gc=False):
    """The ids and the stop token of a frame in Dynamo's form."""

    completion_token_ids: list[TokenId] | None = None
    stop_reason: TokenId | str | None = None


class PromptTokensDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class CompletionFrameUsage(msgspec.Struct, frozen=True, gc=False):
    """The server's token counts. vLLM reports cached tokens only if a flag is set."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionFrame(msgspec.Struct, frozen=True, gc=False):
    choices: list[CompletionFrameChoice] = []
    usage: CompletionFrameUsage | None = None
    nvext: CompletionExtension | None = None
    error: CompletionErrorBody | None = None


_decode = msgspec.json.Decoder(CompletionFrame).decode


class CompletionFrameReader:
    """Converts frames to deltas. The delta with a `finish` is the last one.

    The finish reason arrives before the number of cached tokens. The last tokens are therefore held
    back until the next frame, which servers send immediately.
    """

    __slots__ = (
        "_cached",
        "_cached_reported",
        "_count",
        "_finish",
        "_last_id",
        "_pending_ids",
        "_pending_logprobs",
        "_request",
        "_server_name",
        "_tokenizer",
    )

    def __init__(
        self, request: EngineRequest, server_name: str, tokenizer: Tokenizer | None = None
    ) -> None:
        self._request = request
        self._server_name = server_name
        self._tokenizer = tokenizer
        self._count = 0
        self._finish: Literal["stop", "length"] | None = None
        self._last_id: int | None = None
        self._pending_ids: list[int] = []
        self._pending_logprobs: tuple[TokenLogprob, ...] = ()
        self._cached: int | None = None
        self._cached_reported = False

    @property
    def is_finished(self) -> bool:
        """Return whether the finish reason has arrived."""
        return self._finish is not None

    @property
    def reported_cached_tokens(self) -> bool:
        """Return whether the server reported cached tokens, even if there were none."""
        return self._cached_reported

    def read(self, payloads: Iterable[bytes]) -> TokenDelta | None:
        """Return the delta of frames that arrived together; None if they complete no delta."""
        for payload in payloads:
            if payload == _DONE:
                return self.finish()
            try:
                if len(payload) > MAX_UNCHECKED_BYTES:
                    check_frame_depth(payload)
                frame = _decode(payload)
            except FRAME_ERRORS as fault:
                raise EngineError(
                    f"{self._server_name} sent a frame that cannot be decoded ({fault})"
                ) from fault
            if frame.error is not None:
                raise error_from_body(self._server_name, frame.error)
            for choice in frame.choices:
                self._add_choice(choice, frame.nvext)
            if frame.usage is not None:
                exact = self._add_usage(frame.usage)
                if not frame.choices and self._finish is not None:
                    return self._flush(self._finish, exact)
        if self._finish is not None or not self._pending_ids:
            return None
        return self._flush(None)

    def finish(self) -> TokenDelta:
        """Return the last delta at the end of the stream. Raise if there was no finish reason."""
        if self._finish is None:
            raise EngineUnavailable(
                f"{self._server_name} closed the stream without a finish reason"
            )
        return self._flush(self._finish)

    def _add_choice(
        self, choice: CompletionFrameChoice, extension: CompletionExtension | None
    ) -> None:
        ids = choice.token_ids if extension is None else extension.completion_token_ids
        if ids is None:
            raise EngineError(
                f"{self._server_name} did not return token ids: it must support "
                "`return_token_ids`, as vLLM 0.10.2 and later do, or `completion_token_ids` in "
                "`nvext.extra_fields`, as Dynamo 1.6 does"
            )
        if self._pending_ids:
            self._pending_ids += ids
        else:
            self._pending_ids = ids
        self._count += len(ids)
        if ids:
            self._last_id = ids[-1]
        if choice.logprobs is not None:
            count = self._request.sampling.logprobs or 0
            logprobs = choice.logprobs.as_tokens()
            self._pending_logprobs += _to_token_logprobs(logprobs, count, self._token_text)
        if choice.finish_reason is not None:
            stop = choice.stop_reason if extension is None else extension.stop_reason
            self._set_finish(choice.finish_reason, stop)

    def _token_text(self, token: str) -> str:
        """Return the text of a token that may be identified by its id."""
        id = token.removeprefix(TOKEN_ID_PREFIX)
        if self._tokenizer is None or id == token or not id.isdecimal():
            return token
        return self._tokenizer.decode([int(id)])

    def _set_finish(self, reason: str, stop: int | str | None) -> None:
        if reason != "length" and reason != "stop":
            raise self._finish_reason_error(reason)
        self._finish = "length" if reason == "length" else "stop"
        # vLLM's Rust frontend finishes in a frame of its own: the stop token may be in an earlier
        # one. Some servers report it only here, not in the ids.
        if isinstance(stop, int) and self._last_id != stop:
            self._pending_ids.append(stop)

    def _finish_reason_error(self, reason: str) -> DovetailError:
        if reason == "abort":
            return EngineUnavailable(f"{self._server_name} aborted the request")
        return EngineError(f"{self._server_name} reported the unknown finish reason {reason!r}")

    def _add_usage(self, usage: CompletionFrameUsage) -> bool:
        """Record cached tokens.

        Return whether the server's token counts match those of this reader.
        """
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None and not self._cached_reported:
            self._cached = details.cached_tokens
            self._cached_reported = True
        same_prompt = self._is_prompt_length(usage.prompt_tokens)
        return same_prompt and usage.completion_tokens in (None, self._count)

    def _is_prompt_length(self, count: int) -> bool:
        """Return whether the server can have read the prompt that was sent."""
        return count == len(self._request.prompt)

    def _flush(self, finish: Literal["stop", "length"] | None, exact: bool = True) -> TokenDelta:
        delta = TokenDelta(self._pending_ids, self._pending_logprobs, finish, self._cached, exact)
        self._pending_ids, self._pending_logprobs, self._cached = [], (), None
        return delta


def _to_token_logprobs(
    logprobs: CompletionLogprobs, count: int, text: Callable[[str], str]
) -> tuple[TokenLogprob, ...]:
    tops: Sequence[dict[str, float] | None] = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return tuple(
        TokenLogprob(
            text(token),
            UNKNOWN_LOGPROB if value is None else value,
            tuple((text(one), likely) for one, likely in _top_logprobs(top, count)),
        )
        for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=False)
    )


def _top_logprobs(top: dict[str, float] | None, count: int) -> list[tuple[str, float]]:
    """Return the most likely tokens. The server also lists the sampled token, even if unlikely."""
    if not top or not count:
        return []
    return sorted(top.items(), key=lambda pair: -pair[1])[:count]
