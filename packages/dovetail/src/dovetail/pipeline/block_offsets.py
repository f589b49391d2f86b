"""Which tokens of an answer belong to which of its blocks.

Text is read when its tokens come, and told when it is sure what it is: parsers hold some of it
back. So characters are counted on both sides, and marks say how many ids had come by when. The
counts begin anew wherever all that was read was told, and nearly always it is: until something is
held back again, nothing has to be counted.
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

Delta = TextDelta | ReasoningDelta | CallArgs


class Extents:
    """The account of one answer. Who has its ids may add to them, where nothing is held back."""

    __slots__ = (
        "_calls",
        "_ids",
        "_kinds",
        "_marks",
        "_read",
        "_tokenizer",
        "_told",
        "before_stop",
        "open",
        "reach",
        "settled",
    )

    def __init__(self, tokenizer: Tokenizer, ids: "array[int]") -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._read = 0  # characters that were decoded
        self._told = 0  # of those, characters whose raw text has left in events
        self.before_stop = 0  # of those that were read, characters before a stop sequence
        # Characters read and ids so far, at the ends of feeds: the last told one, and those since.
        self._marks = deque([(0, 0)])
        self._kinds: list[type[Delta]] = []  # of each block: what it grows by
        self._calls: dict[int, int] = {}  # a call's index -> its block's place
        self.reach: list[int] = []  # of each block so far: ids up to its end; 0: it is open
        self.open: type[Delta] | None = None  # what only goes on with the open block
        self.settled = True  # all that was read was told

    @property
    def thought_tokens(self) -> int:
        """How many of the tokens so far were spent on thoughts."""
        spent, start = 0, 0
        for kind, reach in zip(self._kinds, self.reach, strict=True):
            end = reach or len(self._ids)
            spent += end - start if kind is ReasoningDelta else 0
            start = end
        return spent

    @property
    def only_thought(self) -> bool:
        """Whether nothing was told but one thought, if that."""
        return self._kinds in ([ReasoningDelta], [])

    @property
    def untold(self) -> str:
        """The text that is held back."""
        if self.settled:
            return ""
        self._forget_marks()
        read, count = self._marks[0]
        return self._tokenizer.decode(self._ids[count:])[self._told - read :]

    @property
    def in_thought(self) -> bool:
        """Whether a thought is open."""
        return self.open is ReasoningDelta

    def begin(self) -> None:
        """Something is about to be read that may be held back."""
        if self.settled:
            self._read = self._told = self.before_stop = 0
            self._marks.clear()
            self._marks.append((0, len(self._ids)))
            self.settled = False

    def read(self, text: str) -> None:
        """Text was decoded."""
        self._read += len(text)

    def mark(self) -> None:
        """The ids so far are the text so far: no character is cut in two here."""
        self._marks.append((self._read, len(self._ids)))

    def add(self, id: int, text: str) -> None:
        """One more id, of whole characters."""
        if self.settled:
            self.begin()
        self._ids.append(id)
        self._read += len(text)
        self._marks.append((self._read, len(self._ids)))

    def end(self) -> type[Delta] | None:
        """All was told that can be told now. What goes on with the open block, if that was all."""
        self._forget_marks()
        self.settled = self._told == self._read and self._marks[0] == (self._read, len(self._ids))
        return self.open if self.settled else None

    def tell(self, event: Event) -> None:
        """An event of the answer leaves."""
        match event:
            case TextDelta(raw=raw) | ReasoningDelta(raw=raw):
                self._told += len(raw)
                if type(event) is not self.open:
                    self._open_block(type(event))
            case CallArgs(raw=raw):
                self._told += len(raw)
            case CallOpen(index=index, raw=raw):
                self._told += len(raw)
                self._calls[index] = len(self.reach)
                self._open_block(CallArgs)
            case CallClose(index=index, raw=raw):
                self._told += len(raw)
                self.reach[self._calls[index]] = self.ids_within(self._told)
                self.open = None
            case SpanEnd(raw=raw):
                self._told += len(raw)
                if self.reach:
                    self.reach[-1] = self.ids_within(self._told)
                self.open = None

    def ids_within(self, characters: int) -> int:
        """How many ids end at or before this many characters, no fewer than were told of."""
        self._forget_marks()
        reached, count = next(m for m in reversed(self._marks) if m[0] <= characters)
        detokenizer = Detokenizer(self._tokenizer)
        for id in self._ids[count:]:
            reached += sum(len(piece.text) for piece in detokenizer.feed([id]))
            if reached > characters:
                break
            count += 1
        return count

    def _open_block(self, delta: type[Delta]) -> None:
        self.reach.append(0)
        self._kinds.append(delta)
        self.open = delta

    def _forget_marks(self) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= self._told:
            self._marks.popleft()
