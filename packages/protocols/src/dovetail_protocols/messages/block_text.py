"""Write blocks without a counterpart in the data model as text.

A history with server tools, their results, references or future block types must keep working. The
text depends only on the block's meaning: `cache_control` moves between blocks from request to
request and must never reach the prompt, and encrypted fields mean nothing to the served model.
"""

from collections.abc import Callable
from typing import Any

import msgspec

_HIDDEN = {
    "cache_control", "encrypted_content", "encrypted_index", "encrypted_stdout", "citations",
}  # fmt: skip


def block_to_text(value: object) -> str:
    """Write one block as text: by its type if known, else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return content_to_text(value)
    if isinstance(value, dict):
        kind = value.get("type")
        writer = _TEXT_WRITERS.get(kind) if isinstance(kind, str) else None
        if writer is not None:
            return writer(value)
        if isinstance(kind, str) and kind.endswith("_tool_result"):
            return block_to_text(value.get("content"))
    return "" if value is None else _json(value)


def content_to_text(values: str | list[Any] | None) -> str:
    """Write the content of several blocks, one line each."""
    if isinstance(values, str):
        return values
    return "\n".join(filter(None, map(block_to_text, values or ())))


def _json(value: object) -> str:
    return msgspec.json.encode(_strip_hidden(value)).decode()


def _strip_hidden(value: object) -> object:
    if isinstance(value, dict):
        return {name: _strip_hidden(item) for name, item in value.items() if name not in _HIDDEN}
    if isinstance(value, list):
        return [_strip_hidden(item) for item in value]
    return value


def _text(block: dict[str, Any]) -> str:
    return str(block.get("text") or "")


def _call(block: dict[str, Any]) -> str:
    return f"[{block.get('name')} {_json(block.get('input') or {})}]"


def _page(block: dict[str, Any]) -> str:
    return "\n".join(str(block[name]) for name in ("title", "url") if block.get(name))


def _fetched(block: dict[str, Any]) -> str:
    return "\n".join(filter(None, (_page(block), block_to_text(block.get("content")))))


def _document(block: dict[str, Any]) -> str:
    """Write a document where only text is possible: its text, or a placeholder."""
    source = block.get("source")
    fields: dict[str, Any] = source if isinstance(source, dict) else {}
    title = str(block.get("title") or "")
    if fields.get("type") == "text":
        body = str(fields.get("data") or "")
    elif fields.get("content") is not None:
        body = block_to_text(fields["content"])
    else:
        where = fields.get("url") or fields.get("file_id") or fields.get("media_type") or ""
        body = f"[{block.get('type')} {where}]".replace(" ]", "]")
    return "\n".join(filter(None, (title, body)))


def _reference(block: dict[str, Any]) -> str:
    return f"Tool available: {block.get('tool_name')}"


def _references(block: dict[str, Any]) -> str:
    return block_to_text(block.get("tool_references"))


_TEXT_WRITERS: dict[str, Callable[[dict[str, Any]], str]] = {
    "text": _text,
    "server_tool_use": _call,
    "mcp_tool_use": _call,
    "web_search_result": _page,
    "web_fetch_result": _fetched,
    "document": _document,
    "image": _document,
    "tool_reference": _reference,
    "tool_search_tool_search_result": _references,
}
