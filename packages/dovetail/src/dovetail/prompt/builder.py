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
from dovetail.prompt.messages import (
    ChatMessage,
    MessageBuilder,
    TextEscaper,
    ToolNames,
    format_tools,
)
from dovetail.prompt.partial_render import PartialRenderer
from dovetail.prompt.prompt import HeadDigests, Prompt, PromptOrigin
from dovetail.prompt.splice import (
    ContextDependency,
    FollowingRole,
    SplicePoint,
    Splicer,
    SpliceShape,
    keep_calls_only,
)
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail.prompt.tool_fallback import needs_fallback, to_plain_messages
from dovetail.prompt.turn_writer import TurnWriter, is_interleaved
from dovetail_model import ReasoningBlock, Request, ToolCallBlock, ToolSpec, Turn
from dovetail_tokenizers import ControlTokenGuard


@dataclass(frozen=True)
class RenderContext:
    """What all prompts of a model are made with.

    `opens` says whether output behind an end of a prompt begins inside a thought; `roles` finds
    the control tokens that are no part of the model's own notation, as those of role headers are.
    """

    template: ChatTemplate
    profile: TemplateProfile
    guard: ControlTokenGuard
    splicer: Splicer
    partial_renderer: PartialRenderer
    writer: TurnWriter
    opens_reasoning: Callable[[str], bool]
    role_tokens: re.Pattern[str] | None

    def encode_turn(self, text: str) -> list[int]:
        """The tokens of a turn in the model's notation, without what ends it: that comes next."""
        for end in self.splicer.stop_tokens:
            if text.endswith(end):
                text = text.removesuffix(end)
                break
        return self.guard.encode(text, first=False)

    def find_opening(self, text: str) -> str | None:
        """How a prompt ends behind its last role marker; None where there is none in reach."""
        end = text[-200:]
        roles = list(self.role_tokens.finditer(end)) if self.role_tokens is not None else []
        return end[roles[-1].end() :] if roles else None


class PromptTools:
    """A request's tools as the prompt has them."""

    __slots__ = ("definitions", "names")

    def __init__(self, tools: Sequence[ToolSpec], protect: TextEscaper) -> None:
        self.names = ToolNames(tools)
        self.definitions: list[ChatMessage] = format_tools(tools, protect)


class PromptBuilder:
    """Puts one prompt together."""

    def __init__(
        self,
        context: RenderContext,
        request: Request,
        history: RecognizedHistory,
        tools: PromptTools,
        switches: Mapping[str, Any],
        start: int,
    ) -> None:
        self._context = context
        self._system = request.system
        self._turns = request.turns
        self._prefill: Turn | None = None
        if self._turns and self._turns[-1].role == "assistant":
            self._turns, self._prefill = self._turns[:-1], self._turns[-1]
        self._history = history
        self._start = start
        self._names = tools.names
        self._tools = tools.definitions
        self._switches = switches
        self._prompt_end = ""  # the end of the prompt so far
        self._opening: str | None = None  # the same from its last role marker on
        self._is_resumed = False
        self._is_unchanged = (
            False  # the last known turn stands in it as it was, by the template's hand
        )
        self._reused_tokens = 0
        self._notes: list[str] = []

    def build(self, head: HeadDigests) -> Prompt:
        """The whole prompt. A turn that cannot be spliced after all is left to the template."""
        places = self._spliced_turns()
        built = self._build_ids(places)
        while isinstance(built, int):
            self._notes.append("splice_failed")
            places.remove(built)
            built = self._build_ids(places)
        if self._prefill is not None:
            self._append_prefill(built, self._prefill)
        how: PromptOrigin = "iterated" if places else "cold"
        if self._is_anchored(places) or self._is_unchanged:
            how = "grown"
        elif self._is_resumed:
            how = "resumed"
        known = self._history.entries
        exact = frozenset(at for at in places if at in known and known[at].finish != FINISH_REBUILT)
        return Prompt(
            ids=built,
            origin=how,
            in_reasoning=self._context.opens_reasoning(self._prompt_end),
            head=head,
            history=self._history,
            exact_turns=exact,
            unchanged_turns=self._unchanged_turns(),
            rewritten_turns=frozenset(places) - exact,
            reused_tokens=self._reused_tokens,
            reasoning_dropped=self._drops_reasoning(),
            opening=self._opening,
            notes=(*self._history.notes, *self._notes),
        )

    def _drops_reasoning(self) -> bool:
        """Whether thoughts of the last known turn fall here to the template's policy."""
        place = self._history.parent_index
        return place is not None and place < self._start and not self._is_unchanged

    def _unchanged_turns(self) -> frozenset[int]:
        """The model's turns that the template wrote as they were said."""
        if not self._is_unchanged:
            return frozenset()
        first = self._history.base_prompt[0] if self._history.base_prompt is not None else 0
        last = self._history.parent_index or 0
        places = range(first, last + 1)
        return frozenset(at for at in places if self._turns[at].role == "assistant")

    def _spliced_turns(self) -> list[int]:
        """The turns not left to the template: known ones, and those that it would regroup."""
        first = max(self._history.anchor_index or 0, self._start)
        return [
            at
            for at in range(first, len(self._turns))
            if self._turns[at].role == "assistant"
            and self._splice_point(at) is not None
            and (at in self._history.entries or self._must_rewrite(self._turns[at]))
        ]

    def _must_rewrite(self, turn: Turn) -> bool:
        """Whether the template would lose or regroup what a turn says."""
        facts = self._context.profile
        kinds = {block.type for block in turn.blocks}
        if not facts.text_with_calls and kinds >= {"text", "tool_call"}:
            return True
        if not any(isinstance(block, ReasoningBlock) and block.text for block in turn.blocks):
            return False
        has_place = facts.reasoning_fields or facts.thinking_parts
        return not has_place or (is_interleaved(turn) and facts.keeps_in_loop)

    def _is_anchored(self, places: list[int]) -> bool:
        return bool(places) and places[0] == self._history.anchor_index

    def _build_ids(self, places: list[int]) -> "array[int] | int":
        """The ids, or the place that could not be spliced."""
        anchored = self._is_anchored(places) and self._history.parent_token_ids is not None
        if anchored:
            ids = self._history.parent_token_ids[:]  # type: ignore[index]
            self._reused_tokens = len(ids)
        else:
            ids = self._render_natural(places[0] if places else len(self._turns))
        for at, end in pairwise([*places, len(self._turns)]):
            if not (anchored and at == places[0]):
                said = self._turn_ids(at)
                if said is None or not self._restore_opening(ids, at):
                    return at
                ids.extend(said)
            suffix = self._render_suffix(at, end)
            if suffix is None:
                return at
            ids.extend(self._context.guard.pack(suffix, first=False))
            self._update_end(suffix)
        return ids

    def _render_natural(self, until: int) -> "array[int]":
        """The template's own rendering of the first turns."""
        resumed = self._render_resumed(until)
        if resumed is not None:
            return resumed
        messages = self._message_builder(0).build(self._system, self._turns[:until])
        messages = self._apply_fallback(messages, self._tools)
        tools = self._tools if self._context.profile.renders_tools else ()
        text = self._context.template.render(messages, tools, switches=self._switches)
        self._update_end(text)
        return self._encode_reusing(array(TOKEN_ID_TYPECODE), text)

    def _render_resumed(self, until: int) -> "array[int] | None":
        """The same from the last known prompt that answered a user, where the template allows."""
        base, resumption = self._history.base_prompt, self._context.partial_renderer
        if base is None or base[0] >= until or not resumption.supported:
            return None
        at, known = base
        conversation = self._message_builder(at)
        messages = [m for turn in self._turns[at:until] for m in conversation.build_turn(turn)]
        tools = bool(self._tools)
        opening = resumption.render_after_user([], tools, self._switches)
        messages = self._apply_fallback(conversation.adapt(messages))
        text = resumption.render_after_user(messages, tools, self._switches)
        if opening is None or text is None:
            return None
        tail = self._context.guard.pack(opening, first=False)
        if not tail or known[-len(tail) :] != tail:
            return None
        self._is_resumed, self._reused_tokens = True, len(known) - len(tail)
        self._update_end(text)
        return self._encode_reusing(known[: -len(tail)], text)

    def _encode_reusing(self, before: "array[int]", text: str) -> "array[int]":
        """The ids of a rendered text behind others.

        Where the template writes all that was said up to the last known turn as it was said, those
        are the ids of then: encoded again, the same text could become others.
        """
        whole, guard = self._history.parent_token_ids, self._context.guard
        if whole is not None and whole[: len(before)] == before:
            length = guard.match_length(whole[len(before) :], text, first=not before)
            if length is not None:
                self._reused_tokens, self._is_unchanged = len(whole), True
                return whole + guard.pack(text[length:], first=False)
        return before + guard.pack(text, first=not before)

    def _restore_opening(self, ids: "array[int]", index: int) -> bool:
        """Puts the turn's own opening before it, where a switch has changed that since.

        False if that cannot be done: the tokens would stand behind words they did not follow.
        """
        entry = self._history.entries.get(index)
        if entry is None or entry.opening is None or entry.opening == self._opening:
            return True
        if self._opening is None:
            return False
        tail = self._context.guard.pack(self._opening, first=False)
        if len(tail) and ids[-len(tail) :] != tail:
            return False
        del ids[len(ids) - len(tail) :]
        ids.extend(self._context.guard.pack(entry.opening, first=False))
        return True

    def _update_end(self, text: str) -> None:
        self._opening = self._context.find_opening(text)
        self._prompt_end = text[-40:] if self._opening is None else self._opening

    def _turn_ids(self, index: int) -> "Sequence[int] | None":
        """The tokens of a turn: the model's own, or those of its notation."""
        entry = self._history.entries.get(index)
        if entry is not None:
            return unpack_ids(entry.generated)
        text = self._write_turn(self._turns[index])
        return None if text is None else self._context.encode_turn(text)

    def _write_turn(self, turn: Turn) -> str | None:
        return self._context.writer.write(
            turn, self._names, self._context.guard.protect, self._prompt_end
        )

    def _render_suffix(self, index: int, end: int) -> str | None:
        """What the template writes behind a turn, up to the next one that is spliced."""
        seam, turn, entry = (
            self._splice_point(index),
            self._turns[index],
            self._history.entries.get(index),
        )
        assert seam is not None
        if any(later.role == "assistant" for later in self._turns[index + 1 : end]):
            seam = replace(seam, depends_on=self._context.splicer.strongest_dependency)
        conversation = self._message_builder(index)
        own_ids = [span.own_id for span in entry.spans if span.kind == "call"] if entry else ()
        calls = conversation.number_calls(turn, own_ids)
        behind = [
            m for later in self._turns[index + 1 : end] for m in conversation.build_turn(later)
        ]
        return self._context.splicer.render_suffix(
            seam,
            calls,
            self._history_before(seam.depends_on, index),
            self._apply_fallback(conversation.adapt(behind)),
            self._tools,
            self._switches,
        )

    def _history_before(self, depends_on: ContextDependency, index: int) -> list[ChatMessage]:
        """As much of the messages before a turn as what follows it hangs on."""
        if depends_on == "nothing":
            return []
        if depends_on == "history":
            messages = self._message_builder(0).build(self._system, self._turns[:index])
            return self._apply_fallback(messages, self._tools)
        turns = [turn for turn in self._turns[:index] if turn.role in ("assistant", "tool")]
        conversation = self._message_builder(0)
        return keep_calls_only(
            [message for turn in turns for message in conversation.build_turn(turn)]
        )

    def _apply_fallback(
        self, messages: list[ChatMessage], tools: Sequence[ChatMessage] = ()
    ) -> list[ChatMessage]:
        """The messages with what the template has no place for written as text."""
        if not needs_fallback(self._context.profile):
            return messages
        parser = self._context.writer.tool_parser
        return to_plain_messages(messages, tools, self._context.profile, parser)

    def _append_prefill(self, ids: "array[int]", prefill: Turn) -> None:
        """The answer was begun, by the client or the model: the model goes on from there."""
        entry = self._history.partial_entry
        if entry is not None:
            ids.extend(unpack_ids(entry.generated))
            self._prompt_end += "".join(span.raw for span in entry.spans)
            self._opening = None
            return
        protect = self._context.guard.protect
        text = self._context.writer.write_partial(prefill, self._names, protect, self._prompt_end)
        if text is None:
            self._notes.append("prefill_ignored")
            return
        ids.extend(self._context.guard.pack(text, first=False))
        self._prompt_end += text
        self._opening = None

    def _splice_point(self, index: int) -> SplicePoint | None:
        turn = self._turns[index]
        follower = self._following_role(index)
        if follower is None:
            return None
        calls = any(isinstance(block, ToolCallBlock) for block in turn.blocks)
        return self._context.splicer.points.get(SpliceShape(calls, follower))

    def _following_role(self, index: int) -> FollowingRole | None:
        if index + 1 >= len(self._turns):
            return None
        role = self._turns[index + 1].role
        if role in ("system", "developer") and self._context.profile.system_inside == "kept":
            return "system"
        return "tool" if role == "tool" and self._context.profile.renders_results else "user"

    def _message_builder(self, index: int) -> MessageBuilder:
        """A transcript that begins at this place; calls are numbered through the whole history."""
        if index == self._history.anchor_index or (
            self._history.base_prompt and index == self._history.base_prompt[0]
        ):
            calls = self._history.call_count
        else:
            calls = sum(
                isinstance(block, ToolCallBlock)
                for turn in self._turns[:index]
                for block in turn.blocks
            )
        return MessageBuilder(
            self._context.profile, self._context.guard.protect, self._names, calls
        )
