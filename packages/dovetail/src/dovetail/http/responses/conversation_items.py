"""Items of conversations: complete, each with an id, and stored in batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dovetail.http.ids import new_id
from dovetail_protocols import complete_item, item_id

Item = dict[str, Any]


def new_items(items: Iterable[Item]) -> list[Item]:
    """Return items as a conversation stores them: complete, and each with an id."""
    return [_new_item(item) for item in items]


def _new_item(item: Item) -> Item:
    id = item.get("id")
    if not isinstance(id, str) or not id:
        id = item_id(item, new_id(""))
    complete = complete_item(item, id)
    return {"status": "completed", **complete} if complete["type"] == "message" else complete


def encode_each(items: Iterable[Item]) -> list[bytes]:
    return [msgspec.json.encode(item) for item in items]


def decode_batches(batches: Sequence[bytes]) -> list[Item]:
    """Decode stored batches of items."""
    return [item for batch in batches for item in msgspec.json.decode(b"[%b]" % batch)]
