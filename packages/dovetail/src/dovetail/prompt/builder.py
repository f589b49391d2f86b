"""Build one prompt: reuse the known tokens, render and encode the new part.

    prompt(N+1) = prompt(N) + generated(N) + encode(suffix)

The known part is neither rendered nor encoded again. If it does not match (another system text,
other tools, turns restored from seals), the splice is iterated: the first prompt is rendered cold,
then extended turn by turn. If the policy of the model drops reasoning, the template renders those
turns.
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, unpack_ids
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.restoration import FINISH_REBUILT
from dovetail.prompt.conversation_state import StateRecord
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
    """The components that render all prompts of a model.

    `opens_reasoning`: returns whether output after this end of a prompt begins inside reasoning.
    `role_tokens`: matches the control tokens that are not part of the output notation, such as
    those of role headers.
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
        """Encode a turn in the model's notation, without its stop token, which the suffix adds."""
        for end in self.splicer.stop_tokens:
            if text.endswith(end):
                text = text.removesuffix(end)
                break
        return self.guard.encode(text, first=False)

    def find_opening(self, text: str) -> str | None:
        """Return the text after the last role marker, or None if no marker is near the end."""
        end = text[-200:]
        roles = list(self.role_tokens.finditer(end)) if self.role_tokens is not None else []
        return end[roles[-1].end() :] if roles else None


class PromptTools:
    """The tools of a request in the form for the prompt."""

    __slots__ = ("definitions", "names")

    def __init__(self, tools: Sequence[ToolSpec], protect: TextEscaper) -> None:
        self.names = ToolNames(tools)
        self.definitions: list[ChatMessage] = format_tools(tools, protect)

    def with_names(self, tools: Sequence[ToolSpec]) -> "PromptTools":
        """Return the same definitions with the names of other tools."""
        copy = PromptTools.__new__(PromptTools)
        copy.names, copy.definitions = ToolNames(tools), self.definitions
        return copy


class PromptBuilder:
    """Builds one prompt."""

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
        self._prompt_end = ""  # the end of the text so far
        self._opening: str | None = None  # the text after its last role marker
        self._is_resumed = False
        self._is_unchanged = False  # the template rendered the last known turn unchanged
        self._reused_tokens = 0
        self._notes: list[str] = []

    def build(self, head: HeadDigests, state: StateRecord) -> Prompt:
        """Build the prompt. The template renders the turns that cannot be spliced."""
        spliced = self._spliced_turns()
        built = self._build_ids(spliced)
        while isinstance(built, int):
            self._notes.append("splice_failed")
            spliced.remove(built)
            built = self._build_ids(spliced)
        if self._prefill is not None:
            self._append_prefill(built, self._prefill)
        origin: PromptOrigin = "iterated" if spliced else "cold"
        if self._is_anchored(spliced) or self._is_unchanged:
            origin = "grown"
        elif self._is_resumed:
            origin = "resumed"
        entries = self._history.entries
        exact = frozenset(
            at for at in spliced if at in entries and entries[at].finish != FINISH_REBUILT
        )
        return Prompt(
            ids=built,
            origin=origin,
            in_reasoning=self._context.opens_reasoning(self._prompt_end),
            head=head,
            history=self._history,
            exact_turns=exact,
            unchanged_turns=self._unchanged_turns(),
            rewritten_turns=frozenset(spliced) - exact,
            reused_tokens=self._reused_tokens,
            reasoning_dropped=self._drops_reasoning(),
            opening=self._opening,
            notes=(*self._history.notes, *self._notes),
            state=state,
        )

    def _drops_reasoning(self) -> bool:
        """Return whether the template drops the reasoning of the last known turn."""
        index, history = self._history.parent_index, self._history
        if index is None or self._is_unchanged:
            return False
        return index < self._start or index in history.without_reasoning

    def _unchanged_turns(self) -> frozenset[int]:
        """Return the assistant turns that the template rendered exactly as they were generated."""
        if not self._is_unchanged:
            return frozenset()
        first = self._history.base_prompt[0] if self._history.base_prompt is not None else 0
        last = self._history.parent_index or 0
        places = range(first, last + 1)
        return frozenset(at for at in places if self._turns[at].role == "assistant")

    def _spliced_turns(self) -> list[int]:
        """Return the turns not rendered by the template: known ones, and those it would regroup."""
        first = max(self._history.anchor_index or 0, self._start)
        return [
            at
            for at in range(first, len(self._turns))
            if self._turns[at].role == "assistant"
            and self._splice_point(at) is not None
            and (at in self._history.entries or self._must_rewrite(at))
        ]

    def _must_rewrite(self, index: int) -> bool:
        """Return whether the template would drop or regroup parts of a turn."""
        turn, profile = self._turns[index], self._context.profile
        kinds = {block.type for block in turn.blocks}
        if not profile.text_with_calls and kinds >= {"text", "tool_call"}:
            return True
        if not any(isinstance(block, ReasoningBlock) and block.text for block in turn.blocks):
            return False
        if index < self._history.forced_until:
            return True
        has_place = profile.reasoning_fields or profile.thinking_parts
        return not has_place or (is_interleaved(turn) and profile.keeps_in_loop)

    def _is_anchored(self, spliced: list[int]) -> bool:
        return bool(spliced) and spliced[0] == self._history.anchor_index

    def _build_ids(self, spliced: list[int]) -> "array[int] | int":
        """Build the ids, or return the index of the turn that could not be spliced."""
        parent_ids = self._history.parent_token_ids if self._is_anchored(spliced) else None
        if parent_ids is not None:
            self._reused_tokens = len(parent_ids)
            # With further spliced turns, the array may be shortened again.
            ids = parent_ids.take() if len(spliced) == 1 else parent_ids[:]
        else:
            ids = self._render_natural(spliced[0] if spliced else len(self._turns))
        for at, end in pairwise([*spliced, len(self._turns)]):
            if parent_ids is None or at != spliced[0]:
                turn_ids = self._turn_ids(at)
                if turn_ids is None or not self._restore_opening(ids, at):
                    return at
                ids.extend(turn_ids)
            suffix = self._render_suffix(at, end)
            if suffix is None:
                return at
            ids.extend(self._context.guard.pack(suffix, first=False))
            self._update_end(suffix)
        return ids

    def _render_natural(self, until: int) -> "array[int]":
        """Render the first turns with the template."""
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
        """Render from the last known prompt after a user turn, if the template supports it."""
        base, partial_renderer = self._history.base_prompt, self._context.partial_renderer
        if base is None or base[0] >= until or not partial_renderer.supported:
            return None
        at, known = base
        builder = self._message_builder(at)
        messages = [m for turn in self._turns[at:until] for m in builder.build_turn(turn)]
        tools = bool(self._tools)
        opening = partial_renderer.render_after_user([], tools, self._switches)
        messages = self._apply_fallback(builder.adapt(messages))
        text = partial_renderer.render_after_user(messages, tools, self._switches)
        if opening is None or text is None:
            return None
        tail = self._context.guard.pack(opening, first=False)
        if not tail or known[-len(tail) :] != tail:
            return None
        self._is_resumed, self._reused_tokens = True, len(known) - len(tail)
        self._update_end(text)
        return self._encode_reusing(known[: -len(tail)], text)

    def _encode_reusing(self, before: "array[int]", text: str) -> "array[int]":
        """Encode a rendered text that follows other ids.

        If the template renders everything up to the last known turn exactly as generated, the
        known ids are reused, because encoding the same text may give different ids.
        """
        parent_ids, guard = self._history.parent_token_ids, self._context.guard
        if parent_ids is not None and parent_ids[: len(before)] == before:
            length = guard.match_length(parent_ids[len(before) :], text, first=not before)
            if length is not None:
                self._reused_tokens, self._is_unchanged = len(parent_ids), True
                return parent_ids[:] + guard.pack(text[length:], first=False)
        return before + guard.pack(text, first=not before)

    def _restore_opening(self, ids: "array[int]", index: int) -> bool:
        """Restore the original opening before a turn if a switch has changed it since.

        Returns False if this is impossible: the tokens would follow a different text.
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
        """Return the tokens of a turn: generated, or encoded in the model's notation."""
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
        """Render the messages after a turn, up to the next spliced turn."""
        point, turn, entry = (
            self._splice_point(index),
            self._turns[index],
            self._history.entries.get(index),
        )
        assert point is not None
        if any(later.role == "assistant" for later in self._turns[index + 1 : end]):
            point = replace(point, depends_on=self._context.splicer.strongest_dependency)
        builder = self._message_builder(index)
        own_ids = [span.own_id for span in entry.spans if span.kind == "call"] if entry else ()
        calls = builder.number_calls(turn, own_ids)
        following = [m for later in self._turns[index + 1 : end] for m in builder.build_turn(later)]
        return self._context.splicer.render_suffix(
            point,
            calls,
            self._history_before(point.depends_on, index),
            self._apply_fallback(builder.adapt(following)),
            self._tools,
            self._switches,
        )

    def _history_before(self, depends_on: ContextDependency, index: int) -> list[ChatMessage]:
        """Return the messages before a turn that affect the rendering after it."""
        if depends_on == "nothing":
            return []
        if depends_on == "history":
            messages = self._message_builder(0).build(self._system, self._turns[:index])
            return self._apply_fallback(messages, self._tools)
        turns = [turn for turn in self._turns[:index] if turn.role in ("assistant", "tool")]
        builder = self._message_builder(0)
        return keep_calls_only([message for turn in turns for message in builder.build_turn(turn)])

    def _apply_fallback(
        self, messages: list[ChatMessage], tools: Sequence[ChatMessage] = ()
    ) -> list[ChatMessage]:
        """Convert messages that the template cannot render to text."""
        if not needs_fallback(self._context.profile):
            return messages
        parser = self._context.writer.tool_parser
        return to_plain_messages(messages, tools, self._context.profile, parser)

    def _append_prefill(self, ids: "array[int]", prefill: Turn) -> None:
        """Append a partial assistant turn that the model is to continue."""
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
        """Return a builder that starts at a turn and numbers calls across the complete history."""
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
