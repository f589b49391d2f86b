"""Blocks: the parts of a turn, in the order in which they occurred.

The order is significant, so no field groups the reasoning or the tool calls of a turn.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from dovetail_model.server_tool import Citation, ServerToolKind, ServerToolResult
from dovetail_model.tool import ToolSpec


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Visible text. `raw` is the model's text for it, including framing."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    raw: str = ""


class CitedTextBlock(TextBlock, frozen=True, tag="text"):
    """Visible text of a response that refers to results of server tools."""

    citations: tuple[Citation, ...] = ()


class SealedTextBlock(TextBlock, frozen=True, tag="text"):
    """A part of a server tool's result in a history, with an opaque copy of what the model read.

    `text` is what is known without opening the seal.
    """

    seal: str = ""


class HostedItemBlock(TextBlock, frozen=True, tag="text"):
    """An item of a tool that a server ran, in a history. `text` describes it.

    `item` is the item as the client sent it, for a server of the same API.
    """

    item: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ReasoningBlock(msgspec.Struct, frozen=True, tag="reasoning"):
    """One reasoning span. `seal` is the opaque handle that a client sends back with it, if any."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    seal: str | None = None
    raw: str = ""


class ToolCallBlock(msgspec.Struct, frozen=True, tag="tool_call"):
    """A tool call.

    `arguments` is JSON text, or free text if the tool is a custom tool.
    `complete` is False for a call that the model did not finish: its arguments are a prefix and
    must not be executed.
    `server` is what a call of a server tool does; None if the client runs it.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    arguments: str
    namespace: str | None = None
    custom: bool = False
    complete: bool = True
    raw: str = ""
    server: ServerToolKind | None = None


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image, given as base64 data or as a URL."""

    type: ClassVar[Literal["image"]] = "image"
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class DocumentBlock(msgspec.Struct, frozen=True, tag="document"):
    """A document, given as base64 data, as a URL, or as its extracted text."""

    type: ClassVar[Literal["document"]] = "document"
    media_type: str = ""
    title: str | None = None
    data: str | None = None
    url: str | None = None
    text: str | None = None


class ToolReferenceBlock(msgspec.Struct, frozen=True, tag="tool_reference"):
    """Makes a tool available from here on. The model reads the definition here.

    `definition` is set if the reference itself defines the tool, else the request declares it.
    """

    type: ClassVar[Literal["tool_reference"]] = "tool_reference"
    name: str
    namespace: str | None = None
    definition: ToolSpec | None = None


class ToolRemovalBlock(msgspec.Struct, frozen=True, tag="tool_removal"):
    """Withdraws a tool from here on."""

    type: ClassVar[Literal["tool_removal"]] = "tool_removal"
    name: str
    namespace: str | None = None


ContentBlock = TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock | ToolRemovalBlock
"""A block of a user, system or tool turn."""


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a tool call. `call_id` alone identifies the call: the order is arbitrary.

    `appended` is the end of its text that the tool did not return: messages of the client.
    """

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str
    blocks: tuple[ContentBlock, ...] = ()
    is_error: bool = False
    appended: str = ""


Block = ReasoningBlock | ToolCallBlock | ToolResultBlock | ContentBlock
OutputBlock = TextBlock | ReasoningBlock | ToolCallBlock
"""A block that a model generates."""
ResponseBlock = OutputBlock | ServerToolResult
"""A block of a response."""
