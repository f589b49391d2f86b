"""Shared by the client sides of the APIs: what an upstream server accepts, how it sees tools.

What a server accepts beyond the core of its API is an `UpstreamDialect`; what of a request its
API cannot carry is reported by name, never dropped silently.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolSpec,
)

ReasoningField = Literal["reasoning_content", "reasoning", "reasoning_segments"]


class UpstreamDialect(msgspec.Struct, frozen=True):
    """What a server accepts. `reasoning` is the field of a chat's history that holds reasoning.

    `reasoning_segments` is our own: one segment for each call, so nothing has to be split. Without
    `custom_tools` such a tool is shown as a function of one string, without `images` a placeholder
    stands for each. `seals` says that it issued the seals of reasoning, and accepts them.
    """

    reasoning: ReasoningField | None = "reasoning_content"
    custom_tools: bool = False
    images: bool = True
    seals: bool = False


class UpstreamRequest(msgspec.Struct, frozen=True):
    """The fields of a body. `dropped` are codes of what it could not carry, each once."""

    fields: dict[str, Any]
    dropped: tuple[str, ...] = ()

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.fields)


class ToolNames:
    """The tools by both of their names: the client's and the one that the server is shown."""

    __slots__ = ("_specs", "_upstream_names")

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._specs = {tool.model_name: tool for tool in tools}
        self._upstream_names = {
            (tool.namespace, tool.name): name for name, tool in self._specs.items()
        }

    def upstream_name(self, call: ToolCallBlock) -> str:
        """What the server knows the tool of a call by."""
        found = self._upstream_names.get((call.namespace, call.name))
        if found is not None:
            return found
        return f"{call.namespace}__{call.name}" if call.namespace else call.name

    def spec(self, name: str) -> ToolSpec | None:
        """The tool that the server means by a name."""
        return self._specs.get(name)

    def find_choice(self, choice: ToolChoice) -> ToolSpec | None:
        """The tool that must be called; a choice may have either of its names."""
        named = [spec for spec in self._specs.values() if spec.name == choice.name]
        return self._specs.get(choice.name or "") or next(iter(named), None)


def tool_parameters(tool: ToolSpec) -> Mapping[str, Any]:
    """The schema of a function's arguments; a function without any still has an object."""
    return tool.model_parameters or {"type": "object", "properties": {}}


def call_arguments(call: ToolCallBlock) -> str:
    """A call's arguments as the JSON text of an object: its own where it is one.

    Servers parse what they get. Free text, and the arguments of a truncated call, become `input`.
    """
    if not call.custom:
        try:
            if isinstance(json.loads(call.arguments or "{}"), dict):
                return call.arguments or "{}"
        except (ValueError, RecursionError):
            pass
    return json.dumps({"input": call.arguments}, ensure_ascii=False)


def blocks_to_text(blocks: Iterable[Block]) -> str:
    """The text of blocks. What is no text is named, so that nothing vanishes."""
    return "\n".join(text for block in blocks if (text := _block_to_text(block)))


def image_url(image: ImageBlock) -> str:
    """An image as a URL, its data inside where it has them."""
    if image.data is not None:
        return f"data:{image.media_type or 'image/png'};base64,{image.data}"
    return image.url or ""


def template_kwargs(thinking: Thinking) -> dict[str, Any]:
    """The arguments of the server's chat template: the client's own, else its switch.

    Templates have two names for the switch. An effort says by itself that thinking is on.
    """
    switches = dict(thinking.template_kwargs)
    if thinking.enabled is not None and thinking.effort is None and not switches:
        switches = {"enable_thinking": thinking.enabled, "thinking": thinking.enabled}
    return switches


def _block_to_text(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock():
            return "[image]"
        case DocumentBlock(text=str(text)):
            return text
        case DocumentBlock(title=title):
            return f"[document {title}]" if title else "[document]"
        case _:
            return ""
