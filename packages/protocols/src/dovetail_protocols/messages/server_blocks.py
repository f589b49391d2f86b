"""Blocks of server tools: the call, its result, and references to it in text.

One assistant message contains all turns of the model in which the server ran tools. The decoder
splits it again into model turn, tool results and next model turn, as the model read them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dovetail_model import (
    Block,
    Citation,
    ContentBlock,
    SealedTextBlock,
    ServerToolKind,
    ServerToolResult,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.json_strings import replace_surrogates
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.block_text import block_to_text
from dovetail_protocols.server_results import NO_RESULTS_TEXT, write_page, write_tool_error

CALL_TYPE, RESULT_SUFFIX = "server_tool_use", "_tool_result"
_SERVER_PREFIX = "srv"
_KINDS: dict[str, ServerToolKind] = {
    "web_search_tool_result": "web_search",
    "web_fetch_tool_result": "web_fetch",
}

DecodeBlocks = Callable[[object], tuple[Block, ...]]
"""Decodes one block of any other type."""


def to_public_id(call_id: str) -> str:
    """Return the id of a call as the API shows it for a server tool."""
    return _SERVER_PREFIX + call_id


def decode_server_turns(
    content: Sequence[object], arguments: Callable[[object], str], decode: DecodeBlocks
) -> tuple[Turn, ...] | None:
    """Split a message with server tools into turns. Returns None if there are none.

    A call without a result, or a result without its call, is decoded like any other block.
    """
    paired = _find_pairs(content)
    if not paired:
        return None
    turns: list[Turn] = []
    model: list[Block] = []
    results: list[Block] = []
    for item in content:
        result = _decode_result(item, paired)
        if result is not None:
            results.append(result)
            continue
        if results:
            turns += [Turn("assistant", tuple(model)), Turn("tool", tuple(results))]
            model, results = [], []
        call = _decode_call(item, paired, arguments)
        model += decode(item) if call is None else (call,)
    turns.append(Turn("assistant", tuple(model)))
    if results:
        turns.append(Turn("tool", tuple(results)))
    return tuple(turn for turn in turns if turn.blocks)


def _find_pairs(content: Sequence[object]) -> set[str]:
    """Return the ids of the calls that are followed by their results."""
    called: set[str] = set()
    paired: set[str] = set()
    for item in content:
        if not isinstance(item, dict):
            continue
        kind, id, of = item.get("type"), item.get("id"), item.get("tool_use_id")
        if kind == CALL_TYPE and isinstance(id, str):
            called.add(id)
        elif isinstance(kind, str) and kind.endswith(RESULT_SUFFIX) and of in called:
            paired.add(of)
    return paired


def _decode_call(
    item: object, paired: set[str], arguments: Callable[[object], str]
) -> ToolCallBlock | None:
    if not isinstance(item, dict) or item.get("type") != CALL_TYPE or item.get("id") not in paired:
        return None
    name, id = str(item.get("name")), item["id"].removeprefix(_SERVER_PREFIX)
    kind = _KINDS.get(name + RESULT_SUFFIX, "other")
    return ToolCallBlock(id, name, arguments(item.get("input")), server=kind)


def _decode_result(item: object, paired: set[str]) -> ToolResultBlock | None:
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(kind, str) or not kind.endswith(RESULT_SUFFIX):
        return None
    of = item.get("tool_use_id")
    if of not in paired:
        return None
    blocks = _decode_content(_KINDS.get(kind, "other"), item.get("content"))
    return ToolResultBlock(of.removeprefix(_SERVER_PREFIX), blocks)


def _decode_content(kind: ServerToolKind, content: object) -> tuple[ContentBlock, ...]:
    if isinstance(content, dict) and str(content.get("type")).endswith("_error"):
        code = str(content.get("error_code") or "unavailable")
        return (TextBlock(write_tool_error(kind, code)),)
    if kind == "web_search" and isinstance(content, list):
        pages = tuple(SealedTextBlock(block_to_text(page), seal=_seal(page)) for page in content)
        return pages or (TextBlock(NO_RESULTS_TEXT),)
    if kind == "web_fetch" and isinstance(content, dict):
        page = _read_page(content)
        if page is not None:
            return (TextBlock(write_page(*page)),)
    return (TextBlock(block_to_text(content)),)


def _seal(page: object) -> str:
    found = page.get("encrypted_content") if isinstance(page, dict) else None
    return found if isinstance(found, str) else ""


def _read_page(content: dict[str, Any]) -> tuple[str, str, str] | None:
    document = content.get("content")
    source = document.get("source") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(source, dict):
        return None
    if source.get("type") != "text" or not isinstance(source.get("data"), str):
        return None
    return str(content.get("url") or ""), str(document.get("title") or ""), source["data"]


def encode_result(event: ServerToolResult) -> wire.ServerResultOut:
    """Encode the result of a call."""
    of = to_public_id(event.call_id)
    if event.kind == "web_search":
        return wire.WebSearchResultOut(of, _search_content(event))
    return wire.WebFetchResultOut(of, _fetch_content(event))


def _search_content(
    event: ServerToolResult,
) -> list[wire.FoundPageOut] | wire.WebSearchErrorOut:
    if event.error is not None:
        return wire.WebSearchErrorOut(event.error)
    return [
        wire.FoundPageOut(page.url, replace_surrogates(page.title), page.seal, page.page_age)
        for page in event.results
    ]


def _fetch_content(event: ServerToolResult) -> wire.FetchedPageOut | wire.WebFetchErrorOut:
    if event.error is not None or not event.results:
        return wire.WebFetchErrorOut(event.error or "unavailable")
    (page,) = event.results
    document = wire.DocumentOut(
        wire.TextSourceOut(replace_surrogates(page.text)), replace_surrogates(page.title) or None
    )
    return wire.FetchedPageOut(page.url, document)


def encode_citation(event: Citation) -> wire.CitationOut:
    """Encode a reference to a result."""
    return wire.CitationOut(
        url=event.url,
        title=replace_surrogates(event.title),
        cited_text=replace_surrogates(event.text),
        encrypted_index=str(event.number),
    )


def to_server_usage(searches: int, fetches: int) -> wire.ServerToolUsageOut | None:
    """Encode the number of requests of server tools, None without any."""
    return wire.ServerToolUsageOut(searches, fetches) if searches or fetches else None


def encode_call(call: ToolCallBlock, arguments: msgspec.Raw) -> wire.ServerToolUseOut:
    """Encode a call that the server ran."""
    return wire.ServerToolUseOut(to_public_id(call.id), str(call.server), arguments)
