"""Lists of items, and other small responses about a conversation."""

from collections.abc import Sequence
from typing import Any

import msgspec

Item = dict[str, Any]

_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "web_search_call": "ws_",
    "compaction": "cmp_",
}


def complete_item(item: Item, id: str) -> Item:
    """Return an item in its full form: with a type, an id, and content in parts."""
    kind = item.get("type", "message")
    found = {"type": kind, **item, "id": id}
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        more: Item = {"annotations": []} if part == "output_text" else {}
        found["content"] = [{"type": part, "text": content, **more}]
    return found


def item_id(item: Item, name: str) -> str:
    """Return an id in the API's style, for an item that has none."""
    return _PREFIXES.get(item.get("type", "message"), "item_") + name


def encode_items(items: Sequence[Item], *, has_more: bool) -> bytes:
    """Encode one page of a list."""
    return msgspec.json.encode(
        {
            "object": "list",
            "data": items,
            "first_id": items[0]["id"] if items else None,
            "last_id": items[-1]["id"] if items else None,
            "has_more": has_more,
        }
    )


def encode_input_tokens(count: int) -> bytes:
    return msgspec.json.encode({"object": "response.input_tokens", "input_tokens": count})
