"""Requests and blocks: order and defaults."""

import msgspec

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

BLOCKS: tuple[Block, ...] = (
    ReasoningBlock("hm", seal="s"),
    ToolCallBlock("1", "f", "{}"),
    ReasoningBlock("so"),
    ToolCallBlock("2", "g", "*** patch", custom=True, namespace="n"),
    TextBlock("ok"),
    ToolResultBlock("1", (TextBlock("r"), ImageBlock("image/png", data="aa")), is_error=True),
    DocumentBlock("application/pdf", title="t"),
)


def test_turn_round_trips_in_order() -> None:
    turn = Turn("assistant", BLOCKS)
    again = msgspec.json.decode(msgspec.json.encode(turn), type=Turn)
    assert again == turn
    assert [block.type for block in again.blocks] == [
        "reasoning",
        "tool_call",
        "reasoning",
        "tool_call",
        "text",
        "tool_result",
        "document",
    ]


def test_unset_fields_have_neutral_defaults() -> None:
    request = Request("some-org/some-model")
    assert request.thinking.enabled is None
    assert request.sampling.temperature is None
    assert request.tool_choice.mode == "auto"
    assert not request.turns
    assert not request.tools


def test_flattened_tool_has_a_separate_model_name() -> None:
    tool = ToolSpec("search", namespace="mcp", shown_as="mcp__search")
    assert tool.model_name == "mcp__search"
    assert ToolSpec("search").model_name == "search"
