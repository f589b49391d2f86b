"""Reasoning in segments, which preserve interleaved reasoning in an API that groups it.

A chat message has one field for reasoning and one list of calls. For N calls there are N+1
segments: segment i precedes call i, and the last one follows all calls.
"""

from collections.abc import Iterable, Sequence

from dovetail_model import Block, OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock


class ReasoningSegments:
    """Splits the reasoning of a response at its calls."""

    __slots__ = ("_segments",)

    def __init__(self) -> None:
        self._segments: list[list[str]] = [[]]

    def add_reasoning(self, text: str) -> None:
        self._segments[-1].append(text)

    def start_call(self) -> None:
        """Start a call: later reasoning belongs to the next segment."""
        self._segments.append([])

    def texts(self) -> list[str]:
        return ["".join(segment) for segment in self._segments]


def split_reasoning(blocks: Iterable[OutputBlock]) -> list[str]:
    """Return the segments of a finished response."""
    segments = ReasoningSegments()
    for block in blocks:
        if isinstance(block, ReasoningBlock):
            segments.add_reasoning(block.text)
        elif isinstance(block, ToolCallBlock):
            segments.start_call()
    return segments.texts()


def group_texts(blocks: Sequence[OutputBlock]) -> tuple[str, str]:
    """Return the visible text and the reasoning of a response, as in the grouped fields."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    return text, "".join(split_reasoning(blocks))


def decode_segments(*candidates: object) -> list[str]:
    """Decode the first candidate that contains reasoning: a text or a list of segments.

    A segment is a text, or an object that contains one, like a content part.
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
    """Return the blocks of an assistant turn, each segment before the call that it explains.

    A chat message does not state the position of the text among the calls: it precedes the first.
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
