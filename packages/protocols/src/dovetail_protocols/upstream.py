"""Shared code for requests to upstream servers: their capabilities and their view of tools.

`UpstreamDialect` states what a server accepts beyond the core of its API. Parts of a request that
its API cannot represent are reported by name, never dropped silently.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from dovetail_model import (
    Block,
    ClientFields,
    DocumentBlock,
    ImageBlock,
    Request,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
    describe_document,
    describe_image,
)

ReasoningField = Literal["reasoning_content", "reasoning", "reasoning_segments"]


class UpstreamDialect(msgspec.Struct, frozen=True):
    """What a server accepts.

    `reasoning` is the field of a chat's history that contains reasoning. `reasoning_segments` is
    Dovetail's own: one segment per call, so that turns need not be split.
    Without `custom_tools`, a custom tool is shown as a function with one string parameter.
    Without `images`, each image is replaced by a text that describes it.
    `seals` states that the server issued the seals of reasoning and accepts them.
    """

    reasoning: ReasoningField | None = "reasoning_content"
    custom_tools: bool = False
    images: bool = True
    seals: bool = False


class UpstreamRequest(msgspec.Struct, frozen=True):
    """The fields of a body.

    `dropped` lists codes of the parts that it cannot represent, `ignored` the paths of fields of
    the client.
    """

    fields: dict[str, Any]
    dropped: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(self.fields)


class ToolNames:
    """Maps tools by both of their names: the client's and the one shown to the server."""

    __slots__ = ("_specs", "_upstream_names")

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._specs = {tool.model_name: tool for tool in tools}
        self._upstream_names = {
            (tool.namespace, tool.name): name for name, tool in self._specs.items()
        }

    def upstream_name(self, call: ToolCallBlock) -> str:
        """Return the name by which the server knows the tool of a call."""
        found = self._upstream_names.get((call.namespace, call.name))
        if found is not None:
            return found
        return f"{call.namespace}__{call.name}" if call.namespace else call.name

    def spec(self, name: str) -> ToolSpec | None:
        """Return the tool that the server refers to by this name."""
        return self._specs.get(name)

    def find_choice(self, choice: ToolChoice) -> ToolSpec | None:
        """Return the tool that must be called. A choice may use either name."""
        named = [spec for spec in self._specs.values() if spec.name == choice.name]
        return self._specs.get(choice.name or "") or next(iter(named), None)


def tool_parameters(tool: ToolSpec) -> Mapping[str, Any]:
    """Return the schema of a function's arguments: an object even without parameters."""
    return tool.model_parameters or {"type": "object", "properties": {}}


def call_arguments(call: ToolCallBlock) -> str:
    """Return a call's arguments as the JSON text of an object, unchanged if they are one.

    Servers parse arguments, so free text and truncated arguments are wrapped as `input`.
    """
    if not call.custom:
        try:
            if isinstance(json.loads(call.arguments or "{}"), dict):
                return call.arguments or "{}"
        except (ValueError, RecursionError):
            pass
    return json.dumps({"input": call.arguments}, ensure_ascii=False)


def blocks_to_text(blocks: Iterable[Block]) -> str:
    """Return the text of blocks. Other blocks are represented by a placeholder."""
    return "\n".join(text for block in blocks if (text := _block_to_text(block)))


def callable_tools(request: Request) -> tuple[ToolSpec, ...]:
    """Return the tools that the model may call: not those that are deferred and not loaded."""
    allowed = request.tool_choice.allowed
    if allowed is None and not any(tool.deferred for tool in request.tools):
        return request.tools
    loaded = {key for turn in request.turns for key in _references(turn.blocks)}
    return tuple(
        tool
        for tool in request.tools
        if (allowed is None or tool.model_name in allowed)
        and (not tool.deferred or tool.key in loaded)
    )


def converted_tools(request: Request, dialect: UpstreamDialect) -> tuple[str, ...]:
    """Return the code that reports custom tools which the server gets as functions, if any.

    The model then writes JSON, and no grammar constrains it.
    """
    converted = not dialect.custom_tools and any(t.custom for t in callable_tools(request))
    return (CUSTOM_TOOLS_CONVERTED,) if converted else ()


def declared_tools(client: ClientFields, api: str) -> list[Mapping[str, Any]]:
    """Return the tools as the client sent them, for a server of the same API."""
    if client.api != api:
        return []
    return [tool for _, tool in client.tools if isinstance(tool, Mapping)]


def passed_tool_choice(request: Request, api: str, dialect: UpstreamDialect) -> Any:
    """Return the tool choice as the client sent it; None if the server needs another form.

    A choice that names a tool has the client's name and kind of it. Both may differ from what the
    server sees: in a namespace, and of a custom tool that is sent as a function.
    """
    client, mode = request.client, request.tool_choice.mode
    given = client.fields.get("tool_choice")
    if client.api != api or given is None or (mode == "none" and given != "none"):
        return None
    if isinstance(given, str) or given.get("type") not in ("function", "custom", "allowed_tools"):
        return given
    converted = [tool for tool in request.tools if tool.custom and not dialect.custom_tools]
    return None if converted or any(tool.namespace for tool in request.tools) else given


def _references(blocks: Iterable[Block]) -> Iterator[tuple[str | None, str]]:
    for block in blocks:
        if isinstance(block, ToolReferenceBlock):
            yield block.namespace, block.name
        elif isinstance(block, ToolResultBlock):
            yield from _references(block.blocks)


def image_url(image: ImageBlock) -> str:
    """Return the URL of an image: a data URL if the image is inline."""
    if image.data is not None:
        return f"data:{image.media_type or 'image/png'};base64,{image.data}"
    return image.url or ""


IMAGES_REPLACED = "images_replaced"
CUSTOM_TOOLS_CONVERTED = "custom_tools_converted"


def replace_images(request: Request) -> tuple[Request, tuple[str, ...]]:
    """Replace images by texts that describe them. Returns the code that reports it, if any."""
    turns = tuple(map(_replace_images, request.turns))
    if turns == request.turns:
        return request, ()
    return msgspec.structs.replace(request, turns=turns), (IMAGES_REPLACED,)


def _replace_images(turn: Turn) -> Turn:
    return Turn(turn.role, tuple(map(_replace_image, turn.blocks)))


def _replace_image(block: Block) -> Block:
    if isinstance(block, ImageBlock):
        return TextBlock(describe_image(block))
    if isinstance(block, ToolResultBlock):
        blocks = tuple(
            TextBlock(describe_image(inner)) if isinstance(inner, ImageBlock) else inner
            for inner in block.blocks
        )
        return msgspec.structs.replace(block, blocks=blocks)
    return block


def template_kwargs(thinking: Thinking) -> dict[str, Any]:
    """Return the arguments of the server's chat template: the client's, else the thinking switch.

    Templates use two names for the switch. An effort implies that thinking is on.
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
        case DocumentBlock():
            return describe_document(block)
        case ToolReferenceBlock(name=name):
            return f"Tool available: {name}"
        case ToolRemovalBlock(name=name):
            return f"Tool no longer available: {name}"
        case _:
            return ""
