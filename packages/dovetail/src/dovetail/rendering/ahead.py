"""Very long texts, encoded before their prompt is made, beside the loop that serves everybody."""

import asyncio
from collections.abc import Iterable, Iterator

from dovetail_model import Block, DocumentBlock, Request, TextBlock, ToolResultBlock
from dovetail_tokenizers import Tokenizer

WORTH_A_THREAD = 1 << 17  # characters: some 50 ms of work


async def encode_ahead(tokenizer: Tokenizer, request: Request, start: int) -> None:
    """Has a thread encode the long texts of the turns from `start` on; at 0, of the system too.

    The tokenizer remembers their pieces, and finds them again where the prompt is made.
    """
    said = (block for turn in request.turns[start:] for block in turn.blocks)
    for text in _texts(said if start else (*request.system, *said)):
        if len(text) >= WORTH_A_THREAD:
            await asyncio.to_thread(tokenizer.pack_plain, text)


def _texts(blocks: Iterable[Block]) -> Iterator[str]:
    """What is said in blocks, and in the results of calls among them."""
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            yield from _texts(block.blocks)
        elif isinstance(block, TextBlock | DocumentBlock) and block.text is not None:
            yield block.text
