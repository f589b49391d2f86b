"""Restore turns that are missing in the store from the seals that the client sends back.

A seal holds the tokens of its turn from the previous seal up to the reasoning that it was sent
with. The first seal of the next turn holds the tokens after the last seal. Only output that no
seal covers is rebuilt from the client's copy.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids, unpack_ids
from dovetail.ledger.equivalence import is_same_turn
from dovetail.ledger.seal import Sealer, SealPayload, SealRefusal
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn


class BlockEncoder(Protocol):
    """Encodes blocks as tokens in the model's own notation, as the continuation of a turn.

    `ids` and `raw` are the preceding tokens and text. A token that extends beyond the end of the
    text is not among the ids.
    """

    def __call__(
        self,
        blocks: Sequence[OutputBlock],
        tools: Sequence[ToolSpec],
        ids: Sequence[int],
        raw: str,
    ) -> Sequence[int] | None: ...


FINISH_REBUILT = "rebuilt"
"""The finish reason of a turn with an unsealed end, whose tokens were rebuilt, not generated."""


class SealRestorer:
    """Restores entries from seals. Without a sealer, no entry is restored."""

    def __init__(
        self, sealer: Sealer | None = None, encode_blocks: BlockEncoder | None = None
    ) -> None:
        self._sealer = sealer
        self._encode_blocks = encode_blocks

    def restore(
        self,
        turn: Turn,
        following: Turn | None,
        tenant: str,
        model: str,
        tools: Sequence[ToolSpec],
        notes: list[str],
    ) -> LedgerEntry | None:
        """Restore the entry of a turn. Its tokens can be spliced, but its prompt is unknown."""
        payload = _join_seals(self._open_seals(turn, tenant, model, notes), notes)
        if payload is None:
            return None
        tail, finish = self._find_tail(payload, following, tenant, model), "stop"
        if tail is None:
            tail, finish = self._rebuild_tail(payload, turn, tools), FINISH_REBUILT
        if tail is None:
            notes.append("seal_incomplete")
            return None
        ids, spans = tail
        entry = LedgerEntry(
            id=payload.entry,
            tenant=tenant,
            model=model,
            parent=None,
            prefix_tokens=0,
            suffix=b"",
            generated=payload.generated + ids,
            stop=None,
            spans=payload.spans + spans,
            chain_before=payload.chain_before,
            chain=b"",
            head=b"",
            finish=finish,
            opening=payload.opening,
        )
        if is_same_turn(entry, turn, tools):
            return entry
        notes.append("edited_turn")
        return None

    def _open_seals(
        self, turn: Turn, tenant: str, model: str, notes: list[str]
    ) -> list[SealPayload]:
        """Open the turn's seals."""
        if self._sealer is None:
            return []
        opened: list[SealPayload] = []
        for block in turn.blocks:
            if isinstance(block, ReasoningBlock) and block.seal:
                found = self._sealer.open(block.seal, tenant, model)
                if not isinstance(found, SealRefusal):
                    opened.append(found)
                elif found.reason != "not_ours":
                    notes.append(f"seal_{found.reason}")
        return opened

    def _find_tail(
        self, payload: SealPayload, following: Turn | None, tenant: str, model: str
    ) -> tuple[bytes, tuple[EntrySpan, ...]] | None:
        """Return the output after the last seal, as stored in the first seal of the next turn."""
        if following is None:
            return None
        tails = [one.previous for one in self._open_seals(following, tenant, model, [])]
        tail = next((one for one in tails if one is not None), None)
        if tail is None or (tail.entry, tail.start) != (
            payload.entry,
            len(unpack_ids(payload.generated)),
        ):
            return None
        return tail.generated, tail.spans

    def _rebuild_tail(
        self, payload: SealPayload, turn: Turn, tools: Sequence[ToolSpec]
    ) -> tuple[bytes, tuple[EntrySpan, ...]] | None:
        """Rebuild the output after the last seal from the client's copy in the model's notation."""
        blocks = _unsealed_blocks(payload, turn)
        if not blocks:
            return b"", ()
        if self._encode_blocks is None:
            return None
        raw = "".join(span.raw for span in payload.spans)
        ids = self._encode_blocks(blocks, tools, unpack_ids(payload.generated), raw)
        return None if ids is None else (pack_ids(ids), tuple(map(block_to_span, blocks)))


def _join_seals(parts: list[SealPayload], notes: list[str]) -> SealPayload | None:
    """Join the seals of a turn. Each holds the output since the previous seal."""
    joined: SealPayload | None = None
    for part in sorted(parts, key=lambda part: part.start):
        covered = len(unpack_ids(joined.generated)) if joined is not None else 0
        if part.start != covered or (joined is not None and part.entry != joined.entry):
            notes.append("seal_incomplete")
            return None
        if joined is None:
            joined = part
        else:
            generated, spans = joined.generated + part.generated, joined.spans + part.spans
            joined = msgspec.structs.replace(joined, generated=generated, spans=spans)
        if "ids" in part.omitted:
            notes.append("seal_incomplete")
            return None
    return joined


def _unsealed_blocks(payload: SealPayload, turn: Turn) -> list[OutputBlock]:
    """Return the client's blocks that the seal does not cover, in the client's order."""
    covered = {span.id for span in payload.spans if span.kind == "call"}
    sealed_text = "".join(span.shown for span in payload.spans if span.kind == "text")
    unsealed: list[OutputBlock] = []
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock) and block.id not in covered:
            unsealed.append(block)
        elif isinstance(block, TextBlock):
            if sealed_text.startswith(block.text):
                sealed_text = sealed_text[len(block.text) :]
            else:
                unsealed.append(block)
    return unsealed


def block_to_span(block: OutputBlock) -> EntrySpan:
    if isinstance(block, ToolCallBlock):
        return EntrySpan(
            "call",
            "",
            block.arguments,
            name=block.name,
            id=block.id,
            namespace=block.namespace,
            custom=block.custom,
            complete=block.complete,
        )
    return EntrySpan("text", "", block.text)
