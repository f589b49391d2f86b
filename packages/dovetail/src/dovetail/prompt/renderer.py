"""The prompts of one model: its template's policy, and the assembly of each prompt."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from dovetail.ledger.recognition import RecognizedHistory
from dovetail.ledger.turn_digest import compute_digest
from dovetail.prompt.builder import PromptBuilder, PromptTools, RenderContext
from dovetail.prompt.messages import ToolNames, escape_strings
from dovetail.prompt.partial_render import PartialRenderer
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail.prompt.splice import Splicer, StopTokenMatcher, create_nonce
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import (
    Block,
    DocumentBlock,
    OutputBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_parsers import markers, opens_reasoning
from dovetail_tokenizers import ControlTokenGuard, Tokenizer

_MAX_CACHED_ITEM_BYTES = 1 << 20  # bytes, or characters: what is larger is not remembered
_MAX_TOOLSETS_BYTES = 32 << 20  # bytes of all tools that are remembered
_MAX_TOOLSETS = 512


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
        self._toolsets_bytes = 0  # bytes of all of them

    @property
    def splicer(self) -> Splicer:
        return self._context.splicer

    def keeps_history(self, tools: bool) -> bool:
        """Whether turns before a user's new one stay as they were, thoughts and all."""
        facts = self.profile
        if not facts.keeps_plain:
            return False
        if not self._has_reasoning:
            return True
        if not facts.reasoning_fields and not facts.thinking_parts:
            return not self._strips_reasoning
        return facts.keeps_at_user if tools else facts.keeps_without_tools

    def replay_start(self, turns: Sequence[Turn], tools: bool) -> int:
        """The place from which turns keep their tokens: all, or those behind the last user turn."""
        if self.keeps_history(tools):
            return 0
        return find_loop_start(turns)

    def digest_head(self, request: Request, switches: Mapping[str, Any]) -> HeadDigests:
        """The digests of a request's head."""
        system = _digest_system(request.system)
        tools = self._toolset(request.tools).digest
        read = {k: v for k, v in switches.items() if k in self._context.template.variables}
        steering = compute_digest(json.dumps(read, sort_keys=True, default=str))
        return HeadDigests(system, tools, steering, compute_digest(system, tools, steering))

    def count_new_chars(self, request: Request, history: RecognizedHistory) -> int:
        """How many characters may have to be encoded for a prompt."""
        start = history.anchor_index or 0
        if history.base_prompt is not None and self._context.partial_renderer.supported:
            start = history.base_prompt[0]
        new = sum(_count_chars(block) for turn in request.turns[start:] for block in turn.blocks)
        if start:
            return new
        tools = self._toolset(request.tools).size
        return new + tools + sum(map(_count_chars, request.system))

    def render(
        self, request: Request, history: RecognizedHistory, switches: Mapping[str, Any]
    ) -> Prompt:
        """The prompt. `request` is stabilized, `recalled` what is known of its turns.

        Threads may share a renderer.
        """
        start = history.start
        switches = escape_strings(
            switches, self._context.guard.protect
        )  # their words are a client's, too
        tools = self._toolset(request.tools).prompt_tools
        assembly = PromptBuilder(self._context, request, history, tools, switches, start)
        return assembly.build(self.digest_head(request, switches))

    def encode_blocks(
        self,
        blocks: Sequence[OutputBlock],
        tools: Sequence[ToolSpec],
        ids: Sequence[int],
        raw: str,
    ) -> list[int] | None:
        """The tokens of blocks in the model's own notation, behind a thought that ends in `raw`.

        What of that text the ids do not spell comes first, then what the notation has between.
        """
        text = self._context.writer.write(
            Turn("assistant", tuple(blocks)), ToolNames(tools), self._context.guard.protect, ""
        )
        if text is None:
            return None
        spelled = self._tokenizer.decode(ids)
        left = raw.removeprefix(spelled) if raw.startswith(spelled) else ""
        closing = self._context.writer.reasoning_end()
        between = closing[len(closing.rstrip()) :]
        return self._context.encode_turn(left + between + text)

    def _toolset(self, tools: tuple[ToolSpec, ...]) -> "_Toolset":
        """What was made of tools that the decoder hands out again and again.

        A client may send what it likes: what is very large is made anew each time.
        """
        known = self._toolsets.get(id(tools))
        if known is not None and known.tools is tools:
            return known
        made = _Toolset(tools, self._context.guard.protect)
        if made.size > _MAX_CACHED_ITEM_BYTES:
            return made
        self._toolsets_bytes += made.size
        if self._toolsets_bytes > _MAX_TOOLSETS_BYTES or len(self._toolsets) > _MAX_TOOLSETS:
            self._toolsets, self._toolsets_bytes = {}, made.size
        self._toolsets[id(tools)] = made
        return made


class _Toolset:
    """Tools, with what a prompt needs of them. `size` are the bytes of their JSON."""

    def __init__(self, tools: tuple[ToolSpec, ...], protect: Callable[[str], str]) -> None:
        packed = msgspec.json.encode(tools)
        self.tools = tools
        self.size = len(packed)
        self.digest = compute_digest(packed)
        self._protect = protect

    @cached_property
    def prompt_tools(self) -> PromptTools:
        """As the template is shown them."""
        return PromptTools(self.tools, self._protect)


def _digest_system(system: tuple[Block, ...]) -> bytes:
    """The digest of a system text, which is the same in many sessions."""
    known = (
        _cached_system_digest
        if sum(map(_count_chars, system)) <= _MAX_CACHED_ITEM_BYTES
        else _compute_system_digest
    )
    return known(system)


def _compute_system_digest(system: tuple[Block, ...]) -> bytes:
    return compute_digest(msgspec.json.encode(system))


_cached_system_digest = lru_cache(32)(_compute_system_digest)


def _count_chars(block: Block) -> int:
    """How much a block says."""
    match block:
        case TextBlock(text=text) | ReasoningBlock(text=text) | ToolCallBlock(arguments=text):
            return len(text)
        case DocumentBlock(text=str(text)):
            return len(text)
        case ToolResultBlock(blocks=blocks):
            return sum(map(_count_chars, blocks))
    return 0


def find_loop_start(turns: Sequence[Turn]) -> int:
    """Where the loop that is running began: the last turn of neither the model nor a tool."""
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role not in ("assistant", "tool"):
            return at
    return 0


def _compile_alternatives(spellings: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


def _template_strips_reasoning(context: RenderContext) -> bool:
    """Whether the template takes thoughts out of the text of earlier turns."""
    mark = create_nonce()
    thought = Turn("assistant", (ReasoningBlock(mark), TextBlock("Sure.")))
    text = context.writer.write(thought, ToolNames(()), lambda text: text, "")
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
