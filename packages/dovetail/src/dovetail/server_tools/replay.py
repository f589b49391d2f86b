"""Restore the results of server tools in a history: the exact text that the model read."""

import msgspec

from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.result_text import PART_SEPARATOR
from dovetail_model import Block, Request, SealedTextBlock, TextBlock, ToolResultBlock, Turn

#: What the model reads if the client returned nothing else about a result.
UNREADABLE_TEXT = "The content of this result is no longer available."


def restore_results(request: Request, sealer: TextSealer) -> Request:
    """Open the sealed results of a request.

    One that cannot be opened keeps its visible text, and is counted in `unreadable_results`.
    """
    tenant = request.identity.tenant
    turns = list(request.turns)
    changed, unreadable = False, 0
    for at, turn in enumerate(turns):
        if turn.role == "tool" and any(map(_is_sealed, turn.blocks)):
            restored = [_restore(block, sealer, tenant) for block in turn.blocks]
            turns[at] = Turn(turn.role, tuple(block for block, _ in restored))
            unreadable += sum(not is_complete for _, is_complete in restored)
            changed = True
    if not changed:
        return request
    return msgspec.structs.replace(request, turns=tuple(turns), unreadable_results=unreadable)


def _is_sealed(block: object) -> bool:
    return isinstance(block, ToolResultBlock) and any(
        isinstance(one, SealedTextBlock) for one in block.blocks
    )


def _restore(block: Block, sealer: TextSealer, tenant: str) -> tuple[Block, bool]:
    """Return a block with its text, and whether this is the text that the model read."""
    if not isinstance(block, ToolResultBlock) or not _is_sealed(block):
        return block, True
    parts: list[str] = []
    is_complete = True
    for one in block.blocks:
        opened = sealer.open(one.seal, tenant) if isinstance(one, SealedTextBlock) else None
        if opened is not None:
            parts.append(opened)
        elif isinstance(one, TextBlock):
            is_complete = is_complete and not isinstance(one, SealedTextBlock)
            parts += [one.text] if one.text else []
    text = TextBlock(PART_SEPARATOR.join(parts) or UNREADABLE_TEXT)
    return msgspec.structs.replace(block, blocks=(text,)), is_complete
