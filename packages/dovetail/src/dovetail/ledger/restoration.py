"""Turns that no store knows, restored from the seals that the client kept.

A seal holds its turn from the seal before it up to the thought it was sent with; the first seal of
the next turn holds what came behind the last. Only what no seal holds is rebuilt from the client's
copy.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from dovetail.ledger.entry import Entry, Span, pack, unpack
from dovetail.ledger.equivalence import same_turn
from dovetail.ledger.seal import Refused, Sealer
from dovetail.ledger.sealed import Sealed
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn


class Rebuild(Protocol):
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


REBUILT = "rebuilt"
"""How a turn has ended whose end was not sealed: not all of its tokens are the model's own."""


class Restorer:
    """Opens seals. Without a sealer, or a way to rebuild what they lack, restores nothing."""

    def __init__(self, sealer: Sealer | None = None, rebuild: Rebuild | None = None) -> None:
        self._sealer = sealer
        self._rebuild = rebuild

    def restore(
        self,
        turn: Turn,
        following: Turn | None,
        tenant: str,
        model: str,
        tools: Sequence[ToolSpec],
        notes: list[str],
    ) -> Entry | None:
        """The turn's entry, without a prompt: its tokens may be spliced, its prompt is unknown."""
        sealed = _joined(self._open(turn, tenant, model, notes), notes)
        if sealed is None:
            return None
        tail, finish = self._tail(sealed, following, tenant, model), "stop"
        if tail is None:
            tail, finish = self._rebuilt(sealed, turn, tools), REBUILT
        if tail is None:
            notes.append("seal_incomplete")
            return None
        ids, spans = tail
        entry = Entry(
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
        if same_turn(entry, turn, tools):
            return entry
        notes.append("edited_turn")
        return None

    def _open(self, turn: Turn, tenant: str, model: str, notes: list[str]) -> list[Sealed]:
        """What the turn's seals hold."""
        if self._sealer is None:
            return []
        opened: list[Sealed] = []
        for block in turn.blocks:
            if isinstance(block, ReasoningBlock) and block.seal:
                found = self._sealer.open(block.seal, tenant, model)
                if not isinstance(found, Refused):
                    opened.append(found)
                elif found.reason != "not_ours":
                    notes.append(f"seal_{found.reason}")
        return opened

    def _tail(
        self, sealed: Sealed, following: Turn | None, tenant: str, model: str
    ) -> tuple[bytes, tuple[Span, ...]] | None:
        """What came behind the last seal, from the first seal of the next turn."""
        if following is None:
            return None
        held = [one.previous for one in self._open(following, tenant, model, [])]
        end = next((one for one in held if one is not None), None)
        if end is None or (end.entry, end.start) != (sealed.entry, len(unpack(sealed.generated))):
            return None
        return end.generated, end.spans

    def _rebuilt(
        self, sealed: Sealed, turn: Turn, tools: Sequence[ToolSpec]
    ) -> tuple[bytes, tuple[Span, ...]] | None:
        """The same from the client's copy, in the model's notation."""
        blocks = _behind(sealed, turn)
        if not blocks:
            return b"", ()
        if self._rebuild is None:
            return None
        raw = "".join(span.raw for span in sealed.spans)
        ids = self._rebuild(blocks, tools, unpack(sealed.generated), raw)
        return None if ids is None else (pack(ids), tuple(map(_span, blocks)))


def _joined(parts: list[Sealed], notes: list[str]) -> Sealed | None:
    """The turn up to its last seal. Each seal holds what came since the one before it."""
    whole: Sealed | None = None
    for part in sorted(parts, key=lambda part: part.start):
        covered = len(unpack(whole.generated)) if whole is not None else 0
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


def _behind(sealed: Sealed, turn: Turn) -> list[OutputBlock]:
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


def _span(block: OutputBlock) -> Span:
    if isinstance(block, ToolCallBlock):
        return Span(
            "call",
            "",
            block.arguments,
            name=block.name,
            id=block.id,
            namespace=block.namespace,
            custom=block.custom,
            complete=block.complete,
        )
    return Span("text", "", block.text)
