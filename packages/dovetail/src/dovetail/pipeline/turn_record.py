"""The record of a turn: its ledger entry and the seals of its reasoning."""

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
from dovetail.prompt.conversation_state import encode_state
from dovetail.prompt.prefix_diagnostics import count_common_ids
from dovetail.prompt.prompt import Prompt
from dovetail_model import Fold, Identity, Message, OutputBlock, ReasoningBlock, TextBlock, Turn


@dataclass(frozen=True)
class TurnOwner:
    """The owner of a turn: the tenant, its chain key, and the sealer for its reasoning."""

    tenant: str
    chain_key: bytes
    sealer: Sealer | None = None


@dataclass(frozen=True)
class TurnOrigin:
    """The request that produced a turn.

    `thinking`: the reasoning settings of the request as JSON.
    `identity`: the client and the session that the turn belongs to.
    """

    entry_id: str
    model: str
    prompt: Prompt
    owner: TurnOwner
    thinking: bytes
    identity: Identity


class TurnRecord:
    """Records one turn. Its ids and block offsets are shared with the generation."""

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
        self.model_call_ids: dict[str, str | None] = {}  # public call id -> the model's id
        self._reasoning_count = 0
        self._sealed_until = (0, 0)  # number of ids and spans that are sealed so far
        self._logprobs: array[float] = array(LOGPROB_TYPECODE)
        self.forced_ranges: list[tuple[int, int]] = []  # ids not chosen by the model

    def add_logprobs(self, logprobs: Iterable[float]) -> None:
        """Add the logprobs of the next ids. Earlier ids without a logprob get NaN.

        A turn without logprobs stores an empty value.
        """
        self._logprobs.extend([nan] * (len(self._ids) - len(self._logprobs)))
        self._logprobs.extend(logprobs)

    def drop_logprobs_after_ids(self) -> None:
        """Drop the logprob of a stop token that does not end the turn."""
        del self._logprobs[len(self._ids) :]

    def copy_start(self, other: "TurnRecord", count: int) -> None:
        """Copy what another record holds about the first `count` ids of the same turn."""
        self._logprobs = other._logprobs[:count]
        self.forced_ranges = [(start, end) for start, end in other.forced_ranges if end <= count]

    def build_entry(
        self, message: Message, stop: int | None, finish: str | None, created: float
    ) -> LedgerEntry:
        """Build the ledger entry. A turn without a `finish` was interrupted."""
        finished = finish is not None
        origin, prompt = self._origin, self._origin.prompt
        parent, prefix_tokens, suffix = _diff_to_parent(prompt)
        blocks = message.blocks[: self._count_recorded_blocks(finished)]
        spans = self._spans(blocks)
        shown = digest_turn(Turn("assistant", blocks))
        token_count = self._count_recorded_tokens(spans, finished)
        chain_before = prompt.history.chain
        return LedgerEntry(
            id=origin.entry_id,
            tenant=origin.owner.tenant,
            model=origin.model,
            parent=parent,
            prefix_tokens=prefix_tokens,
            suffix=suffix,
            generated=self._ids[:token_count].tobytes(),
            stop=stop,
            spans=spans,
            chain_before=chain_before,
            chain=extend_chain(origin.owner.chain_key, chain_before, shown.digest),
            head=prompt.head.whole,
            finish=finish or FINISH_INTERRUPTED,
            created=created,
            lineage=prompt.history.lineage,
            opening=prompt.opening,
            thinking=origin.thinking,
            session=self._session_name(),
            agent=normalize_session_name(origin.identity.agent or ""),
            response_number=origin.identity.response_number,
            logprobs=self._encode_logprobs(token_count, stop),
            forced=tuple(
                (start, min(end, token_count))
                for start, end in self.forced_ranges
                if start < token_count
            ),
            state=encode_state(prompt.state),
            state_entry=prompt.state.entry_id,
            names_session=bool(origin.identity.session),
        )

    def seal(self, fold: Fold) -> str | None:
        """Seal the reasoning that has just ended, with the output since the previous seal."""
        origin, prompt = self._origin, self._origin.prompt
        self._reasoning_count += 1
        if origin.owner.sealer is None:
            return None
        history = prompt.history
        blocks = fold.message().blocks
        ids, spans = self._sealed_until
        end = self._offsets.end_offsets[-1]
        payload = SealPayload(
            entry=origin.entry_id,
            parent=history.parent.id if history.parent is not None else None,
            generated=self._ids[ids:end].tobytes(),
            spans=self._spans(blocks)[spans:],
            chain_before=history.chain,
            head=prompt.head.whole,
            reasoning_index=self._reasoning_count - 1,
            previous=_unsealed_tail(history.parent) if self._reasoning_count == 1 else None,
            start=ids,
            opening=prompt.opening,
        )
        self._sealed_until = (end, len(blocks))
        return origin.owner.sealer.seal(payload, origin.owner.tenant, origin.model)

    def _session_name(self) -> str:
        """Return the session that the client named, else the session of the parent turn."""
        named, parent = self._origin.identity.session, self._origin.prompt.history.parent
        if named:
            return normalize_session_name(named)
        return (parent.session if parent is not None else "") or self._origin.entry_id

    def _encode_logprobs(self, token_count: int, stop: int | None) -> bytes:
        """Encode the logprobs of the recorded ids and of the stop token."""
        if not self._logprobs:
            return b""
        count = token_count + (stop is not None)
        known = self._logprobs[:count]
        known.extend([nan] * (count - len(known)))
        return b"" if all(map(isnan, known)) else known.tobytes()

    def _spans(self, blocks: Sequence[OutputBlock]) -> tuple[EntrySpan, ...]:
        token_count = len(self._ids)
        ends = self._offsets.end_offsets[: len(blocks)]
        return tuple(
            self._span(block, reach or token_count)
            for block, reach in zip(blocks, ends, strict=True)
        )

    def _span(self, block: OutputBlock, end: int) -> EntrySpan:
        match block:
            case TextBlock(text=text, raw=raw):
                return EntrySpan("text", raw, text, end)
            case ReasoningBlock(text=text, raw=raw):
                return EntrySpan("reasoning", raw, text, end)
            case call:
                return EntrySpan(
                    "call",
                    call.raw,
                    call.arguments,
                    end,
                    call.name,
                    call.id,
                    self.model_call_ids.get(call.id),
                    call.namespace,
                    call.custom,
                    call.complete,
                )

    def _count_recorded_blocks(self, finished: bool) -> int:
        """Count the blocks to record: for an interrupted turn, those that clients preserve.

        Clients drop reasoning that did not end, so it is recorded only if it is the only block.
        """
        blocks = len(self._offsets.end_offsets)
        open_reasoning = self._offsets.in_reasoning and not finished
        return blocks - 1 if open_reasoning and blocks > 1 else blocks

    def _count_recorded_tokens(self, spans: Sequence[EntrySpan], finished: bool) -> int:
        """Count the tokens to record: for an interrupted turn, those that were emitted.

        A complete block may be followed by an incomplete marker, which the client never received.
        """
        last = spans[-1] if spans else None
        if finished or last is None or last.kind == "text" or not last.complete:
            return len(self._ids)
        return last.tokens


def _diff_to_parent(prompt: Prompt) -> tuple[str | None, int, bytes]:
    """Return the id of the parent, the length of the common prefix, and the new ids."""
    ids, history = prompt.ids, prompt.history
    if history.parent is None or history.parent_token_ids is None:
        return None, 0, ids.tobytes()
    prefix_tokens = len(history.parent_token_ids)
    if prompt.origin != "grown":
        prefix_tokens = count_common_ids(history.parent_token_ids[:], ids)
    return history.parent.id, prefix_tokens, ids[prefix_tokens:].tobytes()


def _unsealed_tail(parent: LedgerEntry | None) -> PreviousTurnTail | None:
    """Return the output of the previous turn after its last seal."""
    if parent is None:
        return None
    sealed = [at for at, span in enumerate(parent.spans) if span.kind == "reasoning"]
    last = sealed[-1] if sealed else -1
    start = parent.spans[last].tokens if sealed else 0
    ids = parent.generated[start * array(TOKEN_ID_TYPECODE).itemsize :]
    return PreviousTurnTail(parent.id, start, ids, parent.spans[last + 1 :], parent.stop)
