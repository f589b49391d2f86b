"""One answer in the making: token ids in, events out, and at its end the entry for the ledger.

Whatever a client is shown, it is shown through here: calls get their outward ids, thoughts their
seals, and what the model wrote is kept token for token.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, LedgerEntry
from dovetail.pipeline.block_offsets import Delta, Extents
from dovetail.pipeline.stop_text import StopText
from dovetail.pipeline.turn_record import Origin, Owner, TurnRecord
from dovetail.prompt.prompt import Prompt
from dovetail_model import (
    CallOpen,
    Event,
    Finish,
    FinishReason,
    Fold,
    Message,
    Request,
    SpanEnd,
)
from dovetail_parsers import Parser, markers
from dovetail_tokenizers import Detokenizer, Piece, PlainTexts, Tokenizer

__all__ = ["Generation", "Owner", "Voice"]


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

    @cached_property
    def texts(self) -> PlainTexts:
        """What its plain tokens read as; those that end a turn are none."""
        return PlainTexts(self.tokenizer, apart=self.stop_ids)


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
        self.entry_id = entry_id
        self._new_call_id = new_call_id
        self._texts = voice.texts
        self._detokenizer = Detokenizer(voice.tokenizer, voice.texts)
        self._parser = Parser(
            voice.tool_parser,
            voice.reasoning_parser,
            tools=request.tools,
            in_reasoning=prompt.in_reasoning,
            special=voice.special,
        )
        stops = request.sampling.stop
        self._stop_text = StopText(stops) if any(stops) else None
        self._fold = Fold()
        #: What was generated, without the token that ended it.
        self.ids = array(TOKEN_ID_TYPECODE)
        self._extents = Extents(voice.tokenizer, self.ids)
        thinking = msgspec.json.encode(request.thinking)
        origin = Origin(entry_id, voice.fingerprint, prompt, owner, thinking, request.identity)
        self._record = TurnRecord(origin, self.ids, self._extents)
        self._one_by_one = self._stop_text is None  # a plain token can be read for itself
        self._flowing: type[Delta] | None = None  # more of the open block, if nothing is held back
        self._stop: int | None = None
        #: Whether the turn has ended: by the model, or by a stop sequence.
        self.stopped = False
        self._over = False

    @property
    def thinking(self) -> bool:
        """Whether what comes next belongs to a thought."""
        return self._parser.thinking

    @property
    def thought_tokens(self) -> int:
        """How many of the tokens so far were spent on thoughts."""
        return self._extents.thought_tokens

    @property
    def undecided(self) -> bool:
        """Whether something is begun that is no text yet: a character, or perhaps a marker."""
        return self._detokenizer.holding or bool(self._extents.untold.strip())

    def only_thought(self, closing: str) -> bool:
        """Whether nothing but one thought was said, be it open or closed as `closing` closes it."""
        if self._detokenizer.holding or not self._extents.only_thought:
            return False
        held = self._extents.untold.strip()
        return self._parser.thinking or held.removeprefix(closing.strip()) == ""

    def feed(self, ids: Sequence[int]) -> list[Event]:
        """The events that these tokens complete. What follows the end of the turn is ignored."""
        if self._one_by_one and len(ids) == 1 and (text := self._texts[ids[0]]) is not None:
            events = self._parser.feed(text, False)
            if len(events) == 1 and type(event := events[0]) is self._flowing and event.raw is text:
                self.ids.append(ids[0])  # one more word of what is open, as nearly always
                self._fold.add(event)
                return events
            self._extents.add(ids[0], text)
            return self._account(events)
        return [] if self.stopped else self._feed(ids)

    def probable(self, logprobs: Iterable[float]) -> None:
        """What the engine says about the tokens that are fed next."""
        if not self.stopped:
            self._record.probable(logprobs)

    def forced(self, start: int) -> None:
        """The tokens from this place on were not chosen by the model."""
        if start < len(self.ids):
            self._record.forced.append((start, len(self.ids)))

    def finish(self, reason: FinishReason | None = None) -> list[Event]:
        """The events that the end of the output completes, the `Finish` among them."""
        self._one_by_one = False
        self._extents.begin()
        events = self._parse(self._detokenizer.finish())
        if self._stop_text is not None:
            events += self._parser.feed(self._stop_text.finish())
        told = self._tell(events + self._parser.finish())
        end = Finish(self._reason(reason), self._stop_sequence)
        self._over = True
        self._fold.add(end)
        return [*told, end]

    def message(self) -> Message:
        """The answer so far."""
        return self._fold.message()

    def entry(self, created: float = 0.0) -> LedgerEntry:
        """The turn as the ledger keeps it."""
        over = self._over or self._stop is not None
        # Behind a stop sequence nothing is kept, so no token ended what is.
        stop = self._stop if self._stop_sequence is None else None
        return self._record.entry(self._fold.message(), stop, over, created)

    # Reading

    def _feed(self, ids: Sequence[int]) -> list[Event]:
        """Any tokens: several, a control token, one that ends the turn, a part of a character."""
        said = self._until_end(ids)
        self._extents.begin()
        self.ids.extend(said)
        events = self._parse(self._detokenizer.feed(said))
        if self._stop is not None:
            events += self._end_token(self._stop)
        holding = self._detokenizer.holding
        if not holding:
            self._extents.mark()
        if self._stop_sequence is not None:
            self._cut()
        self._one_by_one = not (holding or self.stopped or self._stop_text is not None)
        return self._account(events)

    def _until_end(self, ids: Sequence[int]) -> Sequence[int]:
        stop_ids = self._voice.stop_ids
        if stop_ids.isdisjoint(ids):
            return ids
        end = next(at for at, id in enumerate(ids) if id in stop_ids)
        self._stop = ids[end]
        self.stopped = True
        return ids[:end]

    def _parse(self, pieces: Iterable[Piece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            self._extents.read(piece.text)
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
        self._extents.before_stop += len(text)
        self.stopped |= stops.found is not None
        if piece.special:
            events += self._parser.feed(piece.text, True)
            self._extents.before_stop += len(piece.text)
        return events

    def _end_token(self, id: int) -> list[Event]:
        """An end token that is a marker too (gpt-oss ends a call with one) is the parser's."""
        text = self._voice.tokenizer.bytes_of(id).decode("utf-8", "replace")
        if text not in self._voice.special:
            return []
        return self._parse([*self._detokenizer.finish(), Piece(text, True)])

    # Telling

    def _account(self, events: list[Event]) -> list[Event]:
        """The events of a feed as they go out, with what was held back accounted for."""
        told = self._tell(events) if events else events
        self._flowing = self._extents.end()
        return told

    def _tell(self, events: list[Event]) -> list[Event]:
        """Events as they go out, with outward ids and seals."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, CallOpen):
                own, event = event.id, msgspec.structs.replace(event, id=self._new_call_id())
                self._record.own_ids[event.id or ""] = own
            self._fold.add(event)
            self._extents.tell(event)
            if isinstance(event, SpanEnd) and event.kind == "reasoning":
                event = msgspec.structs.replace(event, seal=self._record.seal(self._fold))
            told.append(event)
        return told

    @property
    def _stop_sequence(self) -> str | None:
        return self._stop_text.found if self._stop_text is not None else None

    def _cut(self) -> None:
        """Keeps the tokens that the client saw: those before the stop sequence."""
        del self.ids[self._extents.ids_within(self._extents.before_stop) :]

    def _reason(self, given: FinishReason | None) -> FinishReason:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if given in (None, "stop", "tool_calls"):
            return self._fold.message().finish
        return given
