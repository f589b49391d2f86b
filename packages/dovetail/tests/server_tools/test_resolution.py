"""Which server tools of a request are offered to the model."""

import json
from typing import Any

import pytest

from dovetail.server_tools.resolution import ServerToolResolver
from dovetail_model import InvalidRequest, Request, ServerToolKind, Unsupported
from dovetail_protocols import CHAT, MESSAGES, RESPONSES

SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
BOTH: frozenset[ServerToolKind] = frozenset(("web_search", "web_fetch"))


def messages(*tools: Any, **more: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": tools, **more}
    return MESSAGES.decode(json.dumps(body).encode(), {})


def responses(*tools: Any, **more: Any) -> Request:
    body = {"model": "m", "input": "?", "tools": tools, **more}
    return RESPONSES.decode(json.dumps(body).encode(), {})


def names(request: Request) -> list[str]:
    return [tool.name for tool in request.tools]


def test_functions_have_the_place_of_their_declaration() -> None:
    request = messages(SEARCH, TOOL, FETCH)
    resolver = ServerToolResolver(BOTH)
    resolved = resolver.resolve(request)
    assert names(resolved) == ["web_search", "look_up", "web_fetch"]
    assert resolved.ignored == ()
    assert resolver.resolve(request).tools is resolved.tools  # caches look up by identity


def test_only_enabled_kinds_are_offered() -> None:
    resolved = ServerToolResolver(frozenset(("web_search",))).resolve(messages(SEARCH, FETCH, TOOL))
    assert names(resolved) == ["web_search", "look_up"]
    assert resolved.unavailable_tools == ("web_fetch",)
    assert resolved.ignored == ("tools[1]",)


def test_pages_are_a_part_of_the_search_of_responses() -> None:
    request = responses({"type": "web_search"}, FUNCTION)
    assert names(ServerToolResolver(BOTH).resolve(request)) == [
        "web_search",
        "web_fetch",
        "look_up",
    ]
    only_search = ServerToolResolver(frozenset(("web_search",))).resolve(request)
    assert names(only_search) == ["web_search", "look_up"]
    assert only_search.unavailable_tools == ()
    only_fetch = ServerToolResolver(frozenset(("web_fetch",))).resolve(request)
    assert names(only_fetch) == ["look_up"]
    assert only_fetch.unavailable_tools == ("web_search",)


def test_pages_alone_do_not_make_a_search() -> None:
    with pytest.raises(Unsupported, match="'web_search' is not available"):
        ServerToolResolver(frozenset(("web_fetch",))).resolve(responses({"type": "web_search"}))


def test_options_without_effect_are_reported() -> None:
    tool = {"type": "web_search", "search_context_size": "low", "external_web_access": True}
    resolved = ServerToolResolver(BOTH).resolve(responses(tool, max_tool_calls=3))
    assert resolved.ignored == ("tools[0].search_context_size", "tools[0].external_web_access")
    assert resolved.max_server_calls == 3


def test_filters_cannot_be_combined() -> None:
    tool = {**SEARCH, "allowed_domains": ["a.example"], "blocked_domains": ["b.example"]}
    with pytest.raises(InvalidRequest, match="cannot be combined"):
        ServerToolResolver(BOTH).resolve(messages(tool))


@pytest.mark.parametrize("type", ["web_search", "file_search"])
def test_tools_of_chat_follow_the_same_rules(type: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}], "tools": [{"type": type}]}
    request = CHAT.decode(json.dumps(body).encode(), {})
    with pytest.raises(Unsupported, match=f"'{type}' is not available"):
        ServerToolResolver().resolve(request)


def test_listed_search_is_allowed_and_required() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}
    request = responses({"type": "web_search"}, FUNCTION, tool_choice=choice)
    resolved = ServerToolResolver(BOTH).resolve(request)
    assert resolved.tool_choice.name == "web_search"
    assert resolved.tool_choice.allowed == frozenset({"web_search", "web_fetch"})
