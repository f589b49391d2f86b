"""Blocks: the pieces a turn is made of. Their order is their meaning: nothing is grouped."""

from typing import ClassVar, Literal

import msgspec


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Visible text. `raw` is what the model wrote for it, framing included."""

    type: ClassVar[Literal["text"]] = "text"
    text: str
    raw: str = ""


class ReasoningBlock(msgspec.Struct, frozen=True, tag="reasoning"):
    """One span of reasoning. `seal` is the opaque handle that a client returns with it, if any."""

    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    seal: str | None = None
    raw: str = ""


class ToolCallBlock(msgspec.Struct, frozen=True, tag="tool_call"):
    """A call. `arguments` is JSON text, or free text when the tool is a custom one.

    `complete` is False for a call that the model never finished: its arguments are a prefix
    and must not be executed.
    """

    type: ClassVar[Literal["tool_call"]] = "tool_call"
    id: str
    name: str
    arguments: str
    namespace: str | None = None
    custom: bool = False
    complete: bool = True
    raw: str = ""


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image, by base64 data or by URL."""

    type: ClassVar[Literal["image"]] = "image"
    media_type: str = ""
    data: str | None = None
    url: str | None = None


class DocumentBlock(msgspec.Struct, frozen=True, tag="document"):
    """A document: base64 data, a URL, or text that was taken out of it."""

    type: ClassVar[Literal["document"]] = "document"
    media_type: str = ""
    title: str | None = None
    data: str | None = None
    url: str | None = None
    text: str | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a call, tied to it by id alone: results may arrive in any order."""

    type: ClassVar[Literal["tool_result"]] = "tool_result"
    call_id: str
    blocks: tuple[TextBlock | ImageBlock | DocumentBlock, ...] = ()
    is_error: bool = False


Block = TextBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock | ImageBlock | DocumentBlock
OutputBlock = TextBlock | ReasoningBlock | ToolCallBlock
