"""Items of conversations: complete, each with an id, and stored in batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dovetail.http.body import run_sized
from dovetail.http.exchange import ApiExchange
from dovetail.http.ids import new_id, parse_response_number
from dovetail.http.memory import reserve_memory
from dovetail.responses.store import ResponseStore, is_valid_id
from dovetail_model import RequestTooLarge, ResponseNotFound
from dovetail_protocols import (
    complete_item,
    item_id,
    item_references,
    items_by_id,
    resolve_references,
)

Item = dict[str, Any]


async def find_items(
    store: ResponseStore, exchange: ApiExchange, ids: Sequence[str], limit: int, *, param: str
) -> dict[str, bytes]:
    """Return output items of the tenant's stored responses by id.

    Raises `ResponseNotFound`, which names `param`, if one is missing.
    """
    numbers = [number for id in ids if (number := parse_response_number(id)) is not None]
    responses = [f"resp_{number}" for number in numbers]
    found: dict[str, bytes] = {}
    for output in await store.get_outputs(
        exchange.tenant, responses, limit, exchange.local_responses
    ):
        found |= items_by_id(output)
    for id in ids:
        if id not in found:
            name = f" with id '{id}'" if is_valid_id(id) else ""
            raise ResponseNotFound(f"Item{name} not found.", param=param)
    return found


async def resolve_items(
    store: ResponseStore, exchange: ApiExchange, items: Sequence[Item], limit: int
) -> Sequence[Item]:
    """Replace references among the new items of a conversation by the items."""

    def find_references() -> tuple[bytes, list[str]]:
        body = msgspec.json.encode({"input": items})
        return body, item_references(body)

    body, references = await run_sized(exchange.held_bytes, find_references)
    if not references:
        return items
    found = await find_items(store, exchange, references, limit, param="items")

    def resolve() -> list[Item]:
        resolved: list[Item] = msgspec.json.decode(resolve_references(body, found))["input"]
        return resolved

    size = len(body) + sum(len(found[id]) for id in references)
    if size > limit:
        raise RequestTooLarge(f"The items are larger than {limit} bytes.")
    reserve_memory(exchange, size, limit)
    return await run_sized(size, resolve)


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
