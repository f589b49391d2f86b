"""Append text of the server to a turn of a history."""

from typing import TypeVar

import msgspec

from dovetail_model import TextBlock, ToolResultBlock, Turn

_B = TypeVar("_B")


def can_append(turn: Turn) -> bool:
    """Return whether text can be appended to a turn: not to one that the model continues."""
    return turn.role != "assistant"


def append_text(turn: Turn, text: str) -> Turn:
    """Append a paragraph to a turn: to its last tool result, if its last block is one.

    A separate user turn would end the tool loop for templates that drop reasoning then.
    """
    *before, last = turn.blocks or (TextBlock(""),)
    if isinstance(last, ToolResultBlock):
        inner = _append_paragraph(last.blocks, text)
        appended = f"{last.appended}\n\n{text}" if last.appended else text
        result = msgspec.structs.replace(last, blocks=inner, appended=appended)
        return Turn(turn.role, (*before, result))
    return Turn(turn.role, (*before, *_append_paragraph((last,), text)))


def _append_paragraph(blocks: tuple[_B, ...], text: str) -> tuple[_B | TextBlock, ...]:
    last = blocks[-1] if blocks else None
    if isinstance(last, TextBlock) and last.text:
        return (*blocks[:-1], TextBlock(f"{last.text}\n\n{text}"))
    return (*blocks, TextBlock(text))
