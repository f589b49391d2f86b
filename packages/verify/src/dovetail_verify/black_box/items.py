"""The items of a Responses stream: opened, filled and done, each event in its place."""

from itertools import pairwise

from dovetail_verify.check import require
from dovetail_verify.dialects import Json
from dovetail_verify.exchange import HttpExchange

_PART_OPENERS = {
    "response.output_text.delta": "response.content_part.added",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_part.added",
}


def require_item_order(exchange: HttpExchange) -> None:
    """Fails unless items are added in order, and everything of an item comes while it is open."""
    opened: dict[int, Json] = {}
    done: set[int] = set()
    for event in exchange.events:
        type, index = event["type"], event.get("output_index")
        if type == "response.output_item.added":
            require(index == len(opened), f"item {index} is added where {len(opened)} was next")
            opened[len(opened)] = event["item"]
        elif type == "response.output_item.done":
            require(index in opened, f"item {index} is done, and was never added")
            require(index not in done, f"item {index} is done twice")
            _require_same_id(event["item"].get("id"), opened[index], type)
            done.add(index)
        elif index is not None:
            alive = index in opened and index not in done
            require(alive, f"{type} for item {index}, which is not open")
            _require_same_id(event.get("item_id"), opened[index], type)
    require(len(opened) == len(done), f"items {sorted({*opened} - done)} are never done")


def _require_same_id(id: object, item: Json, type: str) -> None:
    """An event may leave the id out; another item's it must not have."""
    require(
        id in (None, item.get("id")), f"{type} names {id!r}, and the item is {item.get('id')!r}"
    )


def require_parts_opened(exchange: HttpExchange) -> None:
    """Fails where text comes for a part of an item that was never added."""
    added = {
        _part_position(event)
        for event in exchange.events
        if event["type"] in _PART_OPENERS.values()
    }
    for event in exchange.events:
        opener = _PART_OPENERS.get(event["type"])
        if opener is not None:
            known = (opener, *_part_position(event)[1:]) in added
            require(known, f"{event['type']} without a {opener} before it")


def _part_position(event: Json) -> tuple[str, object, object]:
    part = event.get("content_index", event.get("summary_index"))
    return event["type"], event.get("output_index"), part


def require_rising_sequence(exchange: HttpExchange) -> str:
    """Fails unless the events are numbered upwards. Gives the numbers, for people."""
    events = [e for e in exchange.events if str(e.get("type", "")).startswith("response.")]
    numbers = [event.get("sequence_number") for event in events]
    require(None not in numbers, "an event without sequence_number")
    rising = all(b > a for a, b in pairwise(numbers))
    require(rising, f"the numbers do not rise: {numbers[:20]}")
    return f"{len(numbers)} events, numbered {numbers[0]} to {numbers[-1]}"
