"""Requests to somebody else's Responses: items in the model's order, tools, controls."""

from typing import Any

import msgspec
import pytest
from history_script import IMAGE, requests
from hypothesis import given

from dovetail_model import ReasoningBlock as Thought
from dovetail_model import (
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


def test_thoughts_calls_and_results_stand_in_the_models_order() -> None:
    turn = Turn("assistant", (Thought("t0"), CALLS[0], Thought("t1"), CALLS[1]))
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


def test_a_handle_goes_back_only_to_the_server_that_gave_it() -> None:
    turn = Turn("assistant", (Thought("", "sealed"), TextBlock("a")))
    assert items(turn, dialect=OURS)[0]["encrypted_content"] == "sealed"
    assert "encrypted_content" not in items(turn)[0]


def test_images_are_parts_in_messages_and_results() -> None:
    seen = ToolResultBlock("c0", (TextBlock("shot"), IMAGE))
    user, result = items(Turn("user", (IMAGE,)), Turn("tool", (seen,)))
    assert user["content"][0]["image_url"].startswith("data:image/png;base64,")
    assert [part["type"] for part in result["output"]] == ["input_text", "input_image"]
    assert (
        items(Turn("user", (IMAGE,)), dialect=UpstreamDialect(images=False))[0]["content"]
        == "[image]"
    )


def test_nothing_said_is_no_item() -> None:
    assert items(Turn("assistant", (TextBlock(""),)), Turn("user", ())) == []


def test_a_later_system_message_is_the_users() -> None:
    steering = (Turn("system", (TextBlock("a"),)), Turn("developer", (TextBlock("b"),)))
    assert [item["role"] for item in items(*steering)] == ["user", "user"]


def test_a_custom_tool_is_a_function_of_one_string_where_it_is_not_known() -> None:
    call = ToolCallBlock("c0", "patch", "a\nb", custom=True)
    turns = (Turn("assistant", (call,)), Turn("tool", RESULTS[:1]))
    tools = (ToolSpec("patch", custom=True, grammar="start: /x/"),)
    asked = build_responses_request(Request("m", turns=turns, tools=tools), "m").fields
    assert asked["tools"][0]["type"] == "function"
    assert [item["type"] for item in asked["input"]] == ["function_call", "function_call_output"]
    asked = build_responses_request(Request("m", turns=turns, tools=tools), "m", OURS).fields
    assert asked["tools"][0]["format"]["definition"] == "start: /x/"
    kinds = [item["type"] for item in asked["input"]]
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
def test_our_own_server_reads_back_what_was_asked(asked: Request) -> None:
    again = CODEC.decode(build_responses_request(asked, asked.model, OURS).body, {})
    assert again.turns == asked.turns
    assert again.system == asked.system
    assert again.sampling == asked.sampling
    assert again.output == asked.output
    assert again.thinking == msgspec.structs.replace(
        asked.thinking, effort=again.thinking.effort, enabled=again.thinking.enabled
    )
    assert again.thinking.enabled in (asked.thinking.enabled, None)
    assert again.tools == asked.tools
    assert again.tool_choice == asked.tool_choice
    assert again.ignored == ()
