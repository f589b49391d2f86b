"""Track which tokens of a generation belong to which of its blocks.

Text is decoded when its tokens arrive and emitted when the parser is certain about its role, so
some text is held back. Decoded and emitted characters are therefore counted separately, and marks
relate character counts to id counts. The counts restart whenever all decoded text was emitted,
which is nearly always the case, so the common case needs no counting.
"""

from array import array
from collections import deque

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
)
from dovetail_tokenizers import Detokenizer, Tokenizer

BlockDelta = TextDelta | ReasoningDelta | CallArgs


class BlockOffsets:
    """The offsets of one generation. While no text is held back, callers may append to its ids."""

    __slots__ = (
        "_block_types",
        "_call_blocks",
        "_decoded_chars",
        "_emitted_chars",
        "_ids",
        "_marks",
        "_tokenizer",
        "all_emitted",
        "chars_before_stop",
        "end_offsets",
        "open_type",
    )

    def __init__(self, tokenizer: Tokenizer, ids: "array[int]") -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._decoded_chars = 0
        self._emitted_chars = 0  # decoded characters that were emitted in events
        self.chars_before_stop = 0  # decoded characters before a stop sequence
        # Decoded characters and ids after each feed: the last emitted mark and later ones.
        self._marks = deque([(0, 0)])
        self._block_types: list[type[BlockDelta]] = []  # per block
        self._call_blocks: dict[int, int] = {}  # call index -> block index
        self.end_offsets: list[int] = []  # per block: ids up to its end; 0 while it is open
        self.open_type: type[BlockDelta] | None = None  # the delta type of the open block
        self.all_emitted = True  # whether no text is held back

    @property
    def reasoning_tokens(self) -> int:
        """The number of reasoning tokens so far."""
        total, start = 0, 0
        for kind, end_offset in zip(self._block_types, self.end_offsets, strict=True):
            end = end_offset or len(self._ids)
            total += end - start if kind is ReasoningDelta else 0
            start = end
        return total

    @property
    def is_only_reasoning(self) -> bool:
        """Whether the output so far is at most one reasoning span."""
        return self._block_types in ([ReasoningDelta], [])

    @property
    def pending_text(self) -> str:
        """The text that is held back."""
        if self.all_emitted:
            return ""
        self._drop_emitted_marks()
        decoded_chars, count = self._marks[0]
        return self._tokenizer.decode(self._ids[count:])[self._emitted_chars - decoded_chars :]

    @property
    def emitted_chars(self) -> int:
        """The number of characters that were emitted, counted like `chars_before_stop`."""
        return self._emitted_chars

    @property
    def in_reasoning(self) -> bool:
        """Whether a reasoning span is open."""
        return self.open_type is ReasoningDelta

    def begin_feed(self) -> None:
        """Prepare for decoding text that may be held back."""
        if self.all_emitted:
            self._decoded_chars = self._emitted_chars = self.chars_before_stop = 0
            self._marks.clear()
            self._marks.append((0, len(self._ids)))
            self.all_emitted = False

    def add_text(self, text: str) -> None:
        """Count decoded text."""
        self._decoded_chars += len(text)

    def mark_boundary(self) -> None:
        """Mark a position where the ids and the text end together, not inside a character."""
        self._marks.append((self._decoded_chars, len(self._ids)))

    def add_token(self, id: int, text: str) -> None:
        """Add an id that decodes to complete characters."""
        if self.all_emitted:
            self.begin_feed()
        self._ids.append(id)
        self._decoded_chars += len(text)
        self._marks.append((self._decoded_chars, len(self._ids)))

    def end_feed(self) -> type[BlockDelta] | None:
        """End a feed. Returns the delta type of the open block if no text is held back."""
        self._drop_emitted_marks()
        self.all_emitted = self._emitted_chars == self._decoded_chars and self._marks[0] == (
            self._decoded_chars,
            len(self._ids),
        )
        return self.open_type if self.all_emitted else None

    def add_event(self, event: Event) -> None:
        """Update the offsets for an emitted event."""
        match event:
            case TextDelta(raw=raw) | ReasoningDelta(raw=raw):
                self._emitted_chars += len(raw)
                if type(event) is not self.open_type:
                    self._open_block(type(event))
            case CallArgs(raw=raw):
                self._emitted_chars += len(raw)
            case CallOpen(index=index, raw=raw):
                self._emitted_chars += len(raw)
                self._call_blocks[index] = len(self.end_offsets)
                self._open_block(CallArgs)
            case CallClose(index=index, raw=raw):
                self._emitted_chars += len(raw)
                self.end_offsets[self._call_blocks[index]] = self.count_ids_within(
                    self._emitted_chars
                )
                self.open_type = None
            case SpanEnd(raw=raw):
                self._emitted_chars += len(raw)
                if self.end_offsets:
                    self.end_offsets[-1] = self.count_ids_within(self._emitted_chars)
                self.open_type = None

    def count_ids_within(self, chars: int) -> int:
        """Count the ids that end within this many characters, at least the emitted ones."""
        self._drop_emitted_marks()
        reached, count = next(m for m in reversed(self._marks) if m[0] <= chars)
        detokenizer = Detokenizer(self._tokenizer)
        for id in self._ids[count:]:
            reached += sum(len(piece.text) for piece in detokenizer.feed([id]))
            if reached > chars:
                break
            count += 1
        return count

    def _open_block(self, delta: type[BlockDelta]) -> None:
        self.end_offsets.append(0)
        self._block_types.append(delta)
        self.open_type = delta

    def _drop_emitted_marks(self) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= self._emitted_chars:
            self._marks.popleft()
