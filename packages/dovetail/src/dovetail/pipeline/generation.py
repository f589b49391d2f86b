"""Decode one generation from token ids into events, and build its ledger entry.

All output to clients passes through this module: it assigns public ids to calls, adds seals to
reasoning, and records the generated tokens.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from dovetail.ledger.entry import FINISH_REPEATED, TOKEN_ID_TYPECODE, LedgerEntry
from dovetail.pipeline.block_offsets import BlockDelta, BlockOffsets
from dovetail.pipeline.call_limit import CallLimit
from dovetail.pipeline.stop_sequences import StopScope, StopSequenceMatcher, VisibleTextStops
from dovetail.pipeline.turn_record import TurnOrigin, TurnOwner, TurnRecord
from dovetail.prompt.prompt import Prompt
from dovetail_model import (
    CallArgs,
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
from dovetail_tokenizers import Detokenizer, Piece, Tokenizer, TokenTextCache

__all__ = ["Generation", "OutputSpec", "TurnOwner"]


@dataclass(frozen=True)
class OutputSpec:
    """How the output of a model is decoded: tokenizer, stop tokens, parsers, stop sequences."""

    tokenizer: Tokenizer
    stop_ids: frozenset[int]
    tool_parser: str | None
    reasoning_parser: str | None
    fingerprint: str
    stop_scope: StopScope = "text"

    @cached_property
    def special_markers(self) -> frozenset[str]:
        """The markers of the parsers that are or contain control tokens."""
        known = markers(self.tool_parser, self.reasoning_parser)
        controls = self.tokenizer.controls
        return frozenset(marker for marker in known if any(c in marker for c in controls))

    @cached_property
    def stop_texts(self) -> frozenset[str]:
        """The texts of the stop tokens."""
        spell = self.tokenizer.bytes_of
        return frozenset(spell(id).decode("utf-8", "replace") for id in self.stop_ids)

    @cached_property
    def plain_texts(self) -> TokenTextCache:
        """The texts of plain tokens, without stop tokens."""
        return TokenTextCache(self.tokenizer, excluded=self.stop_ids)


class Generation:
    """Decodes one generation and builds the ledger entry of its turn."""

    def __init__(
        self,
        spec: OutputSpec,
        prompt: Prompt,
        owner: TurnOwner,
        request: Request,
        *,
        entry_id: str,
        new_call_id: Callable[[], str],
    ) -> None:
        self._spec = spec
        self._source = (spec, prompt, owner, request)
        self.entry_id = entry_id
        self._new_call_id = new_call_id
        self._plain_texts = spec.plain_texts
        self._detokenizer = Detokenizer(spec.tokenizer, spec.plain_texts)
        self._parser = Parser(
            spec.tool_parser,
            spec.reasoning_parser,
            tools=request.tools,
            in_reasoning=prompt.in_reasoning,
            special=spec.special_markers,
        )
        sampling = request.sampling
        stops, everywhere = sampling.stop, spec.stop_scope == "output"
        self._stop_matcher = StopSequenceMatcher(stops) if any(stops) and everywhere else None
        self._text_stops = VisibleTextStops(stops) if any(stops) and not everywhere else None
        #: The token ids that end the turn.
        self.stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            self.stop_ids |= spec.stop_ids
        # The text of ignored stop tokens, which is not shown.
        self._hidden = spec.stop_texts if sampling.ignore_eos else frozenset()
        self._call_limit = CallLimit(request)
        self._fold = Fold()
        #: The generated token ids, without the stop token.
        self.ids = array(TOKEN_ID_TYPECODE)
        self._offsets = BlockOffsets(spec.tokenizer, self.ids)
        thinking = msgspec.json.encode(request.thinking)
        origin = TurnOrigin(entry_id, spec.fingerprint, prompt, owner, thinking, request.identity)
        self._record = TurnRecord(origin, self.ids, self._offsets)
        # Whether a single plain token may be decoded without the detokenizer, and whether it can be
        # now.
        self._plain_tokens_pass = not any(stops) and self.stop_ids == spec.stop_ids
        self._single_token_path = self._plain_tokens_pass
        # The delta type of the open block, if no text is held back.
        self._open_type: type[BlockDelta] | None = None
        self._stop_id: int | None = None
        #: Whether the turn has ended: by the model, a stop sequence, or an excluded call.
        self.stopped = False
        #: Hold the stop token while reasoning is open, so that the turn can be reopened.
        self.holds_reasoning_end = False
        #: Whether the turn ended with a stop token that is held.
        self.stop_held = False
        #: Whether the server ended the turn because the output repeated itself.
        self.repeated = False
        self._call_excluded = False
        self._truncated = False
        self._finished = False
        self._message: Message | None = None  # the finished message

    @property
    def in_reasoning(self) -> bool:
        """Whether the next output belongs to reasoning."""
        return self._parser.thinking

    @property
    def reasoning_tokens(self) -> int:
        """The number of reasoning tokens so far."""
        return self._offsets.reasoning_tokens

    @property
    def ended_by_model(self) -> bool:
        """Whether a stop token of the model ended the turn."""
        return not self._truncated and self._stop_id in self._spec.stop_ids

    @property
    def call_count(self) -> int:
        """The number of calls so far, complete or not."""
        return len(self._record.model_call_ids)

    @property
    def forced_until(self) -> int:
        """The number of ids up to the last one that the model did not choose."""
        return self._record.forced_ranges[-1][1] if self._record.forced_ranges else 0

    @property
    def block_ends(self) -> Sequence[int]:
        """The number of ids up to the end of each block; 0 while a block is open."""
        return self._offsets.end_offsets

    @property
    def in_call(self) -> bool:
        """Whether the arguments of a call are open."""
        return self._offsets.open_type is CallArgs

    @property
    def has_pending_text(self) -> bool:
        """Whether text is held back: part of a character, or the possible beginning of a marker."""
        return self._detokenizer.has_pending_bytes or bool(self._offsets.pending_text.strip())

    def is_only_reasoning(self, closing: str) -> bool:
        """Return whether the output is only one reasoning span, open or ended by `closing`."""
        if self._detokenizer.has_pending_bytes or not self._offsets.is_only_reasoning:
            return False
        held = self._offsets.pending_text.strip()
        return self._parser.thinking or held.removeprefix(closing.strip()) == ""

    def feed(self, ids: Sequence[int]) -> list[Event]:
        """Return the events that these tokens complete. Tokens after the end are ignored."""
        if (
            self._single_token_path
            and len(ids) == 1
            and (text := self._plain_texts[ids[0]]) is not None
        ):
            events = self._parser.feed(text, False)
            if (
                len(events) == 1
                and type(event := events[0]) is self._open_type
                and event.raw is text
            ):
                self.ids.append(ids[0])  # the common case: one more delta of the open block
                self._fold.add(event)
                return events
            self._offsets.add_token(ids[0], text)
            return self._finish_feed(events)
        return [] if self.stopped else self._feed_tokens(ids)

    def add_logprobs(self, logprobs: Iterable[float]) -> None:
        """Add the logprobs of the tokens that are fed next."""
        if not self.stopped:
            self._record.add_logprobs(logprobs)

    def mark_forced(self, start: int) -> None:
        """Mark the tokens from `start` on as not chosen by the model."""
        if start < len(self.ids):
            self._record.forced_ranges.append((start, len(self.ids)))

    def finish(self, reason: FinishReason | None = None) -> list[Event]:
        """End the output and return the remaining events, with `Finish` last."""
        self._single_token_path = False
        self._offsets.begin_feed()
        events = self._parse_stop_token(self._stop_id) if self.stop_held else []
        events += self._parse(self._detokenizer.finish())
        if self._stop_matcher is not None:
            events += self._parser.feed(self._stop_matcher.finish())
        emitted = self._emit(events + self._parser.finish())
        if self._text_stops is not None:
            emitted += self._emit_visible(list(self._text_stops.finish()))
        end = Finish(self._finish_reason(reason), self._stop_sequence)
        self._fold.add(end)
        self._finished = True
        return [*emitted, end]

    def reopen(self) -> None:
        """Continue a turn that the model ended. Its stop token is dropped."""
        self._stop_id = None
        self.stopped = self.stop_held = False
        self._record.drop_logprobs_after_ids()
        self._single_token_path = (
            self._plain_tokens_pass and not self._detokenizer.has_pending_bytes
        )

    def rewind(self, count: int) -> "Generation":
        """Return a generation that continues after the first `count` tokens.

        The events of these tokens were emitted already.
        """
        rewound = Generation(*self._source, entry_id=self.entry_id, new_call_id=self._new_call_id)
        rewound.holds_reasoning_end = self.holds_reasoning_end
        rewound._record.copy_start(self._record, count)
        rewound.feed(self.ids[:count])
        return rewound

    def message(self) -> Message:
        """Return the message so far."""
        if not self._finished:
            return self._fold.message()
        if self._message is None:
            self._message = self._fold.message()
        return self._message

    def build_entry(self, created: float = 0.0) -> LedgerEntry:
        """Build the ledger entry of the turn."""
        finished = self._finished or self._stop_id is not None
        message = self.message()
        finish = FINISH_REPEATED if self.repeated else message.finish
        # A turn that is truncated, or ended by a token of the request, has no stop token.
        stop = self._stop_id if self.ended_by_model else None
        return self._record.build_entry(message, stop, finish if finished else None, created)

    # Decoding

    def _feed_tokens(self, ids: Sequence[int]) -> list[Event]:
        """Process tokens of any kind: several, control tokens, stop tokens, parts of characters."""
        generated = self._take_until_stop_id(ids)
        self._offsets.begin_feed()
        self.ids.extend(generated)
        events = self._parse(self._detokenizer.feed(generated))
        if self._stop_id is not None:
            self.stop_held = self.holds_reasoning_end and self._parser.thinking
            events += [] if self.stop_held else self._parse_stop_token(self._stop_id)
        has_pending_bytes = self._detokenizer.has_pending_bytes
        if not has_pending_bytes:
            self._offsets.mark_boundary()
        if self._stop_matcher is not None and self._stop_matcher.found is not None:
            self._truncate(self._offsets.chars_before_stop)
        self._single_token_path = self._plain_tokens_pass and not (
            has_pending_bytes or self.stopped
        )
        return self._finish_feed(events)

    def _take_until_stop_id(self, ids: Sequence[int]) -> Sequence[int]:
        stop_ids = self.stop_ids
        if stop_ids.isdisjoint(ids):
            return ids
        end = next(at for at, id in enumerate(ids) if id in stop_ids)
        self._stop_id = ids[end]
        self.stopped = True
        return ids[:end]

    def _parse(self, pieces: Iterable[Piece]) -> list[Event]:
        events: list[Event] = []
        for piece in pieces:
            if piece.special and piece.text in self._hidden:
                continue
            self._offsets.add_text(piece.text)
            if self._stop_matcher is not None:
                events += self._parse_until_stop_sequence(piece, self._stop_matcher)
            else:
                events += self._parser.feed(piece.text, piece.special)
        return events

    def _parse_until_stop_sequence(self, piece: Piece, stops: StopSequenceMatcher) -> list[Event]:
        """Parse up to a stop sequence, which can only be plain text, not a control token."""
        if stops.found is not None:
            return []
        text = stops.finish() if piece.special else stops.feed(piece.text)
        events = self._parser.feed(text, False)
        self._offsets.chars_before_stop += len(text)
        self.stopped |= stops.found is not None
        if piece.special:
            events += self._parser.feed(piece.text, True)
            self._offsets.chars_before_stop += len(piece.text)
        return events

    def _parse_stop_token(self, id: int | None) -> list[Event]:
        """Parse a stop token that is also a marker (gpt-oss ends a call with one)."""
        if id is None:
            return []
        text = self._spec.tokenizer.bytes_of(id).decode("utf-8", "replace")
        if text not in self._spec.special_markers:
            return []
        return self._parse([*self._detokenizer.finish(), Piece(text, True)])

    # Emitting

    def _finish_feed(self, events: list[Event]) -> list[Event]:
        """Emit the events of a feed and update the offsets of held-back text."""
        emitted = self._emit(events) if events else events
        self._open_type = self._offsets.end_feed()
        return emitted

    def _emit(self, events: list[Event]) -> list[Event]:
        """Emit the events before a stop sequence or an excluded call, which end the output."""
        shown = events if self._text_stops is None else self._text_stops.filter(events)
        if self._call_limit.is_set:
            shown = self._until_excluded_call(shown)
        emitted = self._emit_visible(shown)
        found = self._text_stops is not None and self._text_stops.found is not None
        if (found or self._call_excluded) and not self._truncated:
            self.stopped = True
            self._truncate(self._offsets.emitted_chars)
        return emitted

    def _until_excluded_call(self, events: list[Event]) -> list[Event]:
        """Return the events before an excluded call. Its beginning is dropped with it."""
        if self._call_excluded:
            return []
        for at, event in enumerate(events):
            if isinstance(event, CallOpen) and self._call_limit.excludes(event):
                self._call_excluded = True
                return events[:at]
        return events

    def _emit_visible(self, events: list[Event]) -> list[Event]:
        """Add public ids and seals to events."""
        emitted: list[Event] = []
        for event in events:
            if isinstance(event, CallOpen):
                model_id, event = event.id, msgspec.structs.replace(event, id=self._new_call_id())
                self._record.model_call_ids[event.id or ""] = model_id
            self._fold.add(event)
            self._offsets.add_event(event)
            if isinstance(event, SpanEnd) and event.kind == "reasoning":
                event = msgspec.structs.replace(event, seal=self._record.seal(self._fold))
            emitted.append(event)
        return emitted

    @property
    def _stop_sequence(self) -> str | None:
        stops = self._stop_matcher or self._text_stops
        return None if stops is None else stops.found

    def _truncate(self, chars: int) -> None:
        """Drop the tokens after these characters, which the client does not receive."""
        self._truncated = True
        del self.ids[self._offsets.count_ids_within(chars) :]

    def _finish_reason(self, given: FinishReason | None) -> FinishReason:
        if self._stop_sequence is not None:
            return "stop_sequence"
        if given in (None, "stop", "tool_calls"):
            return self._fold.message().finish
        return given
