"""Items of server tools: `web_search_call`, and the reasoning item with what the model read.

Clients return only the action of a `web_search_call`, some of them even without its id. But they
return reasoning items with their `encrypted_content` unchanged. So the sealed result of a call is
sent in a reasoning item without text behind it, which names the call.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from dovetail_model import (
    CallArgs,
    CallOpen,
    Citation,
    SealedTextBlock,
    ServerToolKind,
    ServerToolResult,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.json_strings import replace_surrogates
from dovetail_protocols.responses import wire
from dovetail_protocols.responses.output_items import FrameWriter, OutputItem, SilentRun
from dovetail_protocols.web_tools import FETCH_NAME, SEARCH_NAME

_CARRIER_PREFIX = "dovetool."
_SEPARATOR = "."


class WebSearchItem(OutputItem):
    """A call of a web tool: a search, or a page that is opened."""

    __slots__ = ("_call", "_failed", "_sources", "call_id", "run")
    prefix = "ws_"
    _events = "response.web_search_call"

    def __init__(
        self, id: str, index: int, frames: FrameWriter, call: CallOpen, *, sources: bool
    ) -> None:
        super().__init__(id, index, frames)
        self._call = call
        self._sources: list[wire.Json] | None = [] if sources else None
        self._failed = False
        self.call_id = call.id or ""
        self.run = SilentRun(self, CallArgs, "", call=call.index)

    @property
    def status(self) -> str:
        return "failed" if self._failed else super().status

    def open(self) -> bytes:
        added = self._added(wire.WebSearchCallOut(self.id, "in_progress", self._action()))
        return added + self._encode_frame(f"{self._events}.in_progress")

    def close(self) -> bytes:
        """Encode the end of the model's call: from now on it runs."""
        return self._encode_frame(f"{self._events}.searching")

    def finish(self, result: ServerToolResult) -> bytes:
        """Encode the end of the call."""
        self.add_result(result)
        return self._encode_frame(f"{self._events}.completed") + self._done()

    def add_result(self, result: ServerToolResult) -> None:
        self.done = True
        self._failed = result.error is not None
        if self._sources is not None:
            self._sources += [{"type": "url", "url": page.url} for page in result.results]

    def final(self) -> wire.WebSearchCallOut:
        return wire.WebSearchCallOut(self.id, self.status, self._action())

    def _action(self) -> wire.Json:
        try:
            arguments = msgspec.json.decode(self.text or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            arguments = {}
        if self._call.server == "web_fetch":
            return {"type": "open_page", "url": str(arguments.get("url") or "")}
        action: wire.Json = {"type": "search", "query": str(arguments.get("query") or "")}
        return action if self._sources is None else {**action, "sources": self._sources}


class SealedResultItem(OutputItem):
    """A reasoning item that contains only the sealed result of a call."""

    __slots__ = ("_seal",)
    prefix = "rs_"

    def __init__(self, id: str, index: int, frames: FrameWriter, result: ServerToolResult) -> None:
        super().__init__(id, index, frames)
        self.done = True
        self._seal = _CARRIER_PREFIX + _SEPARATOR.join((result.call_id, *result.seals))

    def send(self) -> bytes:
        return self._added(wire.ReasoningOut(self.id, "in_progress")) + self._done()

    def final(self) -> wire.ReasoningOut:
        return wire.ReasoningOut(self.id, self.status, encrypted_content=self._seal)


def citation_out(citation: Citation) -> wire.Json:
    """Encode a reference in a text: an annotation of an upstream server as it was sent."""
    if citation.annotation is not None:
        return dict(citation.annotation)
    return {
        "type": "url_citation",
        "url": citation.url,
        "title": replace_surrogates(citation.title),
        "start_index": citation.start,
        "end_index": citation.end,
    }


class ServerCall(msgspec.Struct, frozen=True):
    """A `web_search_call` of a history, until its result is known."""

    name: str
    arguments: str
    kind: ServerToolKind


def decode_call(item: dict[str, Any]) -> ServerCall | None:
    """Decode a `web_search_call`. Returns None for an action that the model cannot have called."""
    action = item.get("action")
    if not isinstance(action, dict):
        return None
    query, url = action.get("query"), action.get("url")
    if action.get("type") == "open_page" and isinstance(url, str):
        return ServerCall(FETCH_NAME, msgspec.json.encode({"url": url}).decode(), "web_fetch")
    if action.get("type") == "search" and isinstance(query, str):
        arguments = msgspec.json.encode({"query": query}).decode()
        return ServerCall(SEARCH_NAME, arguments, "web_search")
    return None


def decode_sealed_result(sealed: str | None) -> ToolResultBlock | None:
    """Decode the sealed result of a call; None if it is reasoning."""
    if not sealed or not sealed.startswith(_CARRIER_PREFIX):
        return None
    call_id, *seals = sealed.removeprefix(_CARRIER_PREFIX).split(_SEPARATOR)
    return ToolResultBlock(call_id, tuple(SealedTextBlock("", seal=seal) for seal in seals))


def pair_calls(
    parts: Iterable[tuple[ServerCall | None, tuple[Turn, ...]]],
) -> list[tuple[Turn, ...]]:
    """Return the turns of items, with calls for those `web_search_call` items that have a result.

    Each item comes with its call, if it is one, and with its turns otherwise. Results are in the
    order of the calls.
    """
    found: list[tuple[Turn, ...]] = []
    waiting: list[tuple[int, ServerCall]] = []
    for call, turns in parts:
        if call is not None:
            waiting.append((len(found), call))
        elif (result := _sealed_result(turns)) is not None:
            if not waiting:
                continue
            at, paired = waiting.pop(0)
            block = ToolCallBlock(result.call_id, paired.name, paired.arguments, server=paired.kind)
            found[at] = (Turn("assistant", (block,)),)
        elif turns and turns[0].role != "assistant":
            waiting.clear()  # a result never follows another turn
        found.append(turns)
    return found


def _sealed_result(turns: tuple[Turn, ...]) -> ToolResultBlock | None:
    block = turns[0].blocks[0] if turns and turns[0].blocks else None
    if isinstance(block, ToolResultBlock) and any(
        isinstance(one, SealedTextBlock) for one in block.blocks
    ):
        return block
    return None
