"""What is kept of a turn: the entry for the ledger, and the seals that thoughts take with them."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan, nan

from dovetail.ledger.entry import (
    FINISH_INTERRUPTED,
    LOGPROB_TYPECODE,
    TOKEN_ID_TYPECODE,
    EntrySpan,
    LedgerEntry,
    normalize_session_name,
)
from dovetail.ledger.seal import PreviousTurnTail, Sealer, SealPayload
from dovetail.ledger.turn_digest import digest_turn, extend_chain
from dovetail.pipeline.block_offsets import BlockOffsets
from dovetail.prompt.prefix_diagnostics import count_common_ids
from dovetail.prompt.prompt import Prompt
from dovetail_model import Fold, Identity, Message, OutputBlock, ReasoningBlock, TextBlock, Turn


@dataclass(frozen=True)
class TurnOwner:
    """Whose turn it is: the tenant, the key of its chain, and what seals its thoughts."""

    tenant: str
    chain_key: bytes
    sealer: Sealer | None = None


@dataclass(frozen=True)
class TurnOrigin:
    """Where a turn comes from. `thinking` is what was asked about thoughts, as JSON.

    `identity` is who asked: the turn belongs to its session.
    """

    entry_id: str
    model: str
    prompt: Prompt
    owner: TurnOwner
    thinking: bytes
    identity: Identity


class TurnRecord:
    """The record of one turn, whose ids and extents others write."""

    __slots__ = (
        "_ids",
        "_logprobs",
        "_offsets",
        "_origin",
        "_reasoning_count",
        "_sealed_until",
        "forced_ranges",
        "model_call_ids",
    )

    def __init__(self, origin: TurnOrigin, ids: "array[int]", offsets: BlockOffsets) -> None:
        self._origin = origin
        self._ids = ids
        self._offsets = offsets
        self.model_call_ids: dict[str, str | None] = {}  # outward call id -> the model's own
        self._reasoning_count = 0
        self._sealed_until = (0, 0)  # ids and spans that the turn's seals hold so far
        self._logprobs: array[float] = array(LOGPROB_TYPECODE)
        self.forced_ranges: list[tuple[int, int]] = []  # ranges of ids that are not the model's own

    def add_logprobs(self, logprobs: Iterable[float]) -> None:
        """What the engine says about the ids that come next. About some it may have said nothing.

        Only what is noted is paid for: an answer without any has no numbers.
        """
        self._logprobs.extend([nan] * (len(self._ids) - len(self._logprobs)))
        self._logprobs.extend(logprobs)

    def build_entry(
        self, message: Message, stop: int | None, finished: bool, created: float
    ) -> LedgerEntry:
        """The turn as the ledger keeps it. One that is not `over` broke off."""
        origin, prompt = self._origin, self._origin.prompt
        parent, keep, suffix = _diff_to_parent(prompt)
        blocks = message.blocks[: self._count_kept_blocks(finished)]
        spans = self._spans(blocks)
        shown = digest_turn(Turn("assistant", blocks))
        kept = self._count_kept_tokens(spans, finished)
        before = prompt.history.chain
        return LedgerEntry(
            id=origin.entry_id,
            tenant=origin.owner.tenant,
            model=origin.model,
            parent=parent,
            prefix_tokens=keep,
            suffix=suffix,
            generated=self._ids[:kept].tobytes(),
            stop=stop,
            spans=spans,
            chain_before=before,
            chain=extend_chain(origin.owner.chain_key, before, shown.digest),
            head=prompt.head.whole,
            finish=message.finish if finished else FINISH_INTERRUPTED,
            created=created,
            lineage=prompt.history.lineage,
            opening=prompt.opening,
            thinking=origin.thinking,
            session=self._session_name(),
            agent=normalize_session_name(origin.identity.agent or ""),
            response_number=origin.identity.response_number,
            logprobs=self._encode_logprobs(kept, stop),
            forced=tuple(
                (start, min(end, kept)) for start, end in self.forced_ranges if start < kept
            ),
        )

    def seal(self, fold: Fold) -> str | None:
        """The seal of the thought that has just ended, with the turn since the seal before it."""
        origin, prompt = self._origin, self._origin.prompt
        self._reasoning_count += 1
        if origin.owner.sealer is None:
            return None
        recalled = prompt.history
        blocks = fold.message().blocks
        ids, spans = self._sealed_until
        reach = self._offsets.end_offsets[-1]
        sealed = SealPayload(
            entry=origin.entry_id,
            parent=recalled.parent.id if recalled.parent is not None else None,
            generated=self._ids[ids:reach].tobytes(),
            spans=self._spans(blocks)[spans:],
            chain_before=recalled.chain,
            head=prompt.head.whole,
            reasoning_index=self._reasoning_count - 1,
            previous=_unsealed_tail(recalled.parent) if self._reasoning_count == 1 else None,
            start=ids,
            opening=prompt.opening,
        )
        self._sealed_until = (reach, len(blocks))
        return origin.owner.sealer.seal(sealed, origin.owner.tenant, origin.model)

    def _session_name(self) -> str:
        """The session that the client names, else the one that the turn goes on with."""
        named, parent = self._origin.identity.session, self._origin.prompt.history.parent
        if named:
            return normalize_session_name(named)
        return (parent.session if parent is not None else "") or self._origin.entry_id

    def _encode_logprobs(self, kept: int, stop: int | None) -> bytes:
        """What is known of the ids that are kept, and of the one that ended the turn."""
        if not self._logprobs:
            return b""
        count = kept + (stop is not None)
        known = self._logprobs[:count]
        known.extend([nan] * (count - len(known)))
        return b"" if all(map(isnan, known)) else known.tobytes()

    def _spans(self, blocks: Sequence[OutputBlock]) -> tuple[EntrySpan, ...]:
        whole = len(self._ids)
        reaches = self._offsets.end_offsets[: len(blocks)]
        return tuple(
            self._span(block, reach or whole) for block, reach in zip(blocks, reaches, strict=True)
        )

    def _span(self, block: OutputBlock, reach: int) -> EntrySpan:
        match block:
            case TextBlock(text=text, raw=raw):
                return EntrySpan("text", raw, text, reach)
            case ReasoningBlock(text=text, raw=raw):
                return EntrySpan("reasoning", raw, text, reach)
            case call:
                return EntrySpan(
                    "call",
                    call.raw,
                    call.arguments,
                    reach,
                    call.name,
                    call.id,
                    self.model_call_ids.get(call.id),
                    call.namespace,
                    call.custom,
                    call.complete,
                )

    def _count_kept_blocks(self, finished: bool) -> int:
        """How many blocks stay with the turn: of one that broke off, those that clients keep.

        A thought that never ended is not among them, unless there is nothing else.
        """
        blocks = len(self._offsets.end_offsets)
        open_thought = self._offsets.in_reasoning and not finished
        return blocks - 1 if open_thought and blocks > 1 else blocks

    def _count_kept_tokens(self, spans: Sequence[EntrySpan], finished: bool) -> int:
        """How many tokens stay with the turn: of one that broke off, those that were told.

        Behind a whole block may be half a marker, which the client has never seen.
        """
        last = spans[-1] if spans else None
        if finished or last is None or last.kind == "text" or not last.complete:
            return len(self._ids)
        return last.tokens


def _diff_to_parent(prompt: Prompt) -> tuple[str | None, int, bytes]:
    """The prompt as what it adds to the parent's whole."""
    ids, recalled = prompt.ids, prompt.history
    if recalled.parent is None or recalled.parent_token_ids is None:
        return None, 0, ids.tobytes()
    keep = len(recalled.parent_token_ids)
    if prompt.origin != "grown":
        keep = count_common_ids(recalled.parent_token_ids, ids)
    return recalled.parent.id, keep, ids[keep:].tobytes()


def _unsealed_tail(parent: LedgerEntry | None) -> PreviousTurnTail | None:
    """What the previous turn said behind its last seal."""
    if parent is None:
        return None
    sealed = [at for at, span in enumerate(parent.spans) if span.kind == "reasoning"]
    last = sealed[-1] if sealed else -1
    start = parent.spans[last].tokens if sealed else 0
    ids = parent.generated[start * array(TOKEN_ID_TYPECODE).itemsize :]
    return PreviousTurnTail(parent.id, start, ids, parent.spans[last + 1 :], parent.stop)
