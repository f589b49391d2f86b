"""Decode the stream of `/completion` into deltas, and recover token ids that it omits.

llama.cpp withholds the ids of tokens that end inside a character until the character is complete,
and then sends only the last id.
"""

import codecs
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.frame_depth import MAX_UNCHECKED_BYTES, check_frame_depth
from dovetail.engines.llamacpp.request import LlamaCppErrorBody, error_from_body
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail.engines.token_ids import FRAME_ERRORS, TokenId
from dovetail_model import EngineError, TokenLogprob
from dovetail_tokenizers import Tokenizer

Utf8Decoder = codecs.getincrementaldecoder("utf-8")
MAX_CANDIDATES = 2  # token sequences per text: a second one shows that the text is ambiguous


class TokenIdRecovery:
    """Recovers omitted ids of one vocabulary.

    Counts `recovered` ids and `ambiguous` occurrences.
    """

    __slots__ = ("_fragments", "_max_fragment_bytes", "_tokenizer", "ambiguous", "recovered")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fragments = _partial_character_tokens(tokenizer)
        self._max_fragment_bytes = max(map(len, self._fragments), default=0)
        self.recovered = 0
        self.ambiguous = 0

    def recover(self, text: str, missing: int, given: Sequence[int]) -> tuple[list[int], bool]:
        """Return all ids of a text of which only the last are given, and whether they are certain.

        If they are not certain, they are the tokenizer's encoding of the text.
        """
        tail = b"".join(map(self._tokenizer.bytes_of, given))
        data = text.encode()
        candidates: list[list[int]] = []
        if given and data.endswith(tail):
            candidates = self._find_spellings(data[: len(data) - len(tail)], missing)
        if len(candidates) == 1:
            self.recovered += missing
            return [*candidates[0], *given], True
        self.ambiguous += 1
        return self._tokenizer.encode_plain(text), False

    def record_unrecoverable(self) -> None:
        """Count omitted ids whose text never arrived."""
        self.ambiguous += 1

    def _find_spellings(self, text_bytes: bytes, count: int) -> list[list[int]]:
        """Return up to two sequences of `count` tokens for these bytes, split mid-character."""
        found: list[list[int]] = []
        pending: list[tuple[int, list[int]]] = [(0, [])]
        while pending and len(found) < MAX_CANDIDATES:
            at, ids = pending.pop()
            if len(ids) == count:
                if at == len(text_bytes):
                    found.append(ids)
                continue
            for end in range(at + 1, min(at + self._max_fragment_bytes, len(text_bytes)) + 1):
                if _ends_mid_character(text_bytes[:end]):
                    more = self._fragments.get(text_bytes[at:end], ())
                    pending += [(end, [*ids, id]) for id in more]
        return found


def _partial_character_tokens(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """Return the tokens that are not valid UTF-8 by themselves, by their bytes."""
    found: dict[bytes, list[int]] = {}
    for id in range(tokenizer.size):
        text_bytes = tokenizer.bytes_of(id)
        if not text_bytes.isascii() and not tokenizer.is_control(id) and not _is_text(text_bytes):
            found.setdefault(text_bytes, []).append(id)
    return found


def _is_text(text_bytes: bytes) -> bool:
    try:
        text_bytes.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ends_mid_character(text_bytes: bytes) -> bool:
    """Return whether this is valid text that ends inside a character."""
    decoder = Utf8Decoder()
    try:
        decoder.decode(text_bytes)
    except UnicodeDecodeError:
        return False
    return bool(decoder.getstate()[0])


class PromptProgress(msgspec.Struct, frozen=True):
    """The progress of the prefill, and the number of cached tokens."""

    cache: int = 0


class LlamaCppLogprob(msgspec.Struct, frozen=True):
    id: int
    token: str = ""
    logprob: float = 0.0
    top_logprobs: "list[LlamaCppLogprob]" = msgspec.field(default_factory=list)


class LlamaCppTimings(msgspec.Struct, frozen=True):
    cache_n: int | None = None


class LlamaCppFrame(msgspec.Struct, frozen=True):
    """The fields of a frame.

    `tokens_predicted` counts all tokens so far, including omitted ones.
    """

    content: str = ""
    tokens: list[TokenId] = msgspec.field(default_factory=list)
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[LlamaCppLogprob] = msgspec.field(default_factory=list)
    timings: LlamaCppTimings | None = None
    error: LlamaCppErrorBody | None = None


class LlamaCppFrameReader:
    """Converts frames to deltas.

    The delta with a `finish` is the last one; later ones are ignored.
    """

    __slots__ = ("_cached", "_count", "_recovery", "_request", "_tokenizer", "generated_ids")

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer, recovery: TokenIdRecovery
    ) -> None:
        self._request = request
        self._tokenizer = tokenizer
        self._recovery = recovery
        self._count = 0
        self._cached: int | None = None
        self.generated_ids = array(request.prompt.typecode)  # the ids of all deltas

    def read(self, payloads: Iterable[bytes]) -> TokenDelta | None:
        """Return the delta of frames that arrived together; None if they only report progress."""
        deltas: list[TokenDelta] = []
        for payload in payloads:
            delta = self._read_frame(payload)
            if delta is not None:
                deltas.append(delta)
                self.generated_ids.extend(delta.ids)
                if delta.finish is not None:
                    break
        return deltas[0] if len(deltas) == 1 else _merge_deltas(deltas) if deltas else None

    def _read_frame(self, data: bytes) -> TokenDelta | None:
        try:
            if len(data) > MAX_UNCHECKED_BYTES:
                check_frame_depth(data)
            frame = msgspec.json.decode(data, type=LlamaCppFrame)
        except FRAME_ERRORS as fault:
            raise EngineError(f"llama.cpp sent a frame that cannot be decoded ({fault})") from fault
        if frame.error is not None:
            raise error_from_body(frame.error)
        if frame.prompt_progress is not None:
            # The ids of a progress frame are meaningless.
            self._cached = frame.prompt_progress.cache
            return None
        return self._read_final(frame) if frame.stop else self._read_tokens(frame)

    def _read_tokens(self, frame: LlamaCppFrame) -> TokenDelta:
        ids, exact = frame.tokens, True
        missing_count = frame.tokens_predicted - self._count - len(ids)
        if missing_count > 0:
            ids, exact = self._recovery.recover(frame.content, missing_count, ids)
        self._count = max(frame.tokens_predicted, self._count + len(ids))
        retained, finish = self._truncate(ids)
        return TokenDelta(
            ids=retained,
            logprobs=self._logprobs(ids, frame.completion_probabilities)[: len(retained)],
            finish=finish,
            cached=self._take_cached(),
            exact=exact,
        )

    def _read_final(self, frame: LlamaCppFrame) -> TokenDelta:
        """Read the last frame, which has no ids. Ids that are still missing cannot be recovered."""
        incomplete = frame.tokens_predicted > self._count
        if incomplete:
            self._recovery.record_unrecoverable()
        if frame.timings is not None and self._count == 0 and self._cached is None:
            self._cached = frame.timings.cache_n
        return TokenDelta(
            ids=[],
            finish="length" if frame.stop_type == "limit" else "stop",
            cached=self._take_cached(),
            exact=not incomplete,
        )

    def _truncate(self, ids: list[int]) -> tuple[list[int], Literal["stop", "length"] | None]:
        """Return the ids up to the end of the turn or up to the limit, and the finish reason."""
        room = self._request.max_tokens - (self._count - len(ids))
        for end, id in enumerate(ids[:room], 1):
            if id in self._request.stop_ids:
                return ids[:end], "stop"
        return ids[:room], "length" if len(ids) >= room else None

    def _take_cached(self) -> int | None:
        cached, self._cached = self._cached, None
        return cached

    def _logprobs(
        self, ids: Sequence[int], reported: Sequence[LlamaCppLogprob]
    ) -> tuple[TokenLogprob, ...]:
        """Return one logprob per id. The reported ones belong to the last ids."""
        count = self._request.sampling.logprobs
        if count is None:
            return ()
        missing = ids[: max(len(ids) - len(reported), 0)]
        unknown = [TokenLogprob(self._tokenizer.decode([id]), UNKNOWN_LOGPROB) for id in missing]
        known = [
            TokenLogprob(
                self._tokenizer.decode([one.id]),
                one.logprob,
                tuple((top.token, top.logprob) for top in one.top_logprobs[:count]),
            )
            for one in reported
        ]
        return (*unknown, *known)


def _merge_deltas(deltas: Sequence[TokenDelta]) -> TokenDelta:
    return TokenDelta(
        ids=[id for delta in deltas for id in delta.ids],
        logprobs=tuple(token for delta in deltas for token in delta.logprobs),
        finish=deltas[-1].finish,
        cached=next((delta.cached for delta in deltas if delta.cached is not None), None),
        exact=all(delta.exact for delta in deltas),
    )
