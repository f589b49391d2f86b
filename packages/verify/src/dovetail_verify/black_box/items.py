"""The items of a Responses stream: opened, filled and done, each event in its place."""

from itertools import pairwise

from dovetail_verify.check import require
from dovetail_verify.dialects import Json
from dovetail_verify.exchange import Exchange

_PARTS = {
    "response.output_text.delta": "response.content_part.added",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_part.added",
}


def items_bracketed(exchange: Exchange) -> None:
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
            _same_id(event["item"].get("id"), opened[index], type)
            done.add(index)
        elif index is not None:
            alive = index in opened and index not in done
            require(alive, f"{type} for item {index}, which is not open")
            _same_id(event.get("item_id"), opened[index], type)
    require(len(opened) == len(done), f"items {sorted({*opened} - done)} are never done")


def _same_id(id: object, item: Json, type: str) -> None:
    """An event may leave the id out; another item's it must not have."""
    require(
        id in (None, item.get("id")), f"{type} names {id!r}, and the item is {item.get('id')!r}"
    )


def parts_opened(exchange: Exchange) -> None:
    """Fails where text comes for a part of an item that was never added."""
    added = {_place(event) for event in exchange.events if event["type"] in _PARTS.values()}
    for event in exchange.events:
        opener = _PARTS.get(event["type"])
        if opener is not None:
            known = (opener, *_place(event)[1:]) in added
            require(known, f"{event['type']} without a {opener} before it")


def _place(event: Json) -> tuple[str, object, object]:
    part = event.get("content_index", event.get("summary_index"))
    return event["type"], event.get("output_index"), part


def in_sequence(exchange: Exchange) -> str:
    """Fails unless the events are numbered upwards. Gives the numbers, for people."""
    events = [e for e in exchange.events if str(e.get("type", "")).startswith("response.")]
    numbers = [event.get("sequence_number") for event in events]
    require(None not in numbers, "an event without sequence_number")
    rising = all(b > a for a, b in pairwise(numbers))
    require(rising, f"the numbers do not rise: {numbers[:20]}")
    return f"{len(numbers)} events, numbered {numbers[0]} to {numbers[-1]}"
