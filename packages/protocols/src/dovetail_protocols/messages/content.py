"""Decode the content blocks of a history.

No block is rejected for being unknown: blocks without a counterpart are written as text
(`block_text`). A string and a list with one text block are the same content, and empty text yields
no block: clients switch between these forms from request to request, and the prompt must not
change.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from dovetail_model import (
    Block,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidRequest,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolSpec,
)
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.block_text import block_to_text, content_to_text
from dovetail_protocols.messages.builtin_tools import decode_client_tool
from dovetail_protocols.messages.context import CompactedText
from dovetail_protocols.request_body import convert

_Decode = Callable[[dict[str, Any], str], tuple[Block, ...]]


def decode_content(content: str | list[Any] | None, path: str) -> tuple[Block, ...]:
    """Decode the blocks of a message or a system prompt, in the client's order."""
    if content is None:
        return ()
    if isinstance(content, str):
        return _text(content)
    blocks: list[Block] = []
    for at, item in enumerate(content):
        blocks += _block(item, f"{path}[{at}]")
    return tuple(blocks)


def _block(item: object, path: str) -> tuple[Block, ...]:
    if isinstance(item, str):
        return _text(item)
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: must be an object", param=path)
    kind = item.get("type")
    decode = _DECODERS.get(kind) if isinstance(kind, str) else None
    return decode(item, path) if decode is not None else _as_text(item, path)


def _text(text: str) -> tuple[Block, ...]:
    return (TextBlock(text),) if text.strip() else ()


def _as_text(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    return _text(block_to_text(item))


def _skip(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    return ()


def _text_block(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    return _text(convert(item, wire.Text, path).text)


def _thinking(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    block = convert(item, wire.Thinking, path)
    return (ReasoningBlock(block.thinking, seal=block.signature or None),)


def _redacted(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    return (ReasoningBlock("", seal=convert(item, wire.RedactedThinking, path).data or None),)


def _tool_use(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    block = convert(item, wire.ToolUse, path)
    return (ToolCallBlock(block.id, block.name, decode_arguments(block.input)),)


def decode_arguments(value: object) -> str:
    """Return arguments as JSON text, with keys in the client's order.

    A few clients send JSON text instead of an object.
    """
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        try:
            spelled = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            spelled = None
        if isinstance(spelled, dict):
            return value
    return msgspec.json.encode(value).decode()


def _tool_result(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    block = convert(item, wire.ToolResult, path)
    content = [block.content] if isinstance(block.content, str) else block.content or []
    found: list[ContentBlock] = []
    for at, part in enumerate(content):
        found += _result_part(part, f"{path}.content[{at}]")
    return (ToolResultBlock(block.tool_use_id, tuple(found), bool(block.is_error)),)


def _result_part(part: object, path: str) -> list[ContentBlock]:
    """Decode a tool's output. White space in it is data: only empty text is dropped."""
    if isinstance(part, str):
        return [TextBlock(part)] if part else []
    if isinstance(part, dict) and part.get("type") == "text":
        return _result_part(convert(part, wire.Text, path).text, path)
    blocks = _block(part, path)
    allowed = [b for b in blocks if isinstance(b, ContentBlock)]
    if len(allowed) == len(blocks):
        return allowed
    return [TextBlock(block_to_text(part))]  # no client puts a call or reasoning inside a result


def _image(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    source = convert(item, wire.Media, path).source
    if source.data is None and source.url is None:
        return _as_text(item, path)
    return (ImageBlock(source.media_type or "", source.data, source.url),)


def _document(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    block = convert(item, wire.Media, path)
    source, context = block.source, _text(block.context or "")
    media_type = source.media_type or ""
    if source.content is not None:
        text = content_to_text(source.content)
        return *context, DocumentBlock(media_type, block.title, text=text)
    if source.type == "text":
        return *context, DocumentBlock(media_type, block.title, text=source.data or "")
    if source.data is None and source.url is None:
        return _as_text(item, path)
    return *context, DocumentBlock(media_type, block.title, source.data, source.url)


def _search_result(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    block = convert(item, wire.SearchResult, path)
    lines = [block.title, block.source, content_to_text(block.content)]
    return _text("\n".join(line for line in lines if line))


def _tool_reference(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    """Decode the reference to a found tool in a tool result."""
    name = item.get("tool_name")
    return (ToolReferenceBlock(name),) if isinstance(name, str) else _as_text(item, path)


def _tool_addition(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    """Decode the addition of a tool: a reference to a declared tool, or a definition."""
    tool = convert(item, wire.ToolChange, path).tool
    if tool.type == "tool_definition" and tool.definition is not None:
        spec = decode_tool(tool.definition, f"{path}.tool.definition")
        return (
            _as_text(item, path) if spec is None else (ToolReferenceBlock(spec.name, None, spec),)
        )
    if tool.type == "tool_reference" and tool.name:
        return (ToolReferenceBlock(tool.name),)
    return _as_text(item, path)


def _tool_removal(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    tool = convert(item, wire.ToolChange, path).tool
    if tool.type == "tool_reference" and tool.name:
        return (ToolRemovalBlock(tool.name),)
    return _as_text(item, path)


def decode_tool(value: object, path: str) -> ToolSpec | None:
    """Decode the definition of a tool, or return None for a server tool."""
    tool = convert(value, wire.Tool, path)
    if tool.input_schema is None and tool.type not in (None, "custom"):
        return decode_client_tool(tool)
    if not tool.name:
        raise InvalidRequest(f"{path}.name: Field required", param=f"{path}.name")
    return ToolSpec(
        name=tool.name,
        description=tool.description or "",
        parameters=tool.input_schema or {},
        strict=bool(tool.strict),
        deferred=bool(tool.defer_loading),
    )


def _compaction(item: dict[str, Any], path: str) -> tuple[Block, ...]:
    """Decode a summary. Without content it yields no block, and nothing is dropped."""
    content = item.get("content")
    return (CompactedText(content),) if isinstance(content, str) and content.strip() else ()


_DECODERS: dict[str, _Decode] = {
    "text": _text_block,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "tool_addition": _tool_addition,
    "tool_removal": _tool_removal,
    "compaction": _compaction,
    "fallback": _skip,  # marks where a hosted model fell back to another; never shown
}
