"""Web searches that an upstream ran, for clients of APIs other than that of the upstream."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    HostedItem,
    ServerToolResult,
    WebResult,
)

ITEM_DONE = "response.output_item.done"
#: Added to the index of a hosted item: the calls of functions have the first indices.
FIRST_INDEX = 1 << 20


class HostedSearches:
    """Converts items of the Responses API to events of server tools. `count` counts searches."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self.count = 0

    def convert(self, event: HostedItem) -> list[Event]:
        """Return the events of a finished search. Other items are reported."""
        item = event.item or {}
        if event.kind != ITEM_DONE:
            return []
        if item.get("type") != "web_search_call":
            return [Diagnostic("hosted_item_not_carried")]
        self.count += 1
        index, id = FIRST_INDEX + event.index, self._new_call_id()
        found = item.get("action")
        action: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        query = action.get("query") or action.get("url") or ""
        failed = "unavailable" if item.get("status") == "failed" else None
        return [
            CallOpen(index, "web_search", id, server="web_search"),
            CallArgs(index, msgspec.json.encode({"query": str(query)}).decode()),
            CallClose(index),
            ServerToolResult(index, id, "web_search", _results(action), failed),
        ]


def _results(action: Mapping[str, Any]) -> tuple[WebResult, ...]:
    sources = action.get("sources")
    found = (
        [one for one in sources if isinstance(one, Mapping)] if isinstance(sources, list) else []
    )
    return tuple(
        WebResult(str(one["url"]), str(one.get("title") or one["url"]))
        for one in found
        if one.get("url")
    )
