"""Requests of Messages clients and their meaning. A test is named after the client."""

import contextlib
from typing import Any

import msgspec
import pytest
from golden_transcripts import transcripts

from dovetail_model import (
    ClientFields,
    Hints,
    Identity,
    InvalidRequest,
    OutputFormat,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    ToolChoice,
    ToolSpec,
    Turn,
    Unsupported,
)
from dovetail_protocols.messages import CODEC, decode_count, encode_count

CACHE = {"type": "ephemeral"}
TOOL = {"name": "read", "description": "Read.", "input_schema": {"type": "object"}}


def body(**fields: Any) -> bytes:
    defaults: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    return msgspec.json.encode(defaults | fields)


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    return CODEC.decode(body(**fields), headers or {})


def turns(*messages: tuple[str, Any]) -> tuple[Turn, ...]:
    return decode(messages=[{"role": role, "content": c} for role, c in messages]).turns


# Messages


def test_string_and_list_content_are_the_same_turn() -> None:
    text = {"type": "text", "text": "Hi", "cache_control": CACHE}
    assert turns(("user", "Hi")) == turns(("user", [text])) == (Turn("user", (TextBlock("Hi"),)),)


def test_claude_code_sends_a_system_message_last() -> None:
    found = turns(("user", "Hi"), ("assistant", "Ho"), ("user", "?"), ("system", "A file changed."))
    assert [turn.role for turn in found] == ["user", "assistant", "user", "system"]
    assert found[-1].blocks == (TextBlock("A file changed."),)


def test_claude_code_sends_a_reminder_between_result_and_response() -> None:
    used = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
    found = turns(
        ("user", "Hi"),
        ("assistant", [used]),
        ("user", [given]),
        ("system", "Typed while the tool ran."),
        ("assistant", "Done."),
    )
    assert [turn.role for turn in found] == ["user", "assistant", "user", "system", "assistant"]


def test_claude_code_sends_consecutive_users() -> None:
    found = turns(("user", "a"), ("user", "b"), ("assistant", "c"))
    assert found == (
        Turn("user", (TextBlock("a"),)),
        Turn("user", (TextBlock("b"),)),
        Turn("assistant", (TextBlock("c"),)),
    )


@pytest.mark.parametrize("empty", ["", " ", "\n\n", [{"type": "text", "text": " \n"}], [], None])
def test_empty_text_yields_no_block(empty: object) -> None:
    assert turns(("user", empty)) == (Turn("user"),)
    assert decode(system=empty).system == ()


def test_javascript_client_sends_a_lone_surrogate() -> None:
    half = rb'{"model": "m", "messages": [{"role": "user", "content": "a \ud83d b \u00e9"}]}'
    assert CODEC.decode(half, {}).turns[0].blocks == (TextBlock("a ? b é"),)


# System


def test_claude_code_sends_three_system_blocks() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=sdk-cli;"
    found = decode(
        system=[
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are an agent.", "cache_control": CACHE},
            {"type": "text", "text": "Rules.", "cache_control": CACHE},
        ]
    ).system
    assert found == (TextBlock(billing), TextBlock("You are an agent."), TextBlock("Rules."))


def test_sdk_users_send_system_as_a_string() -> None:
    assert decode(system="Be kind.").system == (TextBlock("Be kind."),)


def test_cache_control_has_no_effect() -> None:
    def decode_with(**cache: Any) -> Request:
        text = {"type": "text", "text": "x", **cache}
        used = {"type": "tool_use", "id": "t", "name": "read", "input": {}, **cache}
        given = {"type": "tool_result", "tool_use_id": "t", "content": [text], **cache}
        odd = {"type": "next_year", "inner": text, **cache}
        request = decode(
            system=[text],
            tools=[TOOL | cache],
            messages=[
                {"role": "user", "content": [text, odd]},
                {"role": "assistant", "content": [used]},
                {"role": "user", "content": [given]},
            ],
            **cache,
        )
        return msgspec.structs.replace(request, client=ClientFields())

    assert decode_with(cache_control=CACHE) == decode_with()


# Tools


def test_claude_code_sends_tools_with_options_of_hosted_models() -> None:
    given = TOOL | {
        "type": "custom",
        "defer_loading": True,
        "eager_input_streaming": True,
        "strict": True,
        "input_examples": [{"path": "x"}],
        "cache_control": CACHE,
    }
    request = decode(tools=[given])
    schema = {"type": "object"}
    assert request.tools == (ToolSpec("read", "Read.", schema, strict=True, deferred=True),)
    assert request.ignored == ("tools[].input_examples",)


def test_claude_code_sends_server_tools_without_a_schema() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    request = decode(tools=[TOOL, search, {"type": "mcp_toolset", "mcp_server_name": "x"}])
    assert [tool.name for tool in request.tools] == ["read"]
    assert request.ignored == ("tools[1]", "tools[2]")


def test_claude_code_requires_a_server_tool_in_its_web_search_request() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    request = decode(tools=[search], tool_choice={"type": "tool", "name": "web_search"})
    assert request.tool_choice == ToolChoice("auto")


def test_tool_without_description_or_schema() -> None:
    assert decode(tools=[{"name": "now", "description": None}]).tools == (ToolSpec("now"),)


def test_choice_of_a_tool_is_reported_if_there_are_no_tools() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "read"}):
        request = decode(tools=[], tool_choice=choice)
        assert (request.tool_choice.mode, request.ignored) == ("auto", ("tool_choice",))
    assert decode(tools=[], tool_choice={"type": "none"}).ignored == ()


CHOICES = [
    (None, ToolChoice()),
    ({"type": "auto"}, ToolChoice("auto")),
    ({"type": "any"}, ToolChoice("required")),
    ({"type": "none"}, ToolChoice("none")),
    ({"type": "tool", "name": "read"}, ToolChoice("named", "read", parallel=False)),
    (
        {"type": "tool", "name": "read", "disable_parallel_tool_use": False},
        ToolChoice("named", "read"),
    ),
    ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice("auto", parallel=False)),
    (
        {"type": "tool", "name": "read", "disable_parallel_tool_use": True},
        ToolChoice("named", "read", parallel=False),
    ),
]


@pytest.mark.parametrize(("choice", "expected"), CHOICES)
def test_tool_choice(choice: object, expected: ToolChoice) -> None:
    assert decode(tools=[TOOL], tool_choice=choice).tool_choice == expected


# Thinking, sampling, format

THINKING: list[tuple[dict[str, Any], Thinking]] = [
    ({}, Thinking()),
    ({"thinking": None}, Thinking()),
    ({"thinking": {"type": "adaptive"}}, Thinking(enabled=True)),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, Thinking(enabled=True, budget=5)),
    ({"thinking": {"type": "disabled"}}, Thinking(enabled=False)),
    ({"output_config": {"effort": "high"}}, Thinking(effort="high")),
    ({"nvext": {"max_thinking_tokens": 7}}, Thinking(budget=7)),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 5}, "nvext": {"max_thinking_tokens": 7}},
        Thinking(enabled=True, budget=5),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), THINKING)
def test_thinking(fields: dict[str, Any], expected: Thinking) -> None:
    assert decode(**fields).thinking == expected


def test_sampling() -> None:
    request = decode(
        max_tokens=32000, temperature=1, top_p=0.9, top_k=40, stop_sequences=["a", "b"], stream=True
    )
    assert request.sampling == Sampling(32000, 1.0, 0.9, 40, stop=("a", "b"))
    assert request.stream
    assert decode().sampling == Sampling()
    assert not decode().stream


def test_some_clients_write_counts_as_floats() -> None:
    sampling = decode(max_tokens=1024.0, top_k=40.0).sampling
    assert (sampling.max_tokens, sampling.top_k) == (1024, 40)


def test_client_warms_the_cache_with_zero_tokens() -> None:
    assert decode(max_tokens=0).sampling.max_tokens == 0


def test_claude_code_requests_a_title_in_json() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    expected = OutputFormat("json_schema", {"type": "object"}, strict=True)
    assert decode(tools=[], output_config={"format": form}).output == expected
    assert decode(output_format=form).output == expected
    assert decode(output_config={"effort": "low"}).output == OutputFormat()
    assert decode(output_format={"type": "text"}).output == OutputFormat()


# Identity, hints, the rest


def user(user_id: str, headers: dict[str, str] | None = None) -> Identity:
    return decode(headers, metadata={"user_id": user_id}).identity


def test_claude_code_names_its_session_in_the_metadata() -> None:
    user_id = '{"device_id":"d","account_uuid":"","session_id":"s"}'
    assert user(user_id) == Identity(session="s")
    assert user(user_id, {"x-claude-code-session-id": "h"}) == Identity(session="h")


def test_old_claude_code_appends_its_session_to_the_user() -> None:
    assert user("user_0af3_account__session_1b-2c") == Identity(session="1b-2c")


@pytest.mark.parametrize(
    "user_id", ["someone", '{"device_id":"d"}', '{"session_id":4}', "[1]", "{"]
)
def test_sdk_users_set_a_user_id(user_id: str) -> None:
    assert user(user_id) == Identity(user=user_id)


def test_nvext_and_headers() -> None:
    request = decode(
        {"x-dynamo-request-priority": "2"},
        nvext={"agent_hints": {"osl": 9}, "dispatch": ["tools"], "mood": 1},
    )
    assert request.hints == Hints(priority=2, osl=9, dispatch=frozenset({"tools"}))
    assert request.ignored == ("nvext.mood",)


def test_unknown_fields_are_stored_and_reported() -> None:
    request = decode(
        of_tomorrow=[], speed="fast", thinking={"type": "adaptive", "display": "omitted"}
    )
    assert request.ignored == ("of_tomorrow", "speed", "thinking.display")
    assert request.echo == {"of_tomorrow": []}
    assert decode().echo is None


def test_claude_code_counts_without_system_or_max_tokens() -> None:
    request = decode_count(body(tools=[TOOL]), {})
    assert (request.system, request.sampling, len(request.tools)) == ((), Sampling(), 1)
    assert decode_count(body(messages=[]), {}).turns == ()
    assert encode_count(216) == b'{"input_tokens":216}'


def test_golden_requests_have_no_unknown_fields() -> None:
    for transcript in transcripts():
        if transcript.api == "messages":
            assert set(transcript.request().ignored) <= {"tools[2]"}


# Errors

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": 4}, "model"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "wizard"}]}, "messages[1].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": ["a", {"type": "text", "text": 5}]}]},
        "messages[0].content[1].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
        "messages[0].content[0]",
    ),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": [5]}],
                }
            ]
        },
        "messages[0].content[0].content[0]",
    ),
    ({"system": 5}, "system"),
    ({"system": [{"type": "text", "text": []}]}, "system[0].text"),
    ({"tools": [{"description": "nameless"}]}, "tools[0].name"),
    ({"tools": [TOOL, {"name": "x", "input_schema": []}]}, "tools[1].input_schema"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
    (
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": 5}]}},
        "context_management.edits[0].keep",
    ),
]


@pytest.mark.parametrize(("fields", "param"), FAULTS, ids=[param for _, param in FAULTS])
def test_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


@pytest.mark.parametrize(
    "thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}]
)
def test_sdk_tool_runner_requests_a_thread(thread: dict[str, Any]) -> None:
    """It sends the full history after the error code that it knows for unsupported threads."""
    with pytest.raises(Unsupported) as caught:
        decode(thread=thread)
    assert caught.value.param == "thread"
    response = CODEC.encode_error(caught.value)
    error = msgspec.json.decode(response.body)["error"]
    assert (response.status, error["type"]) == (400, "invalid_request_error")
    assert error["details"]["error_code"] == "thread_unsupported_request"
    assert decode(thread=None).ignored == ()


NO_REQUESTS = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff",
    b'{"model": "m", "messages": "\xff"}',
    b'{"model": NaN}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
]


@pytest.mark.parametrize("given", NO_REQUESTS, ids=range(len(NO_REQUESTS)))
def test_invalid_bodies_are_rejected(given: bytes) -> None:
    with pytest.raises(InvalidRequest):
        CODEC.decode(given, {})


@pytest.mark.parametrize("depth", [100, 300, 900, 3000])
def test_deep_nesting_never_crashes(depth: int) -> None:
    given = body(messages=[{"role": "user", "content": [{"type": "odd", "x": 1}]}])
    deep = b'"x":' + b"[" * depth + b"]" * depth
    with contextlib.suppress(InvalidRequest):
        CODEC.decode(given.replace(b'"x":1', deep), {})


def test_required_server_tool_that_is_skipped_is_not_required() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "a"}],
        "tools": [
            {"type": "web_search_20250305", "name": "web_search"},
            {"name": "read", "input_schema": {"type": "object"}},
        ],
        "tool_choice": {"type": "tool", "name": "web_search"},
    }
    assert CODEC.decode(msgspec.json.encode(body), {}).tool_choice.mode == "auto"
