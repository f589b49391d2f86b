"""Content blocks in a history. A test is named after the client that sends the block."""

from typing import Any

import msgspec
import pytest

from dovetail_model import (
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolSpec,
)
from dovetail_protocols.messages import CODEC

CACHE = {"type": "ephemeral"}


def blocks(*content: Any, role: str = "user") -> tuple[Any, ...]:
    request = {"model": "m", "messages": [{"role": role, "content": content}]}
    return CODEC.decode(msgspec.json.encode(request), {}).turns[0].blocks


def result(content: Any, **fields: Any) -> Any:
    return blocks({"type": "tool_result", "tool_use_id": "t", "content": content, **fields})[0]


# Text


def test_text_is_unchanged() -> None:
    assert blocks({"type": "text", "text": "  a\n\n"}) == (TextBlock("  a\n\n"),)


def test_white_space_between_reasoning_and_a_call_yields_no_block() -> None:
    found = blocks(
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "\n\n"},
        {"type": "tool_use", "id": "c", "name": "read", "input": {}},
        role="assistant",
    )
    assert found == (ReasoningBlock("t", seal="s"), ToolCallBlock("c", "read", "{}"))


def test_some_clients_send_bare_strings_in_a_list() -> None:
    assert blocks("a", {"type": "text", "text": "b"}) == (TextBlock("a"), TextBlock("b"))


# Blocks of an assistant


def test_claude_code_replays_thinking_with_its_signature() -> None:
    thinking = {"type": "thinking", "thinking": " as it was\n", "signature": "c2ln" * 9000}
    assert blocks(thinking, role="assistant") == (
        ReasoningBlock(" as it was\n", seal="c2ln" * 9000),
    )


@pytest.mark.parametrize("signature", ["", None])
def test_empty_signature_is_ignored(signature: str | None) -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": signature}
    assert blocks(thinking, role="assistant") == (ReasoningBlock("t"),)


def test_redacted_thinking_keeps_its_data() -> None:
    assert blocks({"type": "redacted_thinking", "data": "x"}) == (ReasoningBlock("", seal="x"),)


def test_claude_code_sends_thinking_and_call_without_text() -> None:
    found = blocks(
        {"type": "thinking", "thinking": "a", "signature": "s1"},
        {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "x"}},
        {"type": "thinking", "thinking": "b", "signature": "s2"},
        {"type": "tool_use", "id": "t2", "name": "read", "input": {"path": "y"}},
        role="assistant",
    )
    assert found == (
        ReasoningBlock("a", seal="s1"),
        ToolCallBlock("t1", "read", '{"path":"x"}'),
        ReasoningBlock("b", seal="s2"),
        ToolCallBlock("t2", "read", '{"path":"y"}'),
    )


ARGUMENTS = [
    ({"b": 1, "a": {"d": None, "c": [True, "é"]}}, '{"b":1,"a":{"d":null,"c":[true,"é"]}}'),
    ({"n": 5000.0, "big": 12345678901234567890123}, '{"n":5000.0,"big":12345678901234567890123}'),
    ({}, "{}"),
    (None, "{}"),
    ("", "{}"),
    ('{"b": 1, "a": 2}', '{"b": 1, "a": 2}'),
    ("not json", '"not json"'),
]


@pytest.mark.parametrize(("given", "arguments"), ARGUMENTS)
def test_input_becomes_compact_json_in_the_clients_order(given: object, arguments: str) -> None:
    used = {"type": "tool_use", "id": "t", "name": "f", "input": given}
    assert blocks(used, role="assistant") == (ToolCallBlock("t", "f", arguments),)


# Results


def test_result_as_a_string_equals_a_list() -> None:
    expected = ToolResultBlock("t", (TextBlock("out"),))
    assert result("out") == result([{"type": "text", "text": "out"}]) == expected


def test_claude_code_omits_is_error() -> None:
    assert result("x").is_error is False
    assert result("x", is_error=True).is_error is True


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_tool_may_return_nothing(content: object) -> None:
    assert result(content) == ToolResultBlock("t")


def test_white_space_in_a_tool_result_is_preserved() -> None:
    assert result("\n") == ToolResultBlock("t", (TextBlock("\n"),))


def test_claude_code_sends_images_inside_a_result() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    found = result([{"type": "text", "text": "see"}, {"type": "image", "source": source}])
    assert found.blocks == (TextBlock("see"), ImageBlock("image/png", "AAAA"))


def test_claude_code_sends_tool_references_as_a_result() -> None:
    found = result([{"type": "tool_reference", "tool_name": "mcp__docs__search"}])
    assert found.blocks == (ToolReferenceBlock("mcp__docs__search"),)


def test_claude_code_sends_results_in_completion_order() -> None:
    found = blocks(
        {"type": "tool_result", "tool_use_id": "t2", "content": "second"},
        {"type": "tool_result", "tool_use_id": "t1", "content": "first"},
        {"type": "text", "text": "And?"},
    )
    assert [getattr(block, "call_id", "text") for block in found] == ["t2", "t1", "text"]


def test_claude_code_sends_a_pdf_next_to_its_result() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}
    found = blocks(
        {"type": "tool_result", "tool_use_id": "t", "content": "PDF read"},
        {"type": "document", "source": source},
    )
    assert found[1] == DocumentBlock("application/pdf", data="JVBE")


# Media


def test_image_by_url() -> None:
    source = {"type": "url", "url": "https://x/y.png"}
    assert blocks({"type": "image", "source": source}) == (ImageBlock(url="https://x/y.png"),)


DOCUMENTS = [
    ({"type": "text", "media_type": "text/plain", "data": "T"}, {"text": "T"}),
    ({"type": "base64", "media_type": "text/plain", "data": "VA=="}, {"data": "VA=="}),
    ({"type": "url", "media_type": "text/plain", "url": "u"}, {"url": "u"}),
    ({"type": "content", "media_type": "text/plain", "content": "T"}, {"text": "T"}),
    (
        {
            "type": "content",
            "media_type": "text/plain",
            "content": [
                {"type": "text", "text": "T", "cache_control": CACHE},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
            ],
        },
        {"text": "T\n[image image/png]"},
    ),
]


@pytest.mark.parametrize(("source", "expected"), DOCUMENTS)
def test_document(source: object, expected: dict[str, str]) -> None:
    found = blocks({"type": "document", "source": source, "title": "A", "context": "About B."})
    assert found == (
        TextBlock("About B."),
        DocumentBlock(media_type="text/plain", title="A", **expected),
    )


@pytest.mark.parametrize("kind", ["image", "document"])
def test_uploaded_file_becomes_a_placeholder(kind: str) -> None:
    block = {"type": kind, "source": {"type": "file", "file_id": "file_1"}}
    assert blocks(block) == (TextBlock(f"[{kind} file_1]"),)


# Blocks that the model cannot see as such

WRITTEN_AS_TEXT: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        '[web_search {"query":"x"}]',
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [
                {"type": "web_search_result", "title": "A", "url": "u", "encrypted_content": "e"},
                {"type": "web_search_result", "title": "B", "url": "v", "page_age": "1 day"},
            ],
        },
        "A\nu\nB\nv",
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
        },
        '{"type":"web_search_tool_result_error","error_code":"unavailable"}',
    ),
    (
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "web_fetch_result",
                "url": "u",
                "content": {
                    "type": "document",
                    "title": "A",
                    "source": {"type": "text", "media_type": "text/plain", "data": "T"},
                },
            },
        },
        "u\nA\nT",
    ),
    (
        {
            "type": "mcp_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
        },
        "one\ntwo",
    ),
    (
        {
            "type": "tool_search_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "a"}],
            },
        },
        "Tool available: a",
    ),
    (
        {
            "type": "search_result",
            "source": "u",
            "title": "A",
            "content": [{"type": "text", "text": "T"}],
            "citations": {"enabled": True},
        },
        "A\nu\nT",
    ),
    (
        {"type": "container_upload", "file_id": "file_1", "cache_control": CACHE},
        '{"type":"container_upload","file_id":"file_1"}',
    ),
    (
        {"type": "next_year", "parts": [{"deep": 1, "cache_control": CACHE}]},
        '{"type":"next_year","parts":[{"deep":1}]}',
    ),
    ({"no_type": 1}, '{"no_type":1}'),
]


@pytest.mark.parametrize(
    ("block", "text"), WRITTEN_AS_TEXT, ids=[str(b.get("type")) for b, _ in WRITTEN_AS_TEXT]
)
def test_block_is_written_as_text(block: dict[str, Any], text: str) -> None:
    assert blocks(block, role="assistant") == (TextBlock(text),)
    assert result([block]).blocks == (TextBlock(text),)


@pytest.mark.parametrize("block", [{"type": "fallback"}, {"type": "compaction", "content": None}])
def test_block_is_skipped(block: dict[str, Any]) -> None:
    assert blocks(block, role="assistant") == ()


def test_tool_changes_are_references_and_removals() -> None:
    tool = {"name": "fetch", "description": "Fetches.", "input_schema": {"type": "object"}}
    spec = ToolSpec("fetch", "Fetches.", {"type": "object"})
    assert blocks(
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "read"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "read"}},
        role="system",
    ) == (
        ToolReferenceBlock("read"),
        ToolReferenceBlock("fetch", None, spec),
        ToolRemovalBlock("read"),
    )


def test_unsupported_tool_changes_are_text() -> None:
    (found,) = blocks(
        {"type": "tool_addition", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}},
        role="system",
    )
    assert isinstance(found, TextBlock)
    assert "mcp_toolset_reference" in found.text


def test_deferred_tools_are_marked() -> None:
    tool = {"name": "fetch", "input_schema": {"type": "object"}, "defer_loading": True}
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [tool]}
    decoded = CODEC.decode(msgspec.json.encode(request), {})
    assert [spec.deferred for spec in decoded.tools] == [True]
