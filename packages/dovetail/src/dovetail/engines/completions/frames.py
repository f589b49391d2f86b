"""The stream of `/v1/completions`, frame by frame, as deltas.

This runs for every token: the decoder knows what is read and skips the rest, and all frames that
came together make one delta.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from dovetail.engines.completions.errors import Fault, error_of_fault
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.sampling import BY_ID, UNKNOWN_LOGPROB
from dovetail_model import DovetailError, EngineError, EngineUnavailable, TokenLogprob
from dovetail_tokenizers import Tokenizer

_DONE = b"[DONE]"


class Probabilities(msgspec.Struct, frozen=True, gc=False):
    """What was likely at each place. The sampled token stands among the `top_logprobs`."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """Its fields stand in vLLM's own order: so the decoder finds them fastest."""

    logprobs: Probabilities | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    cached_tokens: int | None = None


class Counts(msgspec.Struct, frozen=True, gc=False):
    """What the server counted. It may tell what was cached only if it was started so."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Frame(msgspec.Struct, frozen=True, gc=False):
    choices: list[Choice] = []
    usage: Counts | None = None
    error: Fault | None = None


_decode = msgspec.json.Decoder(Frame).decode


class FrameReader:
    """Makes deltas of frames. The one with a `finish` is the last.

    The end of the turn is told before what was cached, so the last tokens wait for that: it stands
    in the next frame, which servers send right behind.
    """

    __slots__ = (
        "_cached",
        "_count",
        "_finish",
        "_held",
        "_probable",
        "_request",
        "_tokenizer",
        "_told",
        "_who",
    )

    def __init__(
        self, request: EngineRequest, who: str, tokenizer: Tokenizer | None = None
    ) -> None:
        self._request = request
        self._who = who
        self._tokenizer = tokenizer
        self._count = 0
        self._finish: Literal["stop", "length"] | None = None
        self._held: list[int] = []
        self._probable: tuple[TokenLogprob, ...] = ()
        self._cached: int | None = None
        self._told = False

    @property
    def ended(self) -> bool:
        """Whether the turn's end has come."""
        return self._finish is not None

    @property
    def cached_told(self) -> bool:
        """Whether the server said what was cached, be it nothing."""
        return self._told

    def read(self, payloads: Iterable[bytes]) -> TokenDelta | None:
        """The delta of frames that came together; None while there is nothing to tell."""
        for payload in payloads:
            if payload == _DONE:
                return self.end()
            try:
                frame = _decode(payload)
            except msgspec.DecodeError as fault:
                raise EngineError(f"{self._who} sent what is not understood ({fault})") from fault
            if frame.error is not None:
                raise error_of_fault(self._who, frame.error)
            for choice in frame.choices:
                self._take(choice)
            if frame.usage is not None:
                exact = self._count_up(frame.usage)
                if not frame.choices and self._finish is not None:
                    return self._flush(self._finish, exact)
        if self._finish is not None or not self._held:
            return None
        return self._flush(None)

    def end(self) -> TokenDelta:
        """The last delta, once nothing more will come. There is no end without a finish."""
        if self._finish is None:
            raise EngineUnavailable(f"{self._who} ended its answer without saying why")
        return self._flush(self._finish)

    def _take(self, choice: Choice) -> None:
        ids = choice.token_ids
        if ids is None:
            raise EngineError(
                f"{self._who} does not tell token ids: it must know return_token_ids, "
                "as vLLM does since 0.10.2"
            )
        if self._held:
            self._held += ids
        else:
            self._held = ids
        self._count += len(ids)
        if choice.logprobs is not None:
            wanted = self._request.sampling.logprobs or 0
            self._probable += _logprobs(choice.logprobs, wanted, self._text)
        if choice.finish_reason is not None:
            self._end_turn(choice.finish_reason, choice.stop_reason)

    def _text(self, token: str) -> str:
        """What a token reads as, be it named by its id."""
        id = token.removeprefix(BY_ID)
        if self._tokenizer is None or id == token or not id.isdecimal():
            return token
        return self._tokenizer.decode([int(id)])

    def _end_turn(self, reason: str, stop: int | str | None) -> None:
        if reason != "length" and reason != "stop":
            raise self._broken(reason)
        self._finish = "length" if reason == "length" else "stop"
        if isinstance(stop, int) and (not self._held or self._held[-1] != stop):
            self._held.append(stop)  # a server that keeps it out of the ids tells it here

    def _broken(self, reason: str) -> DovetailError:
        if reason == "abort":
            return EngineUnavailable(f"{self._who} gave the request up")
        return EngineError(f"{self._who} ended its answer with {reason!r}")

    def _count_up(self, usage: Counts) -> bool:
        """Notes what was cached. Whether the server read and wrote as many tokens as we did."""
        details = usage.prompt_tokens_details
        if details is not None and details.cached_tokens is not None and not self._told:
            self._cached = details.cached_tokens
            self._told = True
        read = usage.prompt_tokens == len(self._request.prompt)
        return read and usage.completion_tokens in (None, self._count)

    def _flush(self, finish: Literal["stop", "length"] | None, exact: bool = True) -> TokenDelta:
        delta = TokenDelta(self._held, self._probable, finish, self._cached, exact)
        self._held, self._probable, self._cached = [], (), None
        return delta


def _logprobs(
    told: Probabilities, wanted: int, text: Callable[[str], str]
) -> tuple[TokenLogprob, ...]:
    tops: Sequence[dict[str, float] | None] = told.top_logprobs or [None] * len(told.tokens)
    return tuple(
        TokenLogprob(
            text(token),
            UNKNOWN_LOGPROB if value is None else value,
            tuple((text(one), likely) for one, likely in _best(top, wanted)),
        )
        for token, value, top in zip(told.tokens, told.token_logprobs, tops, strict=False)
    )


def _best(top: dict[str, float] | None, wanted: int) -> list[tuple[str, float]]:
    """The likeliest. Beside them the server lists the sampled token, likely or not."""
    if not top or not wanted:
        return []
    return sorted(top.items(), key=lambda pair: -pair[1])[:wanted]
