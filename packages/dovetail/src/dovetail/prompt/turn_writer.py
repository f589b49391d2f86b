"""Write assistant turns that this server did not generate in the model's own notation.

A template has one field for reasoning, so it regroups interleaved output. The writer of the family
preserves the order: reasoning, call, reasoning, call.
"""

import json
from dataclasses import replace
from typing import Any

from dovetail.prompt.messages import TextEscaper, ToolNames, parse_arguments
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, Turn
from dovetail_parsers import resolve_family, write_message


class TurnWriter:
    """Writes turns in the notation of a pair of parsers."""

    def __init__(self, tool_parser: str | None, reasoning_parser: str | None) -> None:
        self.tool_parser = tool_parser
        self._has_reasoning = reasoning_parser is not None
        name = tool_parser or reasoning_parser
        family = resolve_family(name) if name else None
        if family is not None and tool_parser and family.unified is None:
            family = replace(family, pairs_with=reasoning_parser)
        self._family = family

    def write(
        self, turn: Turn, names: ToolNames, protect: TextEscaper, prompt_end: str
    ) -> str | None:
        """Write a turn after `prompt_end`, or return None if the family cannot express it."""
        blocks = [made for block in turn.blocks if (made := _escape_block(block, names, protect))]
        if self._family is None:
            return None if any(b.type != "text" for b in blocks) else _join_text(blocks)
        try:
            text = write_message(blocks, self._family)
            if self._has_reasoning and not (blocks and isinstance(blocks[0], ReasoningBlock)):
                opened = write_message([ReasoningBlock(""), *blocks], self._family)
            else:
                opened = text
        except ValueError:
            return None
        shared = _overlap_chars(prompt_end, opened) if self._has_reasoning else 0
        return opened[shared:] if shared else text

    def write_partial(
        self, turn: Turn, names: ToolNames, protect: TextEscaper, prompt_end: str
    ) -> str | None:
        """Write a turn that the model is to continue, without markers after its last text.

        Blocks without text at its end are skipped: reasoning of which only a seal is known.
        """
        blocks = list(turn.blocks)
        while blocks and isinstance(blocks[-1], TextBlock | ReasoningBlock) and not blocks[-1].text:
            blocks.pop()
        if not blocks:
            return None
        last = blocks[-1]
        text = self.write(Turn(turn.role, tuple(blocks)), names, protect, prompt_end)
        if text is None or not isinstance(last, TextBlock | ReasoningBlock):
            return text
        last_text = protect(last.text)
        head, found, _ = text.rpartition(last_text)
        return head + found if found else text

    def reasoning_end(self) -> str:
        """Return the text that ends reasoning, including whitespace."""
        if self._family is None:
            return ""
        mark = "\N{NULL}"
        try:
            return write_message([ReasoningBlock(mark)], self._family).partition(mark)[2]
        except ValueError:
            return ""


def is_interleaved(turn: Turn) -> bool:
    """Return whether reasoning or text follows a call, which templates would reorder."""
    called = False
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock):
            called = True
        elif called and isinstance(block, ReasoningBlock | TextBlock):
            return True
    return False


def _escape_block(block: Any, names: ToolNames, protect: TextEscaper) -> OutputBlock | None:
    match block:
        case TextBlock(text=text):
            return TextBlock(protect(text))
        case ReasoningBlock(text=text) if text:
            return ReasoningBlock(protect(text))
        case ToolCallBlock():
            return ToolCallBlock(
                block.id, protect(names.get(block)), _dump_json(parse_arguments(block, protect))
            )
        case _:
            return None


def _dump_json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _join_text(blocks: list[OutputBlock]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def _overlap_chars(end: str, text: str) -> int:
    """Return the length of the longest prefix of the text that the prompt already ends with."""
    for size in range(min(len(end), len(text), 200), 0, -1):
        if end.endswith(text[:size]):
            return size
    return 0
