"""One prompt in the making: what is known taken as it was, what is new rendered and encoded.

    prompt(N+1) = prompt(N) + generated(N) + encode(suffix)

The known part is neither rendered nor encoded again. Where it does not fit (another system text,
another set of tools, turns restored from seals) the splice is iterated: the first prompt rendered
cold, then turn by turn. Where the model's own policy drops thoughts, the template has its way.
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, unpack_ids
from dovetail.ledger.recognition import RecognizedHistory
from dovetail.ledger.restoration import FINISH_REBUILT
from dovetail.prompt.facts import Facts
from dovetail.prompt.messages import (
    Conversation,
    Message,
    Names,
    Protect,
    tool_definitions,
)
from dovetail.prompt.partial_render import Resumption
from dovetail.prompt.prompt import Head, How, Prompt
from dovetail.prompt.rendering_template import ChatTemplate
from dovetail.prompt.splice import Follower, HangsOn, Seam, Shape, Splicer, thinned
from dovetail.prompt.tool_fallback import as_plain_messages, needs_fallback
from dovetail.prompt.turn_writer import TurnWriter, interleaved
from dovetail_model import ReasoningBlock, Request, ToolCallBlock, ToolSpec, Turn
from dovetail_tokenizers import Guard


@dataclass(frozen=True)
class Kit:
    """What all prompts of a model are made with.

    `opens` says whether output behind an end of a prompt begins inside a thought; `roles` finds
    the control tokens that are no part of the model's own notation, as those of role headers are.
    """

    template: ChatTemplate
    facts: Facts
    guard: Guard
    splicer: Splicer
    resumption: Resumption
    writer: TurnWriter
    opens: Callable[[str], bool]
    roles: re.Pattern[str] | None

    def encode_written(self, text: str) -> list[int]:
        """The tokens of a turn in the model's notation, without what ends it: that comes next."""
        for end in self.splicer.ends:
            if text.endswith(end):
                text = text.removesuffix(end)
                break
        return self.guard.encode(text, first=False)

    def opening_of(self, text: str) -> str | None:
        """How a prompt ends behind its last role marker; None where there is none in reach."""
        end = text[-200:]
        roles = list(self.roles.finditer(end)) if self.roles is not None else []
        return end[roles[-1].end() :] if roles else None


class Tools:
    """A request's tools as the prompt has them."""

    __slots__ = ("definitions", "names")

    def __init__(self, tools: Sequence[ToolSpec], protect: Protect) -> None:
        self.names = Names(tools)
        self.definitions: list[Message] = tool_definitions(tools, protect)


class Assembly:
    """Puts one prompt together."""

    def __init__(
        self,
        kit: Kit,
        request: Request,
        recalled: RecognizedHistory,
        tools: Tools,
        switches: Mapping[str, Any],
        start: int,
    ) -> None:
        self._kit = kit
        self._system = request.system
        self._turns = request.turns
        self._prefill: Turn | None = None
        if self._turns and self._turns[-1].role == "assistant":
            self._turns, self._prefill = self._turns[:-1], self._turns[-1]
        self._recalled = recalled
        self._start = start
        self._names = tools.names
        self._tools = tools.definitions
        self._switches = switches
        self._end = ""  # the end of the prompt so far
        self._opening: str | None = None  # the same from its last role marker on
        self._is_resumed = False
        self._is_kept = False  # the last known turn stands in it as it was, by the template's hand
        self._reused = 0
        self._notes: list[str] = []

    def prompt(self, head: Head) -> Prompt:
        """The whole prompt. A turn that cannot be spliced after all is left to the template."""
        places = self._places()
        built = self._build(places)
        while isinstance(built, int):
            self._notes.append("splice_failed")
            places.remove(built)
            built = self._build(places)
        if self._prefill is not None:
            self._continue(built, self._prefill)
        how: How = "iterated" if places else "cold"
        if self._is_anchored(places) or self._is_kept:
            how = "grown"
        elif self._is_resumed:
            how = "resumed"
        known = self._recalled.entries
        exact = frozenset(at for at in places if at in known and known[at].finish != FINISH_REBUILT)
        return Prompt(
            ids=built,
            how=how,
            in_reasoning=self._kit.opens(self._end),
            head=head,
            recalled=self._recalled,
            exact=exact,
            kept=self._kept_places(),
            written=frozenset(places) - exact,
            reused=self._reused,
            dropped=self._drops(),
            opening=self._opening,
            notes=(*self._recalled.notes, *self._notes),
        )

    def _drops(self) -> bool:
        """Whether thoughts of the last known turn fall here to the template's policy."""
        place = self._recalled.parent_index
        return place is not None and place < self._start and not self._is_kept

    def _kept_places(self) -> frozenset[int]:
        """The model's turns that the template wrote as they were said."""
        if not self._is_kept:
            return frozenset()
        first = self._recalled.base_prompt[0] if self._recalled.base_prompt is not None else 0
        last = self._recalled.parent_index or 0
        places = range(first, last + 1)
        return frozenset(at for at in places if self._turns[at].role == "assistant")

    def _places(self) -> list[int]:
        """The turns not left to the template: known ones, and those that it would regroup."""
        first = max(self._recalled.anchor_index or 0, self._start)
        return [
            at
            for at in range(first, len(self._turns))
            if self._turns[at].role == "assistant"
            and self._seam(at) is not None
            and (at in self._recalled.entries or self._must_write(self._turns[at]))
        ]

    def _must_write(self, turn: Turn) -> bool:
        """Whether the template would lose or regroup what a turn says."""
        facts = self._kit.facts
        kinds = {block.type for block in turn.blocks}
        if not facts.text_with_calls and kinds >= {"text", "tool_call"}:
            return True
        if not any(isinstance(block, ReasoningBlock) and block.text for block in turn.blocks):
            return False
        has_place = facts.reasoning_fields or facts.thinking_parts
        return not has_place or (interleaved(turn) and facts.keeps_in_loop)

    def _is_anchored(self, places: list[int]) -> bool:
        return bool(places) and places[0] == self._recalled.anchor_index

    def _build(self, places: list[int]) -> "array[int] | int":
        """The ids, or the place that could not be spliced."""
        anchored = self._is_anchored(places) and self._recalled.parent_token_ids is not None
        if anchored:
            ids = self._recalled.parent_token_ids[:]  # type: ignore[index]
            self._reused = len(ids)
        else:
            ids = self._natural(places[0] if places else len(self._turns))
        for at, end in pairwise([*places, len(self._turns)]):
            if not (anchored and at == places[0]):
                said = self._said(at)
                if said is None or not self._reopen(ids, at):
                    return at
                ids.extend(said)
            suffix = self._suffix(at, end)
            if suffix is None:
                return at
            ids.extend(self._kit.guard.pack(suffix, first=False))
            self._note_end(suffix)
        return ids

    def _natural(self, until: int) -> "array[int]":
        """The template's own rendering of the first turns."""
        resumed = self._resumed(until)
        if resumed is not None:
            return resumed
        messages = self._conversation(0).messages(self._system, self._turns[:until])
        messages = self._plain(messages, self._tools)
        tools = self._tools if self._kit.facts.renders_tools else ()
        text = self._kit.template.render(messages, tools, switches=self._switches)
        self._note_end(text)
        return self._as_said(array(TOKEN_ID_TYPECODE), text)

    def _resumed(self, until: int) -> "array[int] | None":
        """The same from the last known prompt that answered a user, where the template allows."""
        base, resumption = self._recalled.base_prompt, self._kit.resumption
        if base is None or base[0] >= until or not resumption.possible:
            return None
        at, known = base
        conversation = self._conversation(at)
        messages = [m for turn in self._turns[at:until] for m in conversation.turn(turn)]
        tools = bool(self._tools)
        opening = resumption.behind_user([], tools, self._switches)
        messages = self._plain(conversation.fitted(messages))
        text = resumption.behind_user(messages, tools, self._switches)
        if opening is None or text is None:
            return None
        tail = self._kit.guard.pack(opening, first=False)
        if not tail or known[-len(tail) :] != tail:
            return None
        self._is_resumed, self._reused = True, len(known) - len(tail)
        self._note_end(text)
        return self._as_said(known[: -len(tail)], text)

    def _as_said(self, before: "array[int]", text: str) -> "array[int]":
        """The ids of a rendered text behind others.

        Where the template writes all that was said up to the last known turn as it was said, those
        are the ids of then: encoded again, the same text could become others.
        """
        whole, guard = self._recalled.parent_token_ids, self._kit.guard
        if whole is not None and whole[: len(before)] == before:
            length = guard.spelled(whole[len(before) :], text, first=not before)
            if length is not None:
                self._reused, self._is_kept = len(whole), True
                return whole + guard.pack(text[length:], first=False)
        return before + guard.pack(text, first=not before)

    def _reopen(self, ids: "array[int]", at: int) -> bool:
        """Puts the turn's own opening before it, where a switch has changed that since.

        False if that cannot be done: the tokens would stand behind words they did not follow.
        """
        entry = self._recalled.entries.get(at)
        if entry is None or entry.opening is None or entry.opening == self._opening:
            return True
        if self._opening is None:
            return False
        tail = self._kit.guard.pack(self._opening, first=False)
        if len(tail) and ids[-len(tail) :] != tail:
            return False
        del ids[len(ids) - len(tail) :]
        ids.extend(self._kit.guard.pack(entry.opening, first=False))
        return True

    def _note_end(self, text: str) -> None:
        self._opening = self._kit.opening_of(text)
        self._end = text[-40:] if self._opening is None else self._opening

    def _said(self, at: int) -> "Sequence[int] | None":
        """The tokens of a turn: the model's own, or those of its notation."""
        entry = self._recalled.entries.get(at)
        if entry is not None:
            return unpack_ids(entry.generated)
        text = self._written(self._turns[at])
        return None if text is None else self._kit.encode_written(text)

    def _written(self, turn: Turn) -> str | None:
        return self._kit.writer.write(turn, self._names, self._kit.guard.protect, self._end)

    def _suffix(self, at: int, end: int) -> str | None:
        """What the template writes behind a turn, up to the next one that is spliced."""
        seam, turn, entry = self._seam(at), self._turns[at], self._recalled.entries.get(at)
        assert seam is not None
        if any(later.role == "assistant" for later in self._turns[at + 1 : end]):
            seam = replace(seam, hangs_on=self._kit.splicer.strongest)
        conversation = self._conversation(at)
        own_ids = [span.own_id for span in entry.spans if span.kind == "call"] if entry else ()
        calls = conversation.number_calls(turn, own_ids)
        behind = [m for later in self._turns[at + 1 : end] for m in conversation.turn(later)]
        return self._kit.splicer.tail(
            seam,
            calls,
            self._before(seam.hangs_on, at),
            self._plain(conversation.fitted(behind)),
            self._tools,
            self._switches,
        )

    def _before(self, hangs_on: HangsOn, at: int) -> list[Message]:
        """As much of the messages before a turn as what follows it hangs on."""
        if hangs_on == "nothing":
            return []
        if hangs_on == "history":
            messages = self._conversation(0).messages(self._system, self._turns[:at])
            return self._plain(messages, self._tools)
        turns = [turn for turn in self._turns[:at] if turn.role in ("assistant", "tool")]
        conversation = self._conversation(0)
        return thinned([message for turn in turns for message in conversation.turn(turn)])

    def _plain(self, messages: list[Message], tools: Sequence[Message] = ()) -> list[Message]:
        """The messages with what the template has no place for written as text."""
        if not needs_fallback(self._kit.facts):
            return messages
        parser = self._kit.writer.tool_parser
        return as_plain_messages(messages, tools, self._kit.facts, parser)

    def _continue(self, ids: "array[int]", prefill: Turn) -> None:
        """The answer was begun, by the client or the model: the model goes on from there."""
        entry = self._recalled.partial_entry
        if entry is not None:
            ids.extend(unpack_ids(entry.generated))
            self._end += "".join(span.raw for span in entry.spans)
            self._opening = None
            return
        protect = self._kit.guard.protect
        text = self._kit.writer.begin(prefill, self._names, protect, self._end)
        if text is None:
            self._notes.append("prefill_ignored")
            return
        ids.extend(self._kit.guard.pack(text, first=False))
        self._end += text
        self._opening = None

    def _seam(self, at: int) -> Seam | None:
        turn = self._turns[at]
        follower = self._follower(at)
        if follower is None:
            return None
        calls = any(isinstance(block, ToolCallBlock) for block in turn.blocks)
        return self._kit.splicer.seams.get(Shape(calls, follower))

    def _follower(self, at: int) -> Follower | None:
        if at + 1 >= len(self._turns):
            return None
        role = self._turns[at + 1].role
        if role in ("system", "developer") and self._kit.facts.system_inside == "kept":
            return "system"
        return "tool" if role == "tool" and self._kit.facts.renders_results else "user"

    def _conversation(self, at: int) -> Conversation:
        """A transcript that begins at this place; calls are numbered through the whole history."""
        if at == self._recalled.anchor_index or (self._recalled.base_prompt and at == self._recalled.base_prompt[0]):
            calls = self._recalled.call_count
        else:
            calls = sum(
                isinstance(block, ToolCallBlock)
                for turn in self._turns[:at]
                for block in turn.blocks
            )
        return Conversation(self._kit.facts, self._kit.guard.protect, self._names, calls)
