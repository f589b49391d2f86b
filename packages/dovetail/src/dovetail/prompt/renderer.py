"""Render the prompts of one model, following the template's policy for earlier turns."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.turn_digest import compute_digest
from dovetail.prompt.builder import PromptBuilder, PromptTools, RenderContext
from dovetail.prompt.context_edits import count_block_chars
from dovetail.prompt.conversation_state import StateRecord, digest_edits
from dovetail.prompt.messages import ToolNames, escape_strings
from dovetail.prompt.partial_render import PartialRenderer
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail.prompt.reasoning_retention import INLINE_ROLES, LOOP_ROLES, find_loop_start
from dovetail.prompt.splice import Splicer, StopTokenMatcher, create_nonce
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.tool_notation import ToolNotation
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import (
    Block,
    OutputBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolSpec,
    Turn,
)
from dovetail_parsers import markers, opens_reasoning
from dovetail_tokenizers import ControlTokenGuard, Tokenizer

_encode_switches = json.JSONEncoder(sort_keys=True, default=str).encode
_MAX_CACHED_ITEM_BYTES = 1 << 20  # or characters; larger items are not cached
_MAX_TOOLSETS_BYTES = 32 << 20  # total of the cached toolsets
_MAX_TOOLSETS = 512
_TURN_OVERHEAD_CHARS = 64  # rendering a turn takes as long as encoding so many characters


class PromptRenderer:
    """Renders requests for one model."""

    def __init__(  # noqa: PLR0913 - all parts of a model that a prompt depends on
        self,
        template: ChatTemplate,
        profile: TemplateProfile,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        switches: Mapping[str, Any] | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        self.profile = profile
        self._tokenizer = tokenizer
        known = markers(tool_parser, reasoning_parser)
        controls = tuple(tokenizer.controls)
        self._context = RenderContext(
            template=template,
            profile=profile,
            guard=ControlTokenGuard(tokenizer),
            splicer=Splicer(template, profile, StopTokenMatcher(stops, controls, known), switches),
            partial_renderer=PartialRenderer(template, profile, switches),
            writer=TurnWriter(tool_parser, reasoning_parser),
            opens_reasoning=lru_cache(256)(
                lambda end: opens_reasoning(end, tool_parser, reasoning_parser)
            ),
            role_tokens=_compile_alternatives(
                [c for c in controls if not any(c in marker for marker in known)]
            ),
        )
        self._has_reasoning = reasoning_parser is not None
        self._strips_reasoning = self._has_reasoning and _template_strips_reasoning(self._context)
        self._toolsets: dict[int, _Toolset] = {}
        self._toolsets_bytes = 0

    @property
    def splicer(self) -> Splicer:
        return self._context.splicer

    @cached_property
    def tool_notation(self) -> ToolNotation:
        """How the template writes one tool."""
        return ToolNotation(self._context.template, self.profile, tuple(self._tokenizer.controls))

    def keeps_history(self, tools: bool) -> bool:
        """Return whether a new user turn leaves earlier turns unchanged, including reasoning."""
        profile = self.profile
        if not profile.keeps_plain:
            return False
        if not self._has_reasoning:
            return True
        if not profile.reasoning_fields and not profile.thinking_parts:
            return not self._strips_reasoning
        return profile.keeps_at_user if tools else profile.keeps_without_tools

    def replay_start(self, turns: Sequence[Turn], tools: bool) -> int:
        """Return the first turn whose tokens are preserved: 0, or the last user turn.

        A harness reports finished background tasks in system messages. They begin a new turn only
        if the template treats them so.
        """
        if self.keeps_history(tools):
            return 0
        profile = self.profile
        inline = tools and profile.system_inside == "kept" and profile.keeps_at_system
        return find_loop_start(turns, INLINE_ROLES if inline else LOOP_ROLES)

    def digest_head(
        self, request: Request, switches: Mapping[str, Any], edits: bytes = b""
    ) -> HeadDigests:
        """Compute the digests of the head of a request. `edits` is the digest of its edits."""
        system = _digest_system(request.system)
        tools = self._toolset(request.tools).digest
        read = {k: v for k, v in switches.items() if k in self._context.template.variables}
        switch_digest = compute_digest(_encode_switches(read))
        whole = compute_digest(system, tools, switch_digest, *([edits] if edits else []))
        return HeadDigests(system, tools, switch_digest, whole)

    def count_new_chars(self, request: Request, history: RecognizedHistory) -> int:
        """Estimate the number of characters to encode for a prompt, with an overhead per turn."""
        start = history.anchor_index or 0
        if history.base_prompt is not None and self._context.partial_renderer.supported:
            start = history.base_prompt[0]
        new = sum(
            count_block_chars(block) for turn in request.turns[start:] for block in turn.blocks
        )
        new += _TURN_OVERHEAD_CHARS * (len(request.turns) - start)
        if start:
            return new
        tools = self._toolset(request.tools).size
        return new + tools + sum(map(count_block_chars, request.system))

    def render(
        self,
        request: Request,
        history: RecognizedHistory,
        switches: Mapping[str, Any],
        state: StateRecord | None = None,
    ) -> Prompt:
        """Render the prompt of a normalized request. `history` has its recognized turns.

        `state` is recorded with the generated turn. Thread-safe.
        """
        state = state or StateRecord()
        start = history.start
        switches = escape_strings(
            switches, self._context.guard.protect
        )  # their words are a client's, too
        tools = self._toolset(request.tools).prompt_tools
        if state.state.late_tools:
            tools = tools.with_names((*request.tools, *state.state.late_tools))
        builder = PromptBuilder(self._context, request, history, tools, switches, start)
        head = self.digest_head(request, switches, digest_edits(state.state))
        return builder.build(head, state)

    def encode_blocks(
        self,
        blocks: Sequence[OutputBlock],
        tools: Sequence[ToolSpec],
        ids: Sequence[int],
        raw: str,
    ) -> list[int] | None:
        """Encode blocks in the model's own notation, as a continuation of output with text `raw`.

        The result begins with the part of `raw` that `ids` do not cover, and a separator.
        """
        text = self._context.writer.write(
            Turn("assistant", tuple(blocks)), ToolNames(tools), self._context.guard.protect, ""
        )
        if text is None:
            return None
        spelled = self._tokenizer.decode(ids)
        unspelled = raw.removeprefix(spelled) if raw.startswith(spelled) else ""
        closing = self._context.writer.reasoning_end()
        between = closing[len(closing.rstrip()) :]
        return self._context.encode_turn(unspelled + between + text)

    def _toolset(self, tools: tuple[ToolSpec, ...]) -> "_Toolset":
        """Return the prompt form of tools, cached because the decoder returns the same objects.

        Very large toolsets are not cached, to bound the memory that clients can use.
        """
        known = self._toolsets.get(id(tools))
        if known is not None and known.tools is tools:
            return known
        toolset = _Toolset(tools, self._context.guard.protect)
        if toolset.size > _MAX_CACHED_ITEM_BYTES:
            return toolset
        self._toolsets_bytes += toolset.size
        if self._toolsets_bytes > _MAX_TOOLSETS_BYTES or len(self._toolsets) > _MAX_TOOLSETS:
            self._toolsets, self._toolsets_bytes = {}, toolset.size
        self._toolsets[id(tools)] = toolset
        return toolset


class _Toolset:
    """Tools in the forms that prompts need. `size` is the length of their JSON in bytes."""

    def __init__(self, tools: tuple[ToolSpec, ...], protect: Callable[[str], str]) -> None:
        packed = msgspec.json.encode(tools)
        self.tools = tools
        self.size = len(packed)
        self.digest = compute_digest(packed)
        self._protect = protect

    @cached_property
    def prompt_tools(self) -> PromptTools:
        """The tools in the form for the template."""
        return PromptTools(self.tools, self._protect)


def _digest_system(system: tuple[Block, ...]) -> bytes:
    """Compute the digest of a system text, cached because many sessions share it."""
    digest = (
        _cached_system_digest
        if sum(map(count_block_chars, system)) <= _MAX_CACHED_ITEM_BYTES
        else _compute_system_digest
    )
    return digest(system)


def _compute_system_digest(system: tuple[Block, ...]) -> bytes:
    return compute_digest(msgspec.json.encode(system))


_cached_system_digest = lru_cache(32)(_compute_system_digest)


def _compile_alternatives(spellings: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


def _template_strips_reasoning(context: RenderContext) -> bool:
    """Return whether the template removes reasoning from the text of earlier turns."""
    mark = create_nonce()
    turn = Turn("assistant", (ReasoningBlock(mark), TextBlock("Sure.")))
    text = context.writer.write(turn, ToolNames(()), lambda text: text, "")
    if text is None:
        return False
    messages = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Two."},
    ]
    try:
        return mark not in context.template.render(messages)
    except RenderError:
        return False
