"""The stream of `/completion`, frame by frame, as deltas."""

import codecs
from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.llamacpp.request import LlamaCppErrorBody, error_from_body
from dovetail.engines.sampling import UNKNOWN_LOGPROB
from dovetail_model import EngineError, TokenLogprob
from dovetail_tokenizers import Tokenizer

Utf8Decoder = codecs.getincrementaldecoder("utf-8")
MAX_CANDIDATES = (
    2  # ways to spell a text that are looked for: the second one shows that there is doubt
)


class TokenIdRecovery:
    """Finds lost ids for one vocabulary, and counts: `recovered` ids, `doubtful` places."""

    __slots__ = ("_fragments", "_max_fragment_bytes", "_tokenizer", "ambiguous", "recovered")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fragments = _partial_character_tokens(tokenizer)
        self._max_fragment_bytes = max(map(len, self._fragments), default=0)
        self.recovered = 0
        self.ambiguous = 0

    def recover(self, text: str, missing: int, given: Sequence[int]) -> tuple[list[int], bool]:
        """All ids of a text of which the last were given, and whether they are certain.

        Where they are not, the ids spell the text in the vocabulary's usual way.
        """
        tail = b"".join(map(self._tokenizer.bytes_of, given))
        whole = text.encode()
        ways: list[list[int]] = []
        if given and whole.endswith(tail):
            ways = self._find_spellings(whole[: len(whole) - len(tail)], missing)
        if len(ways) == 1:
            self.recovered += missing
            return [*ways[0], *given], True
        self.ambiguous += 1
        return self._tokenizer.encode_plain(text), False

    def record_unrecoverable(self) -> None:
        """Ids were lost of which no text ever came."""
        self.ambiguous += 1

    def _find_spellings(self, spelled: bytes, count: int) -> list[list[int]]:
        """Up to two ways to spell these bytes with so many tokens, each ending in a character."""
        found: list[list[int]] = []
        open_ways: list[tuple[int, list[int]]] = [(0, [])]
        while open_ways and len(found) < MAX_CANDIDATES:
            at, ids = open_ways.pop()
            if len(ids) == count:
                if at == len(spelled):
                    found.append(ids)
                continue
            for end in range(at + 1, min(at + self._max_fragment_bytes, len(spelled)) + 1):
                if _ends_mid_character(spelled[:end]):
                    more = self._fragments.get(spelled[at:end], ())
                    open_ways += [(end, [*ids, id]) for id in more]
        return found


def _partial_character_tokens(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """The tokens that are no text by themselves, by what they spell."""
    found: dict[bytes, list[int]] = {}
    for id in range(tokenizer.size):
        spelled = tokenizer.bytes_of(id)
        if not spelled.isascii() and not tokenizer.is_control(id) and not _is_text(spelled):
            found.setdefault(spelled, []).append(id)
    return found


def _is_text(spelled: bytes) -> bool:
    try:
        spelled.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ends_mid_character(spelled: bytes) -> bool:
    """Whether this is text that ends inside a character."""
    decoder = Utf8Decoder()
    try:
        decoder.decode(spelled)
    except UnicodeDecodeError:
        return False
    return bool(decoder.getstate()[0])


class PromptProgress(msgspec.Struct, frozen=True):
    """How far the prompt is read, and how much of it was in the cache."""

    cache: int = 0


class LlamaCppLogprob(msgspec.Struct, frozen=True):
    id: int
    token: str = ""
    logprob: float = 0.0
    top_logprobs: "list[LlamaCppLogprob]" = msgspec.field(default_factory=list)


class LlamaCppTimings(msgspec.Struct, frozen=True):
    cache_n: int | None = None


class LlamaCppFrame(msgspec.Struct, frozen=True):
    """What is read of a frame. `tokens_predicted` counts all tokens so far, also withheld ones."""

    content: str = ""
    tokens: list[int] = msgspec.field(default_factory=list)
    tokens_predicted: int = 0
    stop: bool = False
    stop_type: str = ""
    prompt_progress: PromptProgress | None = None
    completion_probabilities: list[LlamaCppLogprob] = msgspec.field(default_factory=list)
    timings: LlamaCppTimings | None = None
    error: LlamaCppErrorBody | None = None


class LlamaCppFrameReader:
    """Makes deltas of frames. The one with a `finish` is the last: what follows is not wanted."""

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
        """The delta of frames that came together; None where they only tell progress."""
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
            frame = msgspec.json.decode(data, type=LlamaCppFrame)
        except msgspec.DecodeError as fault:
            raise EngineError(f"llama.cpp sent what is not understood ({fault})") from fault
        if frame.error is not None:
            raise error_from_body(frame.error)
        if frame.prompt_progress is not None:
            # The ids of such a frame mean nothing.
            self._cached = frame.prompt_progress.cache
            return None
        return self._read_final(frame) if frame.stop else self._read_tokens(frame)

    def _read_tokens(self, frame: LlamaCppFrame) -> TokenDelta:
        ids, exact = frame.tokens, True
        lost = frame.tokens_predicted - self._count - len(ids)
        if lost > 0:
            ids, exact = self._recovery.recover(frame.content, lost, ids)
        self._count = max(frame.tokens_predicted, self._count + len(ids))
        kept, finish = self._truncate(ids)
        return TokenDelta(
            ids=kept,
            logprobs=self._logprobs(ids, frame.completion_probabilities)[: len(kept)],
            finish=finish,
            cached=self._take_cached(),
            exact=exact,
        )

    def _read_final(self, frame: LlamaCppFrame) -> TokenDelta:
        """The last frame has no ids of its own; what is still missing is lost."""
        lost = frame.tokens_predicted > self._count
        if lost:
            self._recovery.record_unrecoverable()
        if frame.timings is not None and self._count == 0 and self._cached is None:
            self._cached = frame.timings.cache_n
        return TokenDelta(
            ids=[],
            finish="length" if frame.stop_type == "limit" else "stop",
            cached=self._take_cached(),
            exact=not lost,
        )

    def _truncate(self, ids: list[int]) -> tuple[list[int], Literal["stop", "length"] | None]:
        """The ids up to the end of the turn, or up to the limit."""
        room = self._request.max_tokens - (self._count - len(ids))
        for place, id in enumerate(ids[:room], 1):
            if id in self._request.stop_ids:
                return ids[:place], "stop"
        return ids[:room], "length" if len(ids) >= room else None

    def _take_cached(self) -> int | None:
        cached, self._cached = self._cached, None
        return cached

    def _logprobs(
        self, ids: Sequence[int], reported: Sequence[LlamaCppLogprob]
    ) -> tuple[TokenLogprob, ...]:
        """One for each id. Those that were told belong to the last ids."""
        wanted = self._request.sampling.logprobs
        if wanted is None:
            return ()
        missing = ids[: max(len(ids) - len(reported), 0)]
        unknown = [TokenLogprob(self._tokenizer.decode([id]), UNKNOWN_LOGPROB) for id in missing]
        known = [
            TokenLogprob(
                self._tokenizer.decode([one.id]),
                one.logprob,
                tuple((top.token, top.logprob) for top in one.top_logprobs[:wanted]),
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
