"""Requests of real clients, with one named test per tolerated form, and rejected requests."""

from typing import Any

import msgspec
import pytest

from dovetail_model import (
    DocumentBlock,
    DovetailError,
    Hints,
    HostedItemBlock,
    Identity,
    ImageBlock,
    InvalidRequest,
    OutputFormat,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
    Unsupported,
)
from dovetail_protocols.responses import CODEC, ResponsesEcho
from dovetail_protocols.responses.summary import pack_summary
from dovetail_protocols.summary_text import SUMMARY_INSTRUCTION, SUMMARY_PREFACE


def decode(headers: dict[str, str] | None = None, **body: Any) -> Request:
    return CODEC.decode(msgspec.json.encode({"model": "m", "input": [], **body}), headers or {})


def turns(*items: Any) -> tuple[Turn, ...]:
    return decode(input=list(items)).turns


def test_string_is_a_user_message() -> None:
    assert decode(input="hello").turns == (Turn("user", (TextBlock("hello"),)),)


MESSAGES: list[tuple[str, dict[str, Any], Turn]] = [
    ("codex_sends_the_base_prompt_as_a_developer_message",
     {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
     Turn("developer", (TextBlock("a"),))),
    ("opencode_leaves_out_the_type",
     {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
     Turn("user", (TextBlock("a"),))),
    ("content_is_a_string", {"role": "user", "content": "a"}, Turn("user", (TextBlock("a"),))),
    ("content_is_null", {"role": "assistant", "content": None}, Turn("assistant")),
    ("content_is_missing", {"role": "assistant"}, Turn("assistant")),
    ("content_is_empty", {"role": "user", "content": ""}, Turn("user")),
    ("a_system_message_stays_in_its_place",
     {"role": "system", "content": "a"}, Turn("system", (TextBlock("a"),))),
    ("codex_sends_ids_that_must_not_matter",
     {"type": "message", "role": "user", "id": "msg_1", "content": "a"},
     Turn("user", (TextBlock("a"),))),
    ("codex_sends_status_and_phase",
     {"type": "message", "role": "assistant", "status": "completed", "phase": "commentary",
      "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]},
     Turn("assistant", (TextBlock("a"),))),
    ("parts_are_plain_strings", {"role": "user", "content": ["a"]},
     Turn("user", (TextBlock("a"),))),
    ("a_part_has_no_type", {"role": "user", "content": [{"text": "a"}]},
     Turn("user", (TextBlock("a"),))),
    ("a_part_has_the_type_of_chat", {"role": "user", "content": [{"type": "text", "text": "a"}]},
     Turn("user", (TextBlock("a"),))),
    ("a_refusal_is_text", {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
     Turn("assistant", (TextBlock("no"),))),
    ("a_summary_text_in_a_message_is_text",
     {"role": "assistant", "content": [{"type": "summary_text", "text": "a"}]},
     Turn("assistant", (TextBlock("a"),))),
    ("an_image_is_data",
     {"role": "user", "content": [{"type": "input_image", "detail": "auto",
                                   "image_url": "data:image/png;base64,aGk="}]},
     Turn("user", (ImageBlock("image/png", "aGk="),))),
    ("an_image_is_a_url",
     {"role": "user", "content": [{"type": "input_image", "image_url": "https://a/b.png"}]},
     Turn("user", (ImageBlock(url="https://a/b.png"),))),
    ("an_image_is_in_the_form_of_chat",
     {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b"}}]},
     Turn("user", (ImageBlock(url="https://a/b"),))),
    ("a_file_is_data",
     {"role": "user", "content": [{"type": "input_file", "filename": "a.pdf",
                                   "file_data": "data:application/pdf;base64,aGk="}]},
     Turn("user", (DocumentBlock("application/pdf", "a.pdf", "aGk="),))),
    ("a_file_is_a_url",
     {"role": "user", "content": [{"type": "input_file", "file_url": "https://a/b.pdf"}]},
     Turn("user", (DocumentBlock(url="https://a/b.pdf"),))),
    ("agents_write_to_each_other",
     {"type": "agent_message", "author": "/root", "recipient": "/root/a",
      "content": [{"type": "input_text", "text": "go on"}]},
     Turn("user", (TextBlock("Message from /root:"), TextBlock("go on")))),
    ("a_codex_task_for_an_agent_is_declared_encrypted_but_plain",
     {"type": "agent_message", "author": "/root", "recipient": "/root/a",
      "content": [{"type": "input_text", "text": "Payload:\n"},
                  {"type": "encrypted_content", "encrypted_content": "Write the tests."}]},
     Turn("user", (TextBlock("Message from /root:"), TextBlock("Payload:\n"),
                   TextBlock("Write the tests.")))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "expected"), [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES]
)
def test_message(item: dict[str, Any], expected: Turn) -> None:
    assert turns(item) == (expected,)


REASONING_ITEMS: list[tuple[str, dict[str, Any], ReasoningBlock]] = [
    ("codex_replays_the_text_and_the_seal",
     {"id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "a"}],
      "encrypted_content": "s"}, ReasoningBlock("a", "s")),
    ("content_is_null_and_the_summary_stands_for_it",
     {"summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
      "content": None}, ReasoningBlock("a\n\nb")),
    ("opencode_keeps_the_seal_alone",
     {"summary": [], "encrypted_content": "s"}, ReasoningBlock("", "s")),
    ("the_seal_is_null", {"summary": [], "content": [{"type": "reasoning_text", "text": "a"}],
                          "encrypted_content": None}, ReasoningBlock("a")),
    ("the_text_takes_precedence_over_its_summary",
     {"summary": [{"type": "summary_text", "text": "short"}],
      "content": [{"type": "reasoning_text", "text": "long"}]}, ReasoningBlock("long")),
    ("the_summary_is_missing", {"content": "a"}, ReasoningBlock("a")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "expected"),
    [row[1:] for row in REASONING_ITEMS],
    ids=[row[0] for row in REASONING_ITEMS],
)
def test_reasoning(item: dict[str, Any], expected: ReasoningBlock) -> None:
    assert turns({"type": "reasoning", **item}) == (Turn("assistant", (expected,)),)


def call(name: str, call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": "{}", **more}


def result(call_id: str, output: Any, kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": output}


def test_codex_replays_two_reasoning_items_and_two_calls_before_their_results() -> None:
    r1, r2 = ({"type": "reasoning", "summary": [], "encrypted_content": seal} for seal in "ab")
    found = turns(
        {"role": "user", "content": "go"},
        r1, call("f", "c1"), r2, call("g", "c2"), result("c2", "two"), result("c1", "one"),
    )  # fmt: skip
    assert found == (
        Turn("user", (TextBlock("go"),)),
        Turn(
            "assistant",
            (
                ReasoningBlock("", "a"),
                ToolCallBlock("c1", "f", "{}"),
                ReasoningBlock("", "b"),
                ToolCallBlock("c2", "g", "{}"),
            ),
        ),
        Turn(
            "tool",
            (
                ToolResultBlock("c2", (TextBlock("two"),)),
                ToolResultBlock("c1", (TextBlock("one"),)),
            ),
        ),
    )


def test_text_between_calls_stays_between_them() -> None:
    found = turns(call("f", "c1"), {"role": "assistant", "content": "now"}, call("g", "c2"))
    kinds = [block.type for block in found[0].blocks]
    assert kinds == ["tool_call", "text", "tool_call"]


def test_steps_of_a_tool_loop_are_separate_turns() -> None:
    found = turns(call("f", "c1"), result("c1", "1"), call("f", "c2"), result("c2", "2"))
    assert [turn.role for turn in found] == ["assistant", "tool", "assistant", "tool"]


def test_two_messages_of_a_user_are_two_turns() -> None:
    assert len(turns({"role": "user", "content": "a"}, {"role": "user", "content": "b"})) == 2


CALLS: list[tuple[str, dict[str, Any], ToolCallBlock]] = [
    ("codex_names_the_namespace", call("search", "c", namespace="mcp__docs", id="fc_1"),
     ToolCallBlock("c", "search", "{}", "mcp__docs")),
    ("arguments_are_kept_word_for_word", call("f", "c", arguments='{ "a":1.50 }'),
     ToolCallBlock("c", "f", '{ "a":1.50 }')),
    ("arguments_are_an_object", call("f", "c", arguments={"a": 1}),
     ToolCallBlock("c", "f", '{"a":1}')),
    ("arguments_are_null", call("f", "c", arguments=None), ToolCallBlock("c", "f", "{}")),
    ("a_truncated_call_is_replayed", call("f", "c", arguments='{"a', status="incomplete"),
     ToolCallBlock("c", "f", '{"a', complete=False)),
    ("codex_patches_with_raw_text",
     {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "apply_patch",
      "input": "*** Begin\n", "status": "completed"},
     ToolCallBlock("c", "apply_patch", "*** Begin\n", custom=True)),
    ("a_custom_call_in_a_namespace",
     {"type": "custom_tool_call", "call_id": "c", "name": "p", "namespace": "n", "input": "x"},
     ToolCallBlock("c", "p", "x", "n", custom=True)),
    ("a_search_for_tools",
     {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"q": "x"}},
     ToolCallBlock("c", "tool_search", '{"q":"x"}')),
    ("older_codex_runs_a_local_shell",
     {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed",
      "action": {"type": "exec", "command": ["ls"], "env": {}}},
     ToolCallBlock("c", "local_shell", '{"type":"exec","command":["ls"],"env":{}}')),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "expected"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS]
)
def test_call(item: dict[str, Any], expected: ToolCallBlock) -> None:
    assert turns(item) == (Turn("assistant", (expected,)),)


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
RESULTS: list[tuple[str, dict[str, Any], ToolResultBlock]] = [
    ("text", result("c", "done"), ToolResultBlock("c", (TextBlock("done"),))),
    ("codex_sends_parts_with_images", result("c", [{"type": "input_text", "text": "a"}, IMAGE]),
     ToolResultBlock("c", (TextBlock("a"), ImageBlock("image/png", "aGk=")))),
    ("of_a_custom_tool", result("c", "ok", "custom_tool_call_output"),
     ToolResultBlock("c", (TextBlock("ok"),))),
    ("of_a_custom_tool_in_parts",
     result("c", [{"type": "input_text", "text": "a"}], "custom_tool_call_output"),
     ToolResultBlock("c", (TextBlock("a"),))),
    ("nothing", result("c", None), ToolResultBlock("c")),
    ("no_parts", result("c", []), ToolResultBlock("c")),
    ("any_other_object", result("c", {"exit": 0}),
     ToolResultBlock("c", (TextBlock('{"exit":0}'),))),
    ("a_list_that_is_not_parts", result("c", [{"stdout": "x"}], "shell_call_output"),
     ToolResultBlock("c", (TextBlock('[{"stdout":"x"}]'),))),
    ("of_a_local_shell", {"type": "local_shell_call_output", "id": "c", "output": "x"},
     ToolResultBlock("c", (TextBlock("x"),))),
    ("a_patch_that_failed",
     {"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"},
     ToolResultBlock("c", (TextBlock("no"),), True)),
    ("a_screenshot",
     result("c", {"type": "computer_screenshot", "image_url": "https://a/b"},
            "computer_call_output"),
     ToolResultBlock("c", (ImageBlock(url="https://a/b"),))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("item", "expected"), [row[1:] for row in RESULTS], ids=[row[0] for row in RESULTS]
)
def test_result(item: dict[str, Any], expected: ToolResultBlock) -> None:
    assert turns(item) == (Turn("tool", (expected,)),)


def test_call_that_another_server_ran_is_a_call_and_its_result() -> None:
    found = turns(
        {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "read",
         "arguments": "{}", "output": "text"},
        {"type": "mcp_call", "id": "mcp_2", "server_label": "docs", "name": "read",
         "arguments": "{}", "error": {"message": "gone"}},
    )  # fmt: skip
    assert [turn.role for turn in found] == ["assistant", "tool", "assistant", "tool"]
    assert found[0].blocks == (ToolCallBlock("mcp_1", "read", "{}", "docs"),)
    assert found[1].blocks == (ToolResultBlock("mcp_1", (TextBlock("text"),)),)
    assert found[3].blocks == (
        ToolResultBlock("mcp_2", (TextBlock('{"message":"gone"}'),), is_error=True),
    )


def test_work_of_another_server_is_written_as_text() -> None:
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": {"type": "search", "query": "dovetail"}}  # fmt: skip
    text = '[web_search_call {"action":{"type":"search","query":"dovetail"}}]'
    assert turns(item) == (Turn("assistant", (HostedItemBlock(text, item=item),)),)


def test_trigger_requests_a_summary_and_no_calls() -> None:
    trigger = {"type": "compaction_trigger"}
    tool = {"type": "function", "name": "f"}
    request = decode(input=[{"role": "user", "content": "a"}, trigger], tools=[tool])
    assert request.turns[-1] == Turn("user", (TextBlock(SUMMARY_INSTRUCTION),))
    assert request.tool_choice.mode == "none"
    assert [spec.name for spec in request.tools] == ["f"]
    assert request.identity.compaction


def test_earlier_trigger_requests_nothing() -> None:
    given = {"type": "compaction", "id": "cmp_1", "encrypted_content": pack_summary("Été.")}
    request = decode(
        input=[{"type": "compaction_trigger"}, given, {"role": "user", "content": "a"}]
    )
    assert [turn.role for turn in request.turns] == ["user"] * 3
    assert request.tool_choice.mode == "auto"
    assert not request.identity.compaction
    assert isinstance(request.echo, ResponsesEcho)
    assert not request.echo.compacts


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
def test_own_compaction_item_decodes_to_the_summary(kind: str) -> None:
    item = {"type": kind, "id": "cmp_1", "encrypted_content": pack_summary("Été.")}
    assert turns(item) == (Turn("user", (TextBlock(SUMMARY_PREFACE + "Été."),)),)


IGNORED: list[tuple[str, dict[str, Any]]] = [
    ("compaction_of_another_server", {"type": "compaction", "encrypted_content": "gAAA"}),
    ("a_damaged_compaction", {"type": "compaction", "encrypted_content": "dovetail.summary.é"}),
    ("a_compaction_without_content", {"type": "compaction"}),
    ("item_reference", {"type": "item_reference", "id": "msg_1"}),
    ("item_reference_without_type", {"id": "msg_1"}),
    ("item_reference_with_null_type", {"type": None, "id": "msg_1"}),
    ("mcp_list_tools", {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}),
    ("an_unknown_item", {"type": "dream", "about": "sheep"}),
]


@pytest.mark.parametrize("item", [row[1] for row in IGNORED], ids=[row[0] for row in IGNORED])
def test_dropped_and_reported(item: dict[str, Any]) -> None:
    request = decode(input=[{"role": "user", "content": "a"}, item])
    assert request.turns == (Turn("user", (TextBlock("a"),)),)
    assert request.ignored == ("input[1]",)


def test_unsupported_part_is_reported_by_its_path() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "file_id": "file-2"},
        {"type": "encrypted_content", "encrypted_content": "x"},
    ]
    request = decode(input=[{"role": "user", "content": parts}])
    assert request.turns == (Turn("user", (TextBlock("a"),)),)
    assert request.ignored == tuple(f"input[0].content[{at}]" for at in (1, 2, 3))


def test_instructions_are_the_system_prompt_and_developer_messages_are_not() -> None:
    request = decode(instructions="Be brief.", input=[{"role": "developer", "content": "b"}])
    assert request.system == (TextBlock("Be brief."),)
    assert request.turns == (Turn("developer", (TextBlock("b"),)),)


def test_instructions_may_be_items() -> None:
    request = decode(instructions=[{"role": "developer", "content": "a"}], input="x")
    assert request.system == (TextBlock("a"),)


def test_sampling() -> None:
    assert decode().sampling == Sampling()
    request = decode(
        max_output_tokens=99, temperature=0.5, top_p=0.9, top_logprobs=3, stop="end", seed=7,
        top_k=20, min_p=0.1, presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1,
    )  # fmt: skip
    assert request.sampling == Sampling(
        99, 0.5, 0.9, 20, 0.1, 7, 1, -1, 1.1, stop=("end",), logprobs=3
    )
    assert decode(include=["message.output_text.logprobs"]).sampling.logprobs == 0
    assert decode(top_logprobs=0).sampling.logprobs is None


THINKING: list[tuple[str, dict[str, Any], Thinking]] = [
    ("codex_sends_it_empty", {"reasoning": {}}, Thinking()),
    ("null", {"reasoning": None}, Thinking()),
    ("nothing_is_said", {}, Thinking()),
    ("effort", {"reasoning": {"effort": "high", "summary": "auto"}},
     Thinking(True, "high", summary="auto")),
    ("effort_none_turns_it_off", {"reasoning": {"effort": "none"}}, Thinking(False, "none")),
    ("summary_none_is_no_summary", {"reasoning": {"summary": "none"}}, Thinking()),
    ("the_old_name_of_summary", {"reasoning": {"generate_summary": "concise"}},
     Thinking(summary="concise")),
    ("all_turns_are_kept", {"reasoning": {"context": "all_turns"}}, Thinking(keep="all")),
    ("a_budget", {"nvext": {"max_thinking_tokens": 50}}, Thinking(budget=50)),
    ("the_templates_own_switch", {"chat_template_kwargs": {"enable_thinking": False}},
     Thinking(False, template_kwargs={"enable_thinking": False})),
    ("the_templates_switch_takes_precedence_over_effort",
     {"chat_template_kwargs": {"thinking": False}, "reasoning": {"effort": "low"}},
     Thinking(False, "low", template_kwargs={"thinking": False})),
    ("the_templates_mode", {"chat_template_kwargs": {"thinking_mode": "enabled"}},
     Thinking(True, template_kwargs={"thinking_mode": "enabled"})),
    ("the_templates_effort", {"chat_template_kwargs": {"reasoning_effort": "low"}},
     Thinking(True, "low", template_kwargs={"reasoning_effort": "low"})),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "expected"), [row[1:] for row in THINKING], ids=[row[0] for row in THINKING]
)
def test_thinking(body: dict[str, Any], expected: Thinking) -> None:
    assert decode(**body).thinking == expected


FORMATS: list[tuple[Any, OutputFormat]] = [
    (None, OutputFormat()),
    ({}, OutputFormat()),
    ({"verbosity": "low"}, OutputFormat()),
    ({"format": None}, OutputFormat()),
    ({"format": {"type": "text"}}, OutputFormat()),
    ({"format": {"type": "json_object"}}, OutputFormat("json_object")),
    (
        {"format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True}},
        OutputFormat("json_schema", {"a": 1}, "n", True),
    ),
]


@pytest.mark.parametrize(("text", "expected"), FORMATS)
def test_output_format(text: Any, expected: OutputFormat) -> None:
    assert decode(text=text).output == expected


def test_identity() -> None:
    assert decode(prompt_cache_key="p", user="u").identity == Identity(session="p", user="u")
    assert decode(safety_identifier="s", user="u").identity.user == "s"
    headers = {"thread-id": "t"}
    assert decode(headers, prompt_cache_key="p").identity.session == "t"


def test_codex_repeats_its_headers_in_client_metadata() -> None:
    metadata = {"x-codex-parent-thread-id": "p", "x-openai-subagent": "review", "n": 3}
    found = decode({"thread-id": "t"}, client_metadata=metadata).identity
    assert found == Identity(session="t", parent="p", agent="review")


def test_hints() -> None:
    request = decode(nvext={"agent_hints": {"priority": 2}, "dispatch": ["tools"], "odd": 1})
    assert request.hints == Hints(priority=2, dispatch=frozenset({"tools"}))
    assert request.ignored == ("nvext.odd",)


def test_unknown_fields_are_reported_and_ignored() -> None:
    assert decode(moderation={}, generate=False).ignored == ("moderation", "generate")


def test_echo_has_the_fields_for_the_application() -> None:
    echo = decode(previous_response_id="resp_1", store=False).echo
    assert isinstance(echo, ResponsesEcho)
    assert (echo.previous_response_id, echo.store, echo.compacts) == ("resp_1", False, False)
    fresh = decode(input="x").echo
    assert isinstance(fresh, ResponsesEcho)
    assert fresh.store


def test_stored_conversation_may_continue_without_input() -> None:
    assert CODEC.decode(b'{"model": "m", "previous_response_id": "r"}', {}).turns == ()


REFUSED: list[tuple[str, dict[str, Any], type[DovetailError], str]] = [
    ("background", {"background": True, "store": False}, InvalidRequest, "background"),
    ("prompt_template", {"prompt": {"id": "pmpt_1"}}, Unsupported, "prompt"),
    ("conversation", {"conversation": {"id": ""}}, InvalidRequest, "conversation"),
    ("no_model", {"model": ""}, InvalidRequest, "model"),
    ("no_input", {"input": None}, InvalidRequest, "input"),
    ("input_is_a_number", {"input": 3}, InvalidRequest, "input"),
    ("an_item_is_a_string", {"input": ["a"]}, InvalidRequest, "input[0]"),
    ("an_item_is_empty", {"input": [{}]}, InvalidRequest, "input[0]"),
    ("no_such_role", {"input": [{"role": "king"}]}, InvalidRequest, "input[0].role"),
    ("content_is_a_number",
     {"input": [{"role": "user", "content": 3}]}, InvalidRequest, "input[0].content"),
    ("text_is_a_number", {"input": [{"role": "user", "content": [{"text": 3}]}]},
     InvalidRequest, "input[0].content[0].text"),
    ("a_call_without_name", {"input": [{"type": "function_call"}]},
     InvalidRequest, "input[0].name"),
    ("no_tokens", {"max_output_tokens": 0}, InvalidRequest, "max_output_tokens"),
    ("a_negative_temperature", {"temperature": -1}, InvalidRequest, "temperature"),
    ("no_penalty", {"repetition_penalty": 0}, InvalidRequest, "repetition_penalty"),
    ("no_schema", {"text": {"format": {"type": "json_schema"}}},
     InvalidRequest, "text.format.schema"),
    ("no_such_format", {"text": {"format": {"type": "xml"}}}, InvalidRequest, "text.format.type"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "kind", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_rejected(body: dict[str, Any], kind: type[DovetailError], param: str) -> None:
    with pytest.raises(kind) as caught:
        decode(**body).client.reject_unsupported()
    assert caught.value.param == param


@pytest.mark.parametrize("background", [True, False, None])
def test_background_is_passed_to_the_application(background: bool | None) -> None:
    echo = decode(background=background, input="x").echo
    assert isinstance(echo, ResponsesEcho)
    assert echo.background is (background is True)
    assert msgspec.json.decode(echo.fields)["background"] is (background is True)
