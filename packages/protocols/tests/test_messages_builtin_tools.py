"""Tools that a type defines: those that the client runs are functions, others are server tools."""

import json
from typing import Any

import pytest

from dovetail_model import (
    Request,
    SealedTextBlock,
    ServerTool,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from dovetail_protocols import MESSAGES

SEARCH = {
    "type": "web_search_20250305",
    "name": "web_search",
    "max_uses": 5,
    "allowed_domains": ["example.com", "docs.example.org/api"],
    "user_location": {"type": "approximate", "country": "NO"},
}
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


def decode(**fields: Any) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello?"}], **fields}
    return MESSAGES.decode(json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    ("type", "name", "arguments"),
    [
        ("bash_20250124", "bash", {"command", "restart"}),
        ("bash_20241022", "bash", {"command", "restart"}),
        (
            "text_editor_20250728",
            "str_replace_based_edit_tool",
            {
                "command",
                "path",
                "view_range",
                "file_text",
                "old_str",
                "new_str",
                "insert_line",
                "insert_text",
            },
        ),
        (
            "text_editor_20250124",
            "str_replace_editor",
            {"command", "path", "view_range", "file_text", "old_str", "new_str", "insert_line"},
        ),
        (
            "memory_20250818",
            "memory",
            {
                "command",
                "path",
                "view_range",
                "file_text",
                "old_str",
                "new_str",
                "insert_line",
                "insert_text",
                "old_path",
                "new_path",
            },
        ),
    ],
)
def test_tool_that_the_client_runs_has_a_schema(type: str, name: str, arguments: set[str]) -> None:
    request = decode(tools=[{"type": type, "name": name}])
    (tool,) = request.tools
    assert tool.name == name
    assert tool.description
    assert set(tool.parameters["properties"]) == arguments
    assert not request.ignored
    assert not request.server_tools


def test_only_older_text_editors_can_undo() -> None:
    old, new = decode(
        tools=[
            {"type": "text_editor_20250124", "name": "str_replace_editor"},
            {"type": "text_editor_20250429", "name": "str_replace_based_edit_tool"},
        ]
    ).tools
    assert "undo_edit" in old.parameters["properties"]["command"]["enum"]
    assert "undo_edit" not in new.parameters["properties"]["command"]["enum"]


def test_web_search_is_a_server_tool_with_its_options() -> None:
    request = decode(tools=[TOOL, SEARCH])
    assert request.server_tools == (
        ServerTool(
            "web_search",
            "web_search",
            "web_search_20250305",
            "tools[1]",
            position=1,
            max_uses=5,
            allowed_domains=("example.com", "docs.example.org/api"),
            location={"type": "approximate", "country": "NO"},
        ),
    )
    assert [tool.name for tool in request.tools] == ["look_up"]


@pytest.mark.parametrize(
    ("type", "kind"),
    [
        ("web_search_20260209", "web_search"),
        ("web_fetch_20250910", "web_fetch"),
        ("code_execution_20250825", "other"),
        ("computer_20250124", "other"),
        ("tool_search_tool_regex_20251119", "other"),
    ],
)
def test_kind_of_a_server_tool(type: str, kind: str) -> None:
    (tool,) = decode(tools=[{"type": type, "name": "n"}]).server_tools
    assert (tool.kind, tool.type, tool.name) == (kind, type, "n")


@pytest.mark.parametrize(
    ("choice", "required"),
    [
        ({"type": "tool", "name": "web_search"}, True),
        ({"type": "any"}, True),
        ({"type": "auto"}, False),
        (None, False),
    ],
)
def test_tool_choice_requires_a_server_tool(choice: object, required: bool) -> None:
    (tool,) = decode(tools=[SEARCH], tool_choice=choice).server_tools
    assert tool.required is required


def test_options_without_effect_are_listed() -> None:
    tool = {**SEARCH, "allowed_callers": ["direct"], "cache_control": {"type": "ephemeral"}}
    (found,) = decode(tools=[tool]).server_tools
    assert found.unused == ("tools[0].allowed_callers",)


def test_message_with_searches_is_split_into_turns() -> None:
    page = {"type": "web_search_result", "url": "u", "title": "T", "encrypted_content": "E"}
    content = [
        {"type": "text", "text": "a"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search",
         "input": {"query": "q"}},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "web_fetch", "input": {"url": "u"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]},
        {"type": "web_fetch_tool_result", "tool_use_id": "srvtoolu_2", "content": {
            "type": "web_fetch_tool_result_error", "error_code": "unavailable"}},
        {"type": "text", "text": "b", "citations": [{"type": "web_search_result_location"}]},
        {"type": "tool_use", "id": "toolu_3", "name": "look_up", "input": {}},
    ]  # fmt: skip
    request = decode(
        messages=[
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": content},
            {"role": "user", "content": "More."},
        ]
    )
    assert [turn.role for turn in request.turns] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert request.turns[1].blocks == (
        TextBlock("a"),
        ToolCallBlock("toolu_1", "web_search", '{"query":"q"}', server="web_search"),
        ToolCallBlock("toolu_2", "web_fetch", '{"url":"u"}', server="web_fetch"),
    )
    assert request.turns[2].blocks == (
        ToolResultBlock("toolu_1", (SealedTextBlock("T\nu", seal="E"),)),
        ToolResultBlock("toolu_2", (TextBlock("Error: web_fetch failed: unavailable"),)),
    )
    assert request.turns[3].blocks == (
        TextBlock("b"),
        ToolCallBlock("toolu_3", "look_up", "{}"),
    )


def test_search_without_its_result_is_text() -> None:
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    request = decode(messages=[{"role": "user", "content": "Hello?"},
                               {"role": "assistant", "content": [use]}])  # fmt: skip
    assert request.turns[1].blocks == (TextBlock("[web_search {}]"),)
