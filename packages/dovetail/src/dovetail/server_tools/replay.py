"""Restore the results of server tools in a history: the exact text that the model read."""

import msgspec

from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.result_text import PART_SEPARATOR
from dovetail_model import Request, SealedTextBlock, TextBlock, ToolResultBlock, Turn


def restore_results(request: Request, sealer: TextSealer) -> Request:
    """Open the sealed results of a request. One that cannot be opened keeps its visible text."""
    tenant = request.identity.tenant
    turns = list(request.turns)
    changed = False
    for at, turn in enumerate(turns):
        if turn.role == "tool" and any(map(_is_sealed, turn.blocks)):
            blocks = tuple(
                _restore(block, sealer, tenant) if isinstance(block, ToolResultBlock) else block
                for block in turn.blocks
            )
            turns[at] = Turn(turn.role, blocks)
            changed = True
    return msgspec.structs.replace(request, turns=tuple(turns)) if changed else request


def _is_sealed(block: object) -> bool:
    return isinstance(block, ToolResultBlock) and any(
        isinstance(one, SealedTextBlock) for one in block.blocks
    )


def _restore(block: ToolResultBlock, sealer: TextSealer, tenant: str) -> ToolResultBlock:
    if not _is_sealed(block):
        return block
    parts: list[str] = []
    for one in block.blocks:
        opened = sealer.open(one.seal, tenant) if isinstance(one, SealedTextBlock) else None
        if opened is not None:
            parts.append(opened)
        elif isinstance(one, TextBlock):
            parts.append(one.text)
    text = TextBlock(PART_SEPARATOR.join(parts))
    return msgspec.structs.replace(block, blocks=(text,))
