"""Requests to an upstream Responses API: items in the model's order, tools, controls."""

from typing import Any

import msgspec
import pytest
from generated_requests import IMAGE, requests
from hypothesis import given

from dovetail_model import (
    ReasoningBlock,
    Request,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_protocols import UpstreamDialect, build_responses_request
from dovetail_protocols.responses import CODEC

OURS = UpstreamDialect(custom_tools=True, seals=True)
CALLS = (ToolCallBlock("c0", "look", '{"at": 0}'), ToolCallBlock("c1", "look", '{"at": 1}'))
RESULTS = (ToolResultBlock("c0", (TextBlock("zero"),)), ToolResultBlock("c1", (TextBlock("one"),)))


def items(
    *turns: Turn, dialect: UpstreamDialect | None = None, **more: Any
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = build_responses_request(
        Request("m", turns=turns, **more), "m", dialect
    ).fields["input"]
    return found


def test_reasoning_calls_and_results_are_in_the_models_order() -> None:
    turn = Turn("assistant", (ReasoningBlock("t0"), CALLS[0], ReasoningBlock("t1"), CALLS[1]))
    assert items(turn, Turn("tool", RESULTS)) == [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "t0"}],
        },
        {"type": "function_call", "call_id": "c0", "name": "look", "arguments": '{"at": 0}'},
        {
            "type": "reasoning",
            "id": "rs_2",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "t1"}],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'},
        {"type": "function_call_output", "call_id": "c0", "output": "zero"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
    ]


def test_seal_is_sent_only_to_the_server_that_issued_it() -> None:
    turn = Turn("assistant", (ReasoningBlock("", "sealed"), TextBlock("a")))
    assert items(turn, dialect=OURS)[0]["encrypted_content"] == "sealed"
    assert "encrypted_content" not in items(turn)[0]


def test_images_are_parts_in_messages_and_results() -> None:
    seen = ToolResultBlock("c0", (TextBlock("shot"), IMAGE))
    user, result = items(Turn("user", (IMAGE,)), Turn("tool", (seen,)))
    assert user["content"][0]["image_url"].startswith("data:image/png;base64,")
    assert [part["type"] for part in result["output"]] == ["input_text", "input_image"]
    assert (
        items(Turn("user", (IMAGE,)), dialect=UpstreamDialect(images=False))[0]["content"]
        == "[image: image/png, 5 bytes; this model reads only text]"
    )


def test_empty_block_yields_no_item() -> None:
    assert items(Turn("assistant", (TextBlock(""),)), Turn("user", ())) == []


def test_later_system_message_becomes_a_user_message() -> None:
    steering = (Turn("system", (TextBlock("a"),)), Turn("developer", (TextBlock("b"),)))
    assert [item["role"] for item in items(*steering)] == ["user", "user"]


def test_custom_tool_becomes_a_function_if_not_supported() -> None:
    call = ToolCallBlock("c0", "patch", "a\nb", custom=True)
    turns = (Turn("assistant", (call,)), Turn("tool", RESULTS[:1]))
    tools = (ToolSpec("patch", custom=True, grammar="start: /x/"),)
    fields = build_responses_request(Request("m", turns=turns, tools=tools), "m").fields
    assert fields["tools"][0]["type"] == "function"
    assert [item["type"] for item in fields["input"]] == ["function_call", "function_call_output"]
    fields = build_responses_request(Request("m", turns=turns, tools=tools), "m", OURS).fields
    assert fields["tools"][0]["format"]["definition"] == "start: /x/"
    kinds = [item["type"] for item in fields["input"]]
    assert kinds == ["custom_tool_call", "custom_tool_call_output"]


@pytest.mark.parametrize(
    ("thinking", "reasoning"),
    [
        (Thinking(), None),
        (
            Thinking(enabled=True, effort="high", summary="auto"),
            {"effort": "high", "summary": "auto"},
        ),
        (Thinking(enabled=False), {"effort": "none"}),
    ],
)
def test_thinking_controls(thinking: Thinking, reasoning: object) -> None:
    fields = build_responses_request(Request("m", thinking=thinking), "m").fields
    assert fields.get("reasoning") == reasoning


@given(requests())
def test_dovetail_decodes_the_same_request(request: Request) -> None:
    again = CODEC.decode(build_responses_request(request, request.model, OURS).body, {})
    assert again.turns == request.turns
    assert again.system == request.system
    assert again.sampling == request.sampling
    assert again.output == request.output
    assert again.thinking == msgspec.structs.replace(
        request.thinking, effort=again.thinking.effort, enabled=again.thinking.enabled
    )
    assert again.thinking.enabled in (request.thinking.enabled, None)
    assert again.tools == request.tools
    assert again.tool_choice == request.tool_choice
    assert again.ignored == ()
