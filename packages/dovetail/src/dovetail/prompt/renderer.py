"""The prompts of one model: its template's policy, and the assembly of each prompt."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from dovetail.ledger.recognition import RecognizedHistory
from dovetail.ledger.turn_digest import compute_digest
from dovetail.prompt.builder import Assembly, Kit, Tools
from dovetail.prompt.facts import Facts
from dovetail.prompt.messages import Names, protected
from dovetail.prompt.partial_render import Resumption
from dovetail.prompt.prompt import Head, Prompt
from dovetail.prompt.rendering_template import ChatTemplate, RenderError
from dovetail.prompt.splice import Splicer, Stops, nonce
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
from dovetail_parsers import markers, opens_thought
from dovetail_tokenizers import Guard, Tokenizer

_LARGEST = 1 << 20  # bytes, or characters: what is larger is not remembered
_MOST = 32 << 20  # bytes of all tools that are remembered
_MOST_TOOLSETS = 512


class Renderer:
    """Renders requests for one model."""

    def __init__(  # noqa: PLR0913 - all parts of a model that a prompt depends on
        self,
        template: ChatTemplate,
        facts: Facts,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        switches: Mapping[str, Any] | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        self.facts = facts
        self._tokenizer = tokenizer
        known = markers(tool_parser, reasoning_parser)
        controls = tuple(tokenizer.controls)
        self._kit = Kit(
            template=template,
            facts=facts,
            guard=Guard(tokenizer),
            splicer=Splicer(template, facts, Stops(stops, controls, known), switches),
            resumption=Resumption(template, facts, switches),
            writer=TurnWriter(tool_parser, reasoning_parser),
            opens=lru_cache(256)(lambda end: opens_thought(end, tool_parser, reasoning_parser)),
            roles=_any_of([c for c in controls if not any(c in marker for marker in known)]),
        )
        self._thinks = reasoning_parser is not None
        self._strips = self._thinks and _strips_thoughts(self._kit)
        self._toolsets: dict[int, _Toolset] = {}
        self._toolsets_size = 0  # bytes of all of them

    @property
    def splicer(self) -> Splicer:
        return self._kit.splicer

    def keeps(self, tools: bool) -> bool:
        """Whether turns before a user's new one stay as they were, thoughts and all."""
        facts = self.facts
        if not facts.keeps_plain:
            return False
        if not self._thinks:
            return True
        if not facts.reasoning_fields and not facts.thinking_parts:
            return not self._strips
        return facts.keeps_at_user if tools else facts.keeps_without_tools

    def start(self, turns: Sequence[Turn], tools: bool) -> int:
        """The place from which turns keep their tokens: all, or those behind the last user turn."""
        if self.keeps(tools):
            return 0
        return loop_start(turns)

    def head(self, request: Request, switches: Mapping[str, Any]) -> Head:
        """The digests of a request's head."""
        system = _digest_of(request.system)
        tools = self._toolset(request.tools).digest
        read = {k: v for k, v in switches.items() if k in self._kit.template.reads}
        steering = compute_digest(json.dumps(read, sort_keys=True, default=str))
        return Head(system, tools, steering, compute_digest(system, tools, steering))

    def new_characters(self, request: Request, recalled: RecognizedHistory) -> int:
        """How many characters may have to be encoded for a prompt."""
        start = recalled.anchor_index or 0
        if recalled.base_prompt is not None and self._kit.resumption.possible:
            start = recalled.base_prompt[0]
        new = sum(_characters(block) for turn in request.turns[start:] for block in turn.blocks)
        if start:
            return new
        tools = self._toolset(request.tools).size
        return new + tools + sum(map(_characters, request.system))

    def render(self, request: Request, recalled: RecognizedHistory, switches: Mapping[str, Any]) -> Prompt:
        """The prompt. `request` is stabilized, `recalled` what is known of its turns.

        Threads may share a renderer.
        """
        start = recalled.start
        switches = protected(switches, self._kit.guard.protect)  # their words are a client's, too
        tools = self._toolset(request.tools).shown
        assembly = Assembly(self._kit, request, recalled, tools, switches, start)
        return assembly.prompt(self.head(request, switches))

    def rebuild(
        self,
        blocks: Sequence[OutputBlock],
        tools: Sequence[ToolSpec],
        ids: Sequence[int],
        raw: str,
    ) -> list[int] | None:
        """The tokens of blocks in the model's own notation, behind a thought that ends in `raw`.

        What of that text the ids do not spell comes first, then what the notation has between.
        """
        text = self._kit.writer.write(
            Turn("assistant", tuple(blocks)), Names(tools), self._kit.guard.protect, ""
        )
        if text is None:
            return None
        spelled = self._tokenizer.decode(ids)
        left = raw.removeprefix(spelled) if raw.startswith(spelled) else ""
        closing = self._kit.writer.thought_closing()
        between = closing[len(closing.rstrip()) :]
        return self._kit.encode_written(left + between + text)

    def _toolset(self, tools: tuple[ToolSpec, ...]) -> "_Toolset":
        """What was made of tools that the decoder hands out again and again.

        A client may send what it likes: what is very large is made anew each time.
        """
        known = self._toolsets.get(id(tools))
        if known is not None and known.tools is tools:
            return known
        made = _Toolset(tools, self._kit.guard.protect)
        if made.size > _LARGEST:
            return made
        self._toolsets_size += made.size
        if self._toolsets_size > _MOST or len(self._toolsets) > _MOST_TOOLSETS:
            self._toolsets, self._toolsets_size = {}, made.size
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
    def shown(self) -> Tools:
        """As the template is shown them."""
        return Tools(self.tools, self._protect)


def _digest_of(system: tuple[Block, ...]) -> bytes:
    """The digest of a system text, which is the same in many sessions."""
    known = _known_digest if sum(map(_characters, system)) <= _LARGEST else _digest
    return known(system)


def _digest(system: tuple[Block, ...]) -> bytes:
    return compute_digest(msgspec.json.encode(system))


_known_digest = lru_cache(32)(_digest)


def _characters(block: Block) -> int:
    """How much a block says."""
    match block:
        case TextBlock(text=text) | ReasoningBlock(text=text) | ToolCallBlock(arguments=text):
            return len(text)
        case DocumentBlock(text=str(text)):
            return len(text)
        case ToolResultBlock(blocks=blocks):
            return sum(map(_characters, blocks))
    return 0


def loop_start(turns: Sequence[Turn]) -> int:
    """Where the loop that is running began: the last turn of neither the model nor a tool."""
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role not in ("assistant", "tool"):
            return at
    return 0


def _any_of(spellings: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


def _strips_thoughts(kit: Kit) -> bool:
    """Whether the template takes thoughts out of the text of earlier turns."""
    mark = nonce()
    thought = Turn("assistant", (ReasoningBlock(mark), TextBlock("Sure.")))
    text = kit.writer.write(thought, Names(()), lambda text: text, "")
    if text is None:
        return False
    messages = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Two."},
    ]
    try:
        return mark not in kit.template.render(messages)
    except RenderError:
        return False
