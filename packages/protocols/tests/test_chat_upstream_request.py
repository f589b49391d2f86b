"""Requests to an upstream Chat Completions API: what they carry, and what they cannot."""

import json
from typing import Any

import msgspec
import pytest
from generated_requests import IMAGE, requests
from hypothesis import given

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolChoice,
    ToolResultBlock,
    ToolSpec,
    Turn,
)
from dovetail_protocols import UpstreamDialect, build_chat_request
from dovetail_protocols.chat import CODEC
from dovetail_protocols.chat.upstream_messages import split_after_calls

OURS = UpstreamDialect("reasoning_segments", custom_tools=True)
CALL0 = ToolCallBlock("c0", "look", '{"at": 0}')
CALL1 = ToolCallBlock("c1", "look", '{"at": 1}')
RESULT0 = ToolResultBlock("c0", (TextBlock("zero"),))
RESULT1 = ToolResultBlock("c1", (TextBlock("one"),))
INTERLEAVED = (ReasoningBlock("t0"), CALL0, ReasoningBlock("t1"), CALL1)


def request(*turns: Turn, **more: Any) -> Request:
    return Request("m", turns=(Turn("user", (TextBlock("Hi."),)), *turns), **more)


def assistant_turn(*blocks: Block, results: tuple[Block, ...] = (RESULT0, RESULT1)) -> Request:
    return request(Turn("assistant", blocks), Turn("tool", results))


def messages(request: Request, dialect: UpstreamDialect | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = build_chat_request(request, "m", dialect).fields["messages"][1:]
    return found


def call(id: str, at: int) -> dict[str, Any]:
    return {
        "id": id,
        "type": "function",
        "function": {"name": "look", "arguments": f'{{"at": {at}}}'},
    }


class TestInterleaving:
    def test_reasoning_stays_with_its_call_and_its_result(self) -> None:
        def assistant(reasoning: str, made: dict[str, Any]) -> dict[str, Any]:
            message = {"role": "assistant", "content": "", "reasoning_content": reasoning}
            return {**message, "tool_calls": [made]}

        assert messages(assistant_turn(*INTERLEAVED)) == [
            assistant("t0", call("c0", 0)),
            {"role": "tool", "content": "zero", "tool_call_id": "c0", "name": "look"},
            assistant("t1", call("c1", 1)),
            {"role": "tool", "content": "one", "tool_call_id": "c1", "name": "look"},
        ]

    def test_consecutive_calls_stay_together(self) -> None:
        roles = [m["role"] for m in messages(assistant_turn(ReasoningBlock("t"), CALL0, CALL1))]
        assert roles == ["assistant", "tool", "tool"]

    def test_results_in_another_order_find_their_calls(self) -> None:
        found = messages(assistant_turn(*INTERLEAVED, results=(RESULT1, RESULT0)))
        assert [m.get("tool_call_id") for m in found] == [None, "c0", None, "c1"]

    def test_turn_without_a_result_of_its_first_call_stays_one_message(self) -> None:
        built = build_chat_request(assistant_turn(*INTERLEAVED, results=(RESULT1,)), "m")
        message = built.fields["messages"][1]
        assert message["reasoning_content"] == "t0\nt1"
        assert [each["id"] for each in message["tool_calls"]] == ["c0", "c1"]
        assert built.dropped == ("interleaving_not_carried",)

    def test_segments_keep_the_turn_in_one_message(self) -> None:
        first, *rest = messages(assistant_turn(*INTERLEAVED), OURS)
        assert first["reasoning_segments"] == ["t0", "t1", ""]
        assert [m["role"] for m in rest] == ["tool", "tool"]


class TestReasoning:
    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    def test_reasoning_field_of_the_server(self, field: Any) -> None:
        request = assistant_turn(ReasoningBlock("t"), CALL0, results=(RESULT0,))
        assert messages(request, UpstreamDialect(field))[0][field] == "t"

    def test_server_without_reasoning_gets_none_and_the_loss_is_reported(self) -> None:
        built = build_chat_request(
            assistant_turn(ReasoningBlock("t"), CALL0), "m", UpstreamDialect(None)
        )
        assert built.dropped == ("reasoning_not_carried",)
        assert b'"t"' not in built.body

    def test_reasoning_alone_yields_no_message(self) -> None:
        lonely = request(Turn("assistant", (ReasoningBlock("t"),)))
        assert messages(lonely, UpstreamDialect(None)) == []


class TestServerRestrictions:
    def test_later_system_message_becomes_a_user_message(self) -> None:
        assert messages(request(Turn("system", (TextBlock("Mind."),)))) == [
            {"role": "user", "content": "Mind."}
        ]

    def test_result_without_its_call_becomes_a_user_message(self) -> None:
        assert messages(request(Turn("tool", (RESULT0,)))) == [{"role": "user", "content": "zero"}]

    @pytest.mark.parametrize("arguments", ['{"at": ', "[1]", "text"])
    def test_arguments_that_are_not_an_object_are_wrapped(self, arguments: str) -> None:
        broken = ToolCallBlock("c0", "look", arguments, complete=False)
        function = messages(assistant_turn(broken, results=(RESULT0,)))[0]["tool_calls"][0][
            "function"
        ]
        assert msgspec.json.decode(function["arguments"]) == {"input": arguments}

    def test_call_without_arguments_gets_an_empty_object(self) -> None:
        bare = messages(assistant_turn(ToolCallBlock("c0", "look", ""), results=(RESULT0,)))
        assert bare[0]["tool_calls"][0]["function"]["arguments"] == "{}"

    def test_schema_is_always_an_object(self) -> None:
        fields = build_chat_request(request(tools=(ToolSpec("go"),)), "m").fields
        schema = fields["tools"][0]["function"]["parameters"]
        assert schema == {"type": "object", "properties": {}}


class TestImages:
    def test_user_image_is_a_part(self) -> None:
        request = Request("m", turns=(Turn("user", (TextBlock("See"), IMAGE)),))
        assert build_chat_request(request, "m").fields["messages"][0]["content"] == [
            {"type": "text", "text": "See"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        ]

    def test_result_image_follows_all_results(self) -> None:
        seen = ToolResultBlock("c0", (TextBlock("shot"), IMAGE))
        found = messages(assistant_turn(CALL0, CALL1, results=(seen, RESULT1)))
        assert [m["role"] for m in found] == ["assistant", "tool", "tool", "user"]
        assert found[1]["content"] == "shot\n[image]"
        assert found[3]["content"][0]["type"] == "image_url"

    def test_image_by_url_and_document_text(self) -> None:
        blocks = (ImageBlock(url="http://a/b.png"), DocumentBlock(text="Inside."))
        request_ = Request("m", turns=(Turn("user", (*blocks, ReasoningBlock("stray"))),))
        image, text, _ = build_chat_request(request_, "m").fields["messages"][0]["content"]
        assert image["image_url"]["url"] == "http://a/b.png"
        assert text["text"] == "Inside."

    def test_server_without_images_gets_descriptions(self) -> None:
        dialect = UpstreamDialect(images=False)
        request = Request("m", turns=(Turn("user", (IMAGE, DocumentBlock(title="a.pdf"))),))
        built = build_chat_request(request, "m", dialect)
        described = "[image: image/png, 5 bytes; this model reads only text]"
        content = f"{described}\n[document: a.pdf]"
        assert built.fields["messages"] == [{"role": "user", "content": content}]
        assert built.dropped == ("images_replaced",)
        seen = ToolResultBlock("c0", (TextBlock("shot"), IMAGE))
        found = messages(assistant_turn(CALL0, results=(seen,)), dialect)
        assert [m["role"] for m in found] == ["assistant", "tool"]
        assert found[1]["content"] == f"shot\n{described}"
        plain = Request("m", turns=(Turn("user", (TextBlock("Hi."),)),))
        assert build_chat_request(plain, "m", dialect).dropped == ()


class TestTools:
    NAMESPACED = ToolSpec("find", namespace="docs", shown_as="docs__find")
    FREE = ToolSpec("patch", custom=True, grammar="start: /x/")

    def test_namespace_is_flattened_in_tools_calls_and_choice(self) -> None:
        request = assistant_turn(ToolCallBlock("c0", "find", "{}", "docs"), results=(RESULT0,))
        choice = ToolChoice("named", "docs__find")
        request = msgspec.structs.replace(request, tools=(self.NAMESPACED,), tool_choice=choice)
        fields = build_chat_request(request, "m").fields
        assert fields["tools"][0]["function"]["name"] == "docs__find"
        assert fields["tool_choice"]["function"]["name"] == "docs__find"
        assert fields["messages"][1]["tool_calls"][0]["function"]["name"] == "docs__find"

    def test_call_of_a_removed_tool_keeps_its_namespace(self) -> None:
        found = messages(
            assistant_turn(ToolCallBlock("c0", "find", "{}", "docs"), results=(RESULT0,))
        )
        assert found[0]["tool_calls"][0]["function"]["name"] == "docs__find"

    def test_custom_tool_becomes_a_function_with_one_string(self) -> None:
        free = ToolCallBlock("c0", "patch", "a\nb", custom=True)
        request_ = msgspec.structs.replace(
            assistant_turn(free, results=(RESULT0,)), tools=(self.FREE,)
        )
        fields = build_chat_request(request_, "m").fields
        assert fields["tools"][0]["function"]["parameters"]["required"] == ["input"]
        arguments = fields["messages"][1]["tool_calls"][0]["function"]["arguments"]
        assert msgspec.json.decode(arguments) == {"input": "a\nb"}

    def test_custom_tool_keeps_its_grammar_if_supported(self) -> None:
        fields = build_chat_request(request(tools=(self.FREE,)), "m", OURS).fields
        assert fields["tools"][0]["custom"]["format"]["grammar"]["definition"] == "start: /x/"


def test_unset_fields_are_not_sent() -> None:
    fields = build_chat_request(request(), "theirs").fields
    assert set(fields) == {"model", "messages", "stream", "stream_options"}
    assert fields["model"] == "theirs"


@pytest.mark.parametrize(
    ("thinking", "sent"),
    [
        (Thinking(enabled=True, effort="high"), {"reasoning_effort": "high"}),
        (
            Thinking(enabled=False),
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        (
            Thinking(enabled=True, template_kwargs={"clear_thinking": False}),
            {"chat_template_kwargs": {"clear_thinking": False}},
        ),
    ],
)
def test_thinking_controls(thinking: Thinking, sent: dict[str, Any]) -> None:
    fields = build_chat_request(request(thinking=thinking), "m").fields
    controls = ("reasoning_effort", "chat_template_kwargs")
    assert {name: fields[name] for name in controls if name in fields} == sent


def test_turns_written_as_text_have_no_structure() -> None:
    built = build_chat_request(
        assistant_turn(*INTERLEAVED), "m", write_turn=lambda turn: f"{len(turn.blocks)} blocks"
    )
    assert built.fields["messages"][1] == {"role": "assistant", "content": "4 blocks"}
    assert [m["role"] for m in built.fields["messages"][2:]] == ["tool", "tool"]


@given(requests())
def test_dovetail_decodes_the_same_request(request_: Request) -> None:
    """With Dovetail's own dialect reasoning stays before its call; text moves before all calls."""
    again = CODEC.decode(build_chat_request(request_, request_.model, OURS).body, {})
    assert [structure(turn) for turn in again.turns] == [structure(turn) for turn in request_.turns]
    for name in ("model", "system", "tools", "sampling", "thinking", "output", "stream"):
        assert getattr(again, name) == getattr(request_, name), name
    assert again.tool_choice == request_.tool_choice
    assert again.ignored == ()


@given(requests())
def test_reasoning_directly_precedes_its_calls_for_any_server(request_: Request) -> None:
    """The plain dialect splits turns into messages; the joined messages are the turn."""
    again = CODEC.decode(build_chat_request(request_, request_.model).body, {})
    expected = [
        structure(Turn(turn.role, piece), "\n")
        for turn in request_.turns
        for piece in (split_after_calls(turn.blocks) if turn.role == "assistant" else [turn.blocks])
    ]
    found = [structure(turn) for turn in again.turns]
    assert [one for one in found if one[0] == "assistant"] == [
        as_functions(one) for one in expected if one[0] == "assistant"
    ]
    assert results(again) == results(request_)


def structure(turn: Turn, joint: str = "") -> tuple[Any, ...]:
    """Return a turn as a chat carries it: reasoning and calls in order, and all text."""
    order: list[tuple[str, ...]] = []
    for block in turn.blocks:
        if isinstance(block, ToolCallBlock):
            order.append((block.id, block.name, block.arguments, str(block.custom)))
        elif isinstance(block, ToolResultBlock):
            order.append(
                (block.call_id, *(b.text for b in block.blocks if isinstance(b, TextBlock)))
            )
        elif isinstance(block, ReasoningBlock):
            order.append(("reasoning", block.text))
    if len(order) > 1:
        order = merged(order, joint)
    text = "\n".join(block.text for block in turn.blocks if isinstance(block, TextBlock))
    return turn.role, tuple(order), text


def merged(order: list[tuple[str, ...]], joint: str) -> list[tuple[str, ...]]:
    """Join reasoning with only text in between."""
    found: list[tuple[str, ...]] = []
    for one in order:
        if one[0] == "reasoning" and found and found[-1][0] == "reasoning":
            found[-1] = ("reasoning", found[-1][1] + joint + one[1])
        else:
            found.append(one)
    return found


def as_functions(turn: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return custom calls as shown to a server that does not support them."""
    role, order, text = turn
    shown = tuple(
        (id, name, json.dumps({"input": given[0]}, ensure_ascii=False), "False")
        if given[1:] == ["True"]
        else (id, name, *given)
        for id, name, *given in order
    )
    return role, shown, text


def results(request: Request) -> list[tuple[str, str]]:
    found = [b for turn in request.turns for b in turn.blocks if isinstance(b, ToolResultBlock)]
    return [
        (b.call_id, "".join(t.text for t in b.blocks if isinstance(t, TextBlock))) for b in found
    ]
