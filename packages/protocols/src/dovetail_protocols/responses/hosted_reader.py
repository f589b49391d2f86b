"""Read what only a client of the Responses API understands in the stream of an upstream server.

These are the items of hosted tools with the frames about them, and the fields of the response
object. They are passed on as the upstream sent them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail_model import HostedItem, ResponseFields

ITEM_ADDED, ITEM_DONE = "response.output_item.added", "response.output_item.done"
_POSITION = ("type", "sequence_number", "output_index", "item", "item_id")
#: Fields that Dovetail determines for its own response object.
_OWN_FIELDS = frozenset(
    (
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "error",
        "incomplete_details",
        "model",
        "input",
        "instructions",
        "output",
        "output_text",
        "usage",
        "previous_response_id",
        "conversation",
        "background",
        "store",
        "tools",
        "tool_choice",
    )
)
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class HostedReader:
    """Reads the hosted items and the fields of one response."""

    __slots__ = ("_done", "_fields", "_indices")

    def __init__(self) -> None:
        self._indices: dict[object, int] = {}  # by output index and by item id
        self._done: set[int] = set()
        self._fields: dict[str, msgspec.Raw] = {}

    def read_frame(self, kind: str, data: str) -> HostedItem | None:
        """Read a frame. Returns None if it is not about a hosted item."""
        frame = msgspec.json.decode(data)
        item, place = frame.get("item"), frame.get("output_index")
        if isinstance(item, dict):
            return self._item(kind, item, place, _own_fields(frame))
        index = self._indices.get(place if place is not None else frame.get("item_id"))
        return None if index is None else HostedItem(index, kind, _own_fields(frame))

    def knows(self, place: int | None, id: str | None) -> bool:
        """Return whether this is the output index or the id of a hosted item."""
        return (place if place is not None else id) in self._indices

    def read_item(self, raw: msgspec.Raw, place: int) -> HostedItem | None:
        """Read an item of the final response. Returns None if its frames were complete."""
        item = msgspec.json.decode(raw)
        found = self._indices.get(item.get("id") or place, self._indices.get(place))
        if found in self._done:
            return None
        return self._item(ITEM_DONE, item, place, {})

    def read_fields(self, response: bytes | msgspec.Raw) -> ResponseFields | None:
        """Read the fields of a response object. Returns None if nothing changed."""
        found = {
            name: value
            for name, value in _decode_object(response).items()
            if name not in _OWN_FIELDS
        }
        changed = {name: raw for name, raw in found.items() if self._fields.get(name) != raw}
        if not changed:
            return None
        self._fields |= changed
        values = {name: msgspec.json.decode(raw) for name, raw in changed.items()}
        return ResponseFields("responses", values)

    def _item(
        self, kind: str, item: Mapping[str, Any], place: int | None, fields: Mapping[str, Any]
    ) -> HostedItem:
        id = item.get("id")
        index = self._indices.get(place if place is not None else id)
        if index is None:
            index = len(set(self._indices.values()))
            for key in (place, id):
                if key is not None:
                    self._indices[key] = index
        if kind == ITEM_DONE:
            self._done.add(index)
        return HostedItem(index, kind, fields, item)


def _own_fields(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a frame that do not depend on its position in the stream."""
    return {name: value for name, value in frame.items() if name not in _POSITION}
