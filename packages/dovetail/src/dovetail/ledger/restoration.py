"""Turns that no store knows, restored from the seals that the client kept.

A seal holds its turn from the seal before it up to the thought it was sent with; the first seal of
the next turn holds what came behind the last. Only what no seal holds is rebuilt from the client's
copy.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids, unpack_ids
from dovetail.ledger.equivalence import is_same_turn
from dovetail.ledger.seal import Sealer, SealPayload, SealRefusal
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn


class BlockEncoder(Protocol):
    """The tokens of blocks in the model's own notation, as they would follow a thought.

    `ids` and `raw` are the tokens and the text that they follow; a token that spells the end of the
    text and more is not among the ids.
    """

    def __call__(
        self,
        blocks: Sequence[OutputBlock],
        tools: Sequence[ToolSpec],
        ids: Sequence[int],
        raw: str,
    ) -> Sequence[int] | None: ...


FINISH_REBUILT = "rebuilt"
"""How a turn has ended whose end was not sealed: not all of its tokens are the model's own."""


class SealRestorer:
    """Opens seals. Without a sealer, or a way to rebuild what they lack, restores nothing."""

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
        """The turn's entry, without a prompt: its tokens may be spliced, its prompt is unknown."""
        sealed = _join_seals(self._open_seals(turn, tenant, model, notes), notes)
        if sealed is None:
            return None
        tail, finish = self._find_tail(sealed, following, tenant, model), "stop"
        if tail is None:
            tail, finish = self._rebuild_tail(sealed, turn, tools), FINISH_REBUILT
        if tail is None:
            notes.append("seal_incomplete")
            return None
        ids, spans = tail
        entry = LedgerEntry(
            id=sealed.entry,
            tenant=tenant,
            model=model,
            parent=None,
            keep=0,
            suffix=b"",
            generated=sealed.generated + ids,
            stop=None,
            spans=sealed.spans + spans,
            before=sealed.before,
            chain=b"",
            head=b"",
            finish=finish,
            opening=sealed.opening,
        )
        if is_same_turn(entry, turn, tools):
            return entry
        notes.append("edited_turn")
        return None

    def _open_seals(
        self, turn: Turn, tenant: str, model: str, notes: list[str]
    ) -> list[SealPayload]:
        """What the turn's seals hold."""
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
        self, sealed: SealPayload, following: Turn | None, tenant: str, model: str
    ) -> tuple[bytes, tuple[EntrySpan, ...]] | None:
        """What came behind the last seal, from the first seal of the next turn."""
        if following is None:
            return None
        held = [one.previous for one in self._open_seals(following, tenant, model, [])]
        end = next((one for one in held if one is not None), None)
        if end is None or (end.entry, end.start) != (
            sealed.entry,
            len(unpack_ids(sealed.generated)),
        ):
            return None
        return end.generated, end.spans

    def _rebuild_tail(
        self, sealed: SealPayload, turn: Turn, tools: Sequence[ToolSpec]
    ) -> tuple[bytes, tuple[EntrySpan, ...]] | None:
        """The same from the client's copy, in the model's notation."""
        blocks = _unsealed_blocks(sealed, turn)
        if not blocks:
            return b"", ()
        if self._encode_blocks is None:
            return None
        raw = "".join(span.raw for span in sealed.spans)
        ids = self._encode_blocks(blocks, tools, unpack_ids(sealed.generated), raw)
        return None if ids is None else (pack_ids(ids), tuple(map(_span_of, blocks)))


def _join_seals(parts: list[SealPayload], notes: list[str]) -> SealPayload | None:
    """The turn up to its last seal. Each seal holds what came since the one before it."""
    whole: SealPayload | None = None
    for part in sorted(parts, key=lambda part: part.start):
        covered = len(unpack_ids(whole.generated)) if whole is not None else 0
        if part.start != covered or (whole is not None and part.entry != whole.entry):
            notes.append("seal_incomplete")
            return None
        if whole is None:
            whole = part
        else:
            generated, spans = whole.generated + part.generated, whole.spans + part.spans
            whole = msgspec.structs.replace(whole, generated=generated, spans=spans)
        if "ids" in part.lacks:
            notes.append("seal_incomplete")
            return None
    return whole


def _unsealed_blocks(sealed: SealPayload, turn: Turn) -> list[OutputBlock]:
    """The client's blocks that the seal does not cover, in the client's order."""
    covered = {span.id for span in sealed.spans if span.kind == "call"}
    told = "".join(span.shown for span in sealed.spans if span.kind == "text")
    left: list[OutputBlock] = []
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock) and block.id not in covered:
            left.append(block)
        elif isinstance(block, TextBlock):
            if told.startswith(block.text):
                told = told[len(block.text) :]
            else:
                left.append(block)
    return left


def _span_of(block: OutputBlock) -> EntrySpan:
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
