"""Reasoning in segments: how interleaved reasoning survives an API that groups it.

A chat message has one place for reasoning and one list of calls. For N calls there are N+1
segments: segment i precedes call i, the last one follows all of them.
"""

from collections.abc import Iterable, Sequence

from dovetail_model import Block, OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock


class ReasoningSegments:
    """Split the reasoning of a response at its calls."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: list[list[str]] = [[]]

    def add_reasoning(self, text: str) -> None:
        self._segments[-1].append(text)

    def start_call(self) -> None:
        """A call begins: reasoning from here on belongs to the next segment."""
        self._segments.append([])

    def texts(self) -> list[str]:
        return ["".join(segment) for segment in self._segments]


def split_reasoning(blocks: Iterable[OutputBlock]) -> list[str]:
    """The segments of a finished response."""
    segments = ReasoningSegments()
    for block in blocks:
        if isinstance(block, ReasoningBlock):
            segments.add_reasoning(block.text)
        elif isinstance(block, ToolCallBlock):
            segments.start_call()
    return segments.texts()


def group_texts(blocks: Sequence[OutputBlock]) -> tuple[str, str]:
    """All visible text of a response and all its reasoning, as in the grouped fields."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    return text, "".join(split_reasoning(blocks))


def decode_segments(*candidates: object) -> list[str]:
    """The first form of reasoning that says anything: a text, or a list of segments.

    A segment may be a text, or an object that holds one, as content parts do.
    """
    for candidate in candidates:
        found = candidate if isinstance(candidate, list) else [candidate]
        texts = [_segment_text(segment) for segment in found]
        if any(texts):
            return texts
    return []


def interleave(
    segments: Sequence[str], content: Sequence[Block], calls: Sequence[ToolCallBlock]
) -> tuple[Block, ...]:
    """The blocks of an assistant turn, each segment before the call that it explains.

    Where the text stood among the calls a chat message does not say: it goes before the first one.
    """
    before = list(segments[: len(calls)])
    blocks: list[Block] = []
    for at, call in enumerate(calls):
        blocks += _reasoning_blocks(before[at] if at < len(before) else "")
        if at == 0:
            blocks += content
        blocks.append(call)
    for segment in segments[len(calls) :]:
        blocks += _reasoning_blocks(segment)
    if not calls:
        blocks += content
    return tuple(blocks)


def _reasoning_blocks(text: str) -> list[ReasoningBlock]:
    return [ReasoningBlock(text)] if text else []


def _segment_text(segment: object) -> str:
    if isinstance(segment, dict):
        segment = next((segment[key] for key in ("text", "thinking") if segment.get(key)), "")
    return segment if isinstance(segment, str) else ""
