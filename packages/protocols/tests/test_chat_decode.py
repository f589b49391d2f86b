"""Messages of chat clients and their meaning. Each tolerated form has a test."""

from typing import Any

import msgspec
import pytest

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.chat import CODEC

Json = dict[str, Any]

HELLO: Json = {"role": "user", "content": "Hello."}


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    body = {"model": "m", "messages": [HELLO], **fields}
    return CODEC.decode(msgspec.json.encode(body), headers or {})


def turns(*messages: Json) -> tuple[Turn, ...]:
    return decode(messages=list(messages)).turns


def assistant(**fields: Any) -> tuple[Block, ...]:
    """Return the blocks of an assistant message."""
    return turns(HELLO, {"role": "assistant", **fields})[1].blocks


def call(id: str, name: str = "look", arguments: object = "{}") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


class TestMessages:
    def test_leading_system_messages_are_the_system(self) -> None:
        request = decode(messages=[{"role": "system", "content": "a"}, HELLO])
        assert request.system == (TextBlock("a"),)
        assert request.turns == (Turn("user", (TextBlock("Hello."),)),)

    def test_pi_sends_developer_role(self) -> None:
        request = decode(messages=[{"role": "developer", "content": "a"}, HELLO])
        assert request.system == (TextBlock("a"),)

    def test_several_leading_system_messages_stay_separate(self) -> None:
        lead = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}]
        assert decode(messages=[*lead, HELLO]).system == (TextBlock("a"), TextBlock("b"))

    def test_openclaw_appends_a_system_message_last(self) -> None:
        found = turns(HELLO, {"role": "system", "content": "Remember."})
        assert found[1] == Turn("system", (TextBlock("Remember."),))

    def test_later_developer_message_keeps_its_role(self) -> None:
        assert turns(HELLO, {"role": "developer", "content": "b"})[1].role == "developer"

    def test_content_may_be_null_or_missing_or_empty(self) -> None:
        empty: list[Json] = [{"content": None}, {}, {"content": ""}, {"content": []}]
        for message in empty:
            assert turns({"role": "user", **message}) == (Turn("user"),)

    def test_name_is_reported_because_the_model_does_not_see_it(self) -> None:
        assert decode(messages=[{**HELLO, "name": "Ada"}]).ignored == ("messages[].name",)

    def test_the_name_of_a_tool_is_known_from_its_call(self) -> None:
        result = {"role": "tool", "tool_call_id": "a", "name": "look", "content": "x"}
        assert decode(messages=[HELLO, result]).ignored == ()


def parts(*given: object) -> tuple[Block, ...]:
    return turns({"role": "user", "content": list(given)})[0].blocks


class TestParts:
    def test_text(self) -> None:
        assert parts({"type": "text", "text": "a"}, {"text": "b"}, "c") == (
            TextBlock("a"),
            TextBlock("b"),
            TextBlock("c"),
        )

    def test_cache_control_of_a_text_is_ignored(self) -> None:
        given = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
        assert parts(given) == (TextBlock("a"),)

    def test_image_by_data_url(self) -> None:
        url = {"url": "data:image/png;base64,AAAA", "detail": "high"}
        assert parts({"type": "image_url", "image_url": url}) == (ImageBlock("image/png", "AAAA"),)

    def test_image_by_url_as_a_bare_string(self) -> None:
        given = {"type": "image_url", "image_url": "https://x/y.png"}
        assert parts(given) == (ImageBlock(url="https://x/y.png"),)

    def test_audio_becomes_a_placeholder(self) -> None:
        given = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        assert parts(given) == (TextBlock("[audio omitted]"),)

    def test_file_by_data(self) -> None:
        file = {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
        assert parts({"type": "file", "file": file}) == (
            DocumentBlock("application/pdf", "a.pdf", "AAAA"),
        )

    def test_file_by_bare_base64(self) -> None:
        given = {"type": "file", "file": {"file_data": "AAAA"}}
        assert parts(given) == (DocumentBlock(data="AAAA"),)

    def test_uploaded_file_becomes_a_placeholder_with_its_name(self) -> None:
        given = {"type": "file", "file": {"file_id": "file-1"}}
        assert parts(given) == (TextBlock("[file file-1 omitted]"),)
        assert parts({"type": "file", "file": {"x": 1}}) == (TextBlock("[file omitted]"),)

    def test_refusal(self) -> None:
        assert parts({"type": "refusal", "refusal": "No."}) == (TextBlock("No."),)

    def test_unknown_part_becomes_a_placeholder_or_text(self) -> None:
        assert parts({"type": "video_url"}, {"type": "new", "text": "a"}) == (
            TextBlock("[video_url omitted]"),
            TextBlock("a"),
        )

    def test_image_without_a_url_becomes_a_placeholder(self) -> None:
        assert parts({"type": "image_url", "image_url": {"x": 1}}) == (
            TextBlock("[image omitted]"),
        )

    @pytest.mark.parametrize("role", ["user", "assistant", "tool"])
    def test_placeholders_are_reported(self, role: str) -> None:
        audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        uploaded = {"type": "file", "file": {"file_id": "file-1"}}
        for part in (audio, uploaded, {"type": "image_url", "image_url": {}}):
            message = {"role": role, "content": [{"type": "text", "text": "a"}, part]}
            assert decode(messages=[HELLO, message]).ignored == ("messages[].content[]",)
        image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
        assert decode(messages=[{"role": "user", "content": [image]}]).ignored == ()


class TestReasoning:
    def test_all_three_agents_replay_reasoning_content(self) -> None:
        assert assistant(content="a", reasoning_content="r") == (
            ReasoningBlock("r"),
            TextBlock("a"),
        )

    def test_openrouter_clients_replay_reasoning(self) -> None:
        assert assistant(content="", reasoning="r") == (ReasoningBlock("r"),)

    def test_both_reasoning_fields_are_one_reasoning(self) -> None:
        assert assistant(reasoning_content="r", reasoning="r") == (ReasoningBlock("r"),)

    def test_null_and_empty_reasoning_is_ignored(self) -> None:
        assert assistant(content="a", reasoning_content=None, reasoning="") == (TextBlock("a"),)

    def test_segments_precede_their_calls(self) -> None:
        found = assistant(
            content="t", reasoning_content=["r0", "r1", "r2"], tool_calls=[call("a"), call("b")]
        )
        assert found == (
            ReasoningBlock("r0"),
            TextBlock("t"),
            ToolCallBlock("a", "look", "{}"),
            ReasoningBlock("r1"),
            ToolCallBlock("b", "look", "{}"),
            ReasoningBlock("r2"),
        )

    def test_empty_segments_are_skipped(self) -> None:
        found = assistant(reasoning_content=["", "r1", None], tool_calls=[call("a"), call("b")])
        assert [block.type for block in found] == ["tool_call", "reasoning", "tool_call"]

    def test_segments_take_precedence_over_joined_text(self) -> None:
        found = assistant(
            reasoning_segments=["r0", "r1", ""],
            reasoning_content="r0r1",
            tool_calls=[call("a"), call("b")],
        )
        assert [block.type for block in found] == ["reasoning", "tool_call"] * 2

    def test_too_few_and_too_many_segments_lose_nothing(self) -> None:
        few = assistant(reasoning_content=["r0"], tool_calls=[call("a"), call("b")])
        assert [block.type for block in few] == ["reasoning", "tool_call", "tool_call"]
        many = assistant(content="t", reasoning_content=["r0", "r1"])
        assert many == (ReasoningBlock("r0"), ReasoningBlock("r1"), TextBlock("t"))

    def test_segments_may_be_objects(self) -> None:
        found = assistant(reasoning=[{"type": "text", "text": "r0"}, {"thinking": "r1"}])
        assert found == (ReasoningBlock("r0"), ReasoningBlock("r1"))

    def test_mistral_clients_send_reasoning_among_the_parts(self) -> None:
        thinking = {"type": "thinking", "thinking": "r"}
        assert assistant(content=[thinking, {"type": "text", "text": "a"}]) == (
            ReasoningBlock("r"),
            TextBlock("a"),
        )


class TestCalls:
    def test_arguments_are_not_rewritten(self) -> None:
        written = '{"b" :1,  "a":[ ]}'
        assert assistant(content=None, tool_calls=[call("a", arguments=written)]) == (
            ToolCallBlock("a", "look", written),
        )

    def test_arguments_may_be_an_object(self) -> None:
        found = assistant(tool_calls=[call("a", arguments={"path": "é"})])
        assert found == (ToolCallBlock("a", "look", '{"path": "é"}'),)

    def test_arguments_may_be_null(self) -> None:
        assert assistant(tool_calls=[call("a", arguments=None)]) == (
            ToolCallBlock("a", "look", "{}"),
        )

    def test_custom_call(self) -> None:
        custom = {"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** x"}}
        assert assistant(tool_calls=[custom]) == (
            ToolCallBlock("a", "patch", "*** x", custom=True),
        )

    def test_consecutive_results_are_one_turn(self) -> None:
        found = turns(
            HELLO,
            {"role": "assistant", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
            HELLO,
        )
        assert [turn.role for turn in found] == ["user", "assistant", "tool", "user"]
        assert found[2].blocks == (
            ToolResultBlock("b", (TextBlock("2"),)),
            ToolResultBlock("a", (TextBlock("1"),)),
        )

    def test_openclaw_rewrites_ids(self) -> None:
        found = turns(
            {"role": "assistant", "tool_calls": [call("call1")]},
            {"role": "tool", "tool_call_id": "call1", "content": ""},
        )
        assert found[1].blocks == (ToolResultBlock("call1"),)

    def test_result_may_contain_an_image(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
        found = turns({"role": "tool", "tool_call_id": "a", "content": [image]})
        assert found[0].blocks == (ToolResultBlock("a", (ImageBlock(url="https://x/y.png"),)),)

    def test_calls_and_results_without_ids_are_paired_by_order(self) -> None:
        nameless = [{"function": {"name": "look"}}, {"function": {"name": "look"}}]
        found = turns(
            {"role": "assistant", "tool_calls": nameless},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
            {"role": "tool", "content": "3"},
        )
        ids = [block.id for block in found[0].blocks if isinstance(block, ToolCallBlock)]
        result_ids = [b.call_id for b in found[1].blocks if isinstance(b, ToolResultBlock)]
        assert len(set(ids)) == 2
        assert result_ids == [*ids, ""]

    def test_legacy_function_call_and_its_result(self) -> None:
        found = turns(
            HELLO,
            {"role": "assistant", "function_call": {"name": "look", "arguments": "{}"}},
            {"role": "function", "name": "look", "content": "x"},
        )
        made, result = found[1].blocks[0], found[2].blocks[0]
        assert isinstance(made, ToolCallBlock)
        assert isinstance(result, ToolResultBlock)
        assert result.call_id == made.id


def test_conversation_with_every_message_form() -> None:
    """A complete agent conversation, as OpenCode replays it."""
    found = turns(
        HELLO,
        {"role": "assistant", "content": "", "reasoning_content": "r", "tool_calls": [call("a")]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "assistant", "content": "Done.", "refusal": None, "annotations": []},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    )
    assert [(turn.role, [block.type for block in turn.blocks]) for turn in found] == [
        ("user", ["text"]),
        ("assistant", ["reasoning", "tool_call"]),
        ("tool", ["tool_result"]),
        ("assistant", ["text"]),
        ("user", ["text"]),
    ]
