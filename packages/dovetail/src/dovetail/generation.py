"""One answer in the making: token ids in, events out, and at its end the entry for the ledger.

Whatever a client is shown, it is shown through here: calls get their outward ids, thoughts their
seals, and what the model wrote is kept token for token.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from dovetail.ledger.entry import IDS, Entry, Span
from dovetail.ledger.seal import Sealer
from dovetail.ledger.sealed import Sealed, Tail
from dovetail.ledger.visible import link, see
from dovetail.rendering.prompt import Prompt
from dovetail.stability.prefix import common_ids
from dovetail.stop_text import StopText
from dovetail_model import (
    CallClose,
    CallOpen,
    Event,
    Finish,
    FinishReason,
    Fold,
    Message,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextBlock,
    TextDelta,
    Turn,
)
from dovetail_parsers import Parser, markers
from dovetail_tokenizers import Detokenizer, Piece, Tokenizer


@dataclass(frozen=True)
class Voice:
    """How a model's output is read: its tokens, the ids that end a turn, its parsers."""

    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    tool_parser: str | None
    reasoning_parser: str | None
    fingerprint: str

    @cached_property
    def special(self) -> frozenset[str]:
        """The markers of its parsers that are tokens of its own, or begin with one."""
        known = markers(self.tool_parser, self.reasoning_parser)
        controls = self.tokenizer.controls
        return frozenset(marker for marker in known if any(c in marker for c in controls))


@dataclass(frozen=True)
class Owner:
    """Whose turn it is: the tenant, the key of its chain, and what seals its thoughts."""

    tenant: str
    key: bytes
    sealer: Sealer | None = None


class Generation:
    """One answer."""

    def __init__(
        self,
        voice: Voice,
        prompt: Prompt,
        owner: Owner,
        request: Request,
        *,
        entry_id: str,
        new_call_id: Callable[[], str],
    ) -> None:
        self._voice = voice
        self._prompt = prompt
        self._owner = owner
        self.entry_id = entry_id
        self._new_call_id = new_call_id
        self._detokenizer = Detokenizer(voice.tokenizer)
        self._parser = Parser(
            voice.tool_parser,
            voice.reasoning_parser,
            tools=request.tools,
            in_reasoning=prompt.in_reasoning,
            special=voice.special,
        )
        self._thinking = msgspec.json.encode(request.thinking)
        stops = request.sampling.stop
        self._stop_text = StopText(stops) if any(stops) else None
        self._fold = Fold()
        self._ids = array(IDS)
        self._stop: int | None = None
        self._over = False
        self._own_ids: dict[str, str | None] = {}  # outward call id -> the model's own
        self._read = 0  # characters that were decoded
        self._passed = 0  # of those, characters before a stop sequence
        self._told = 0  # characters whose raw text has left in events
        # Characters read and ids so far, at the ends of feeds: the last told one, and those since.
        self._marks: deque[tuple[int, int]] = deque([(0, 0)])
        self._reach: list[int] = []  # of each block so far: ids up to its end
        self._kinds: list[str] = []  # of each block: the event that opened it
        self._calls: dict[int, int] = {}  # a call's index -> its block's place
        self._open = ""  # the kind of span that is open
        self._thoughts = 0
        self._sealed = (0, 0)  # ids and spans that the turn's seals hold so far

    @property
    def stopped(self) -> bool:
        """Whether the turn has ended: by the model, or by a stop sequence."""
        return self._stop is not None or self._stop_sequence is not None

    @property
    def thinking(self) -> bool:
        """Whether what comes next belongs to a thought."""
        return self._parser.thinking

    @property
    def thought_tokens(self) -> int:
        """How many of the tokens so far were spent on thoughts."""
        spent, start = 0, 0
        for span, reach in zip(self._kinds, self._reach, strict=True):
            end = reach or len(self._ids)
            spent += end - start if span == "reasoning_delta" else 0
            start = end
        return spent

    def only_thought(self, closing: str) -> bool:
        """Whether nothing but one thought was said, be it open or closed as `closing` closes it."""
        if self._detokenizer.holding or self._kinds not in (["reasoning_delta"], []):
            return False
        held = self._voice.tokenizer.decode(self._ids.tolist())[self._told :].strip()
        return self._parser.thinking or held.removeprefix(closing.strip()) == ""

    @property
    def _stop_sequence(self) -> str | None:
        return self._stop_text.found if self._stop_text is not None else None

    @property
    def ids(self) -> "array[int]":
        """What was generated, without the token that ended it."""
        return self._ids

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """The events that these tokens complete. What follows the end of the turn is ignored."""
        if self.stopped:
            return []
        said: list[int] = []
        for id in ids:
            if id in self._voice.stop_ids:
                self._stop = id
                break
            said.append(id)
        self._ids.extend(said)
        events = self._parse(self._detokenizer.feed(said))
        if self._stop is not None:
            events += self._end_token(self._stop)
        if not self._detokenizer.holding:
            self._marks.append((self._read, len(self._ids)))
        if self._stop_sequence is not None:
            self._cut()
        told = self._tell(events)
        self._forget_marks()
        return told

    def finish(self, reason: FinishReason | None = None) -> list[Event]:
        """The events that the end of the output completes, the `Finish` among them."""
        events = self._parse(self._detokenizer.finish())
        if self._stop_text is not None:
            events += self._parser.feed(self._stop_text.finish())
        told = self._tell(events + self._parser.finish())
        end = Finish(self._reason(reason), self._stop_sequence)
        self._over = True
        self._fold.add(end)
        return [*told, end]

    def _reason(self, given: FinishReason | None) -> FinishReason:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if given in (None, "stop", "tool_calls"):
            return self._fold.message().finish
        return given

    def _cut(self) -> None:
        """Keeps the tokens that the client saw: those before the stop sequence."""
        seen = self._ids_within(self._passed)
        self._ids = self._ids[:seen]

    def message(self) -> Message:
        """The answer so far."""
        return self._fold.message()

    def entry(self, created: float = 0.0) -> Entry:
        """The turn as the ledger keeps it."""
        message, prompt = self._fold.message(), self._prompt
        parent, keep, suffix = self._growth()
        blocks = message.blocks[: self._whole_blocks()]
        spans = self._spans(blocks)
        shown = see(Turn("assistant", blocks))
        before = prompt.recalled.chain
        return Entry(
            id=self.entry_id,
            tenant=self._owner.tenant,
            model=self._voice.fingerprint,
            parent=parent,
            keep=keep,
            suffix=suffix,
            generated=self._ids[: self._kept(spans)].tobytes(),
            stop=self._stop,
            spans=spans,
            before=before,
            chain=link(self._owner.key, before, shown.digest),
            head=prompt.head.whole,
            finish=message.finish,
            created=created,
            line=prompt.recalled.line,
            opening=prompt.opening,
            thinking=self._thinking,
        )

    def _parse(self, pieces: Iterable[Piece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            self._read += len(piece.text)
            if self._stop_text is not None:
                events += self._until_stop(piece, self._stop_text)
            else:
                events += self._parser.feed(piece.text, piece.special)
        return events

    def _until_stop(self, piece: Piece, stops: StopText) -> list[Event]:
        """What comes before a stop sequence. Only plain text can be one, never a control token."""
        if stops.found is not None:
            return []
        text = stops.finish() if piece.special else stops.feed(piece.text)
        events = self._parser.feed(text, False)
        self._passed += len(text)
        if piece.special:
            events += self._parser.feed(piece.text, True)
            self._passed += len(piece.text)
        return events

    def _end_token(self, id: int) -> list[Event]:
        """An end token that is a marker too (gpt-oss ends a call with one) is the parser's."""
        text = self._voice.tokenizer.bytes_of(id).decode("utf-8", "replace")
        if text not in self._voice.special:
            return []
        return self._parse([*self._detokenizer.finish(), Piece(text, True)])

    def _tell(self, events: list[Event]) -> list[Event]:
        """Events as they go out, with outward ids and seals."""
        told: list[Event] = []
        for event in events:
            self._told += len(getattr(event, "raw", ""))
            if isinstance(event, CallOpen):
                own, event = event.id, msgspec.structs.replace(event, id=self._new_call_id())
                self._own_ids[event.id or ""] = own
            self._fold.add(event)
            self._measure(event)
            if isinstance(event, SpanEnd) and event.kind == "reasoning":
                event = msgspec.structs.replace(event, seal=self._seal())
            told.append(event)
        return told

    def _measure(self, event: Event) -> None:
        """Keeps the account of which tokens belong to which block."""
        match event:
            case TextDelta() | ReasoningDelta() if self._open != event.type:
                self._reach.append(0)
                self._kinds.append(event.type)
                self._open = event.type
            case CallOpen(index=index):
                self._calls[index] = len(self._reach)
                self._reach.append(0)
                self._kinds.append(event.type)
                self._open = ""
            case CallClose(index=index):
                self._reach[self._calls[index]] = self._ids_within(self._told)
            case SpanEnd() if self._reach:
                self._reach[-1] = self._ids_within(self._told)
                self._open = ""

    def _seal(self) -> str | None:
        """The seal of the thought that has just ended, with the turn since the seal before it."""
        self._thoughts += 1
        if self._owner.sealer is None:
            return None
        recalled = self._prompt.recalled
        ids, spans = self._sealed
        blocks = self._fold.message().blocks
        sealed = Sealed(
            entry=self.entry_id,
            parent=recalled.parent.id if recalled.parent is not None else None,
            generated=self._ids[ids : self._reach[-1]].tobytes(),
            spans=self._spans(blocks)[spans:],
            before=recalled.chain,
            head=self._prompt.head.whole,
            thought=self._thoughts - 1,
            previous=_tail(recalled.parent) if self._thoughts == 1 else None,
            start=ids,
            opening=self._prompt.opening,
        )
        self._sealed = (self._reach[-1], len(blocks))
        return self._owner.sealer.seal(sealed, self._owner.tenant, self._voice.fingerprint)

    def _ids_within(self, characters: int) -> int:
        """How many ids end at or before this many characters, no fewer than were told of."""
        self._forget_marks()
        reached, count = next(m for m in reversed(self._marks) if m[0] <= characters)
        detokenizer = Detokenizer(self._voice.tokenizer)
        for id in self._ids[count:]:
            reached += sum(len(piece.text) for piece in detokenizer.feed([id]))
            if reached > characters:
                break
            count += 1
        return count

    def _forget_marks(self) -> None:
        while len(self._marks) > 1 and self._marks[1][0] <= self._told:
            self._marks.popleft()

    def _spans(self, blocks: Sequence[OutputBlock]) -> tuple[Span, ...]:
        whole = len(self._ids)
        return tuple(
            self._span(block, reach or whole)
            for block, reach in zip(blocks, self._reach[: len(blocks)], strict=True)
        )

    def _whole_blocks(self) -> int:
        """How many blocks stay with the turn: of one that broke off, those that clients keep.

        A thought that never ended is not among them, unless there is nothing else.
        """
        blocks = len(self._reach)
        open_thought = self._open == ReasoningDelta.type and not self._is_over
        return blocks - 1 if open_thought and blocks > 1 else blocks

    def _kept(self, spans: Sequence[Span]) -> int:
        """How many tokens stay with the turn: of one that broke off, those that were told.

        Behind a whole block may be half a marker, which the client has never seen.
        """
        last = spans[-1] if spans else None
        if self._is_over or last is None or last.kind == "text" or not last.complete:
            return len(self._ids)
        return last.tokens

    @property
    def _is_over(self) -> bool:
        return self._over or self._stop is not None

    def _span(self, block: OutputBlock, reach: int) -> Span:
        match block:
            case TextBlock(text=text, raw=raw):
                return Span("text", raw, text, reach)
            case ReasoningBlock(text=text, raw=raw):
                return Span("reasoning", raw, text, reach)
            case call:
                return Span(
                    "call",
                    call.raw,
                    call.arguments,
                    reach,
                    call.name,
                    call.id,
                    self._own_ids.get(call.id),
                    call.namespace,
                    call.custom,
                    call.complete,
                )

    def _growth(self) -> tuple[str | None, int, bytes]:
        """The prompt as what it adds to the parent's whole."""
        ids, recalled = self._prompt.ids, self._prompt.recalled
        if recalled.parent is None or recalled.whole is None:
            return None, 0, ids.tobytes()
        keep = len(recalled.whole)
        if self._prompt.how != "grown":
            keep = common_ids(recalled.whole, ids)
        return recalled.parent.id, keep, ids[keep:].tobytes()


def _tail(parent: Entry | None) -> Tail | None:
    """What the previous turn said behind its last seal."""
    if parent is None:
        return None
    sealed = [at for at, span in enumerate(parent.spans) if span.kind == "reasoning"]
    last = sealed[-1] if sealed else -1
    start = parent.spans[last].tokens if sealed else 0
    ids = parent.generated[start * array(IDS).itemsize :]
    return Tail(parent.id, start, ids, parent.spans[last + 1 :], parent.stop)
