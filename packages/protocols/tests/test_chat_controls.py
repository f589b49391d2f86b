"""Fields of chat requests other than messages: tools, sampling, thinking, formats, identity."""

from typing import Any

import msgspec
import pytest

from dovetail_model import (
    Hints,
    InvalidRequest,
    OutputFormat,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    ToolChoice,
    ToolSpec,
    Turn,
)
from dovetail_protocols.chat import CODEC

Json = dict[str, Any]

HELLO: Json = {"role": "user", "content": "Hello."}
FUNCTION: Json = {"name": "look", "description": "Look.", "parameters": {"type": "object"}}
LOOK: Json = {"type": "function", "function": FUNCTION}
LOOK_SPEC = ToolSpec("look", "Look.", {"type": "object"})


def decode(headers: dict[str, str] | None = None, **fields: Any) -> Request:
    body = {"model": "m", "messages": [HELLO], **fields}
    return CODEC.decode(msgspec.json.encode(body), headers or {})


class TestTools:
    def test_function(self) -> None:
        assert decode(tools=[LOOK]).tools == (LOOK_SPEC,)

    def test_pi_sends_strict_false(self) -> None:
        tool = {"type": "function", "function": {**FUNCTION, "strict": False}}
        assert decode(tools=[tool]).tools == (LOOK_SPEC,)

    def test_strict(self) -> None:
        tool = {"type": "function", "function": {**FUNCTION, "strict": True}}
        assert decode(tools=[tool]).tools[0].strict

    def test_parameters_and_description_may_be_missing_or_null(self) -> None:
        for function in ({}, {"description": None, "parameters": None}):
            tool = {"type": "function", "function": {"name": "look", **function}}
            assert decode(tools=[tool]).tools == (ToolSpec("look"),)

    def test_responses_clients_omit_the_function_object(self) -> None:
        assert decode(tools=[{"type": "function", **FUNCTION}]).tools == (LOOK_SPEC,)

    def test_custom_tool_with_a_grammar(self) -> None:
        grammar = {"syntax": "lark", "definition": "start: x"}
        custom = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
        assert decode(tools=[{"type": "custom", "custom": custom}]).tools == (
            ToolSpec("patch", custom=True, grammar="start: x"),
        )

    def test_custom_tool_with_a_regular_expression(self) -> None:
        grammar = {"syntax": "regex", "definition": "a/b"}
        custom = {"name": "patch", "format": {"type": "grammar", "grammar": grammar}}
        tools = decode(tools=[{"type": "custom", "custom": custom}]).tools
        assert tools[0].grammar == r"start: /a\/b/"

    def test_custom_tool_with_free_text(self) -> None:
        custom = {"name": "patch", "format": {"type": "text"}}
        assert decode(tools=[{"type": "custom", "custom": custom}]).tools[0].grammar is None

    def test_tool_of_unknown_type_is_skipped_and_reported(self) -> None:
        request = decode(tools=[{"type": "web_search"}, LOOK])
        assert request.tools == (LOOK_SPEC,)
        assert request.ignored == ("tools[0]",)

    def test_legacy_functions(self) -> None:
        request = decode(functions=[FUNCTION], function_call={"name": "look"})
        assert request.tools == (LOOK_SPEC,)
        assert request.tool_choice == ToolChoice("named", "look", parallel=False)


PATCH = {"type": "custom", "custom": {"name": "patch"}}
ALLOWED = {"mode": "auto", "tools": [{"type": "custom", "custom": {"name": "patch"}}]}
CHOICES: list[tuple[object, ToolChoice]] = [
    (None, ToolChoice()),
    ("auto", ToolChoice()),
    ("none", ToolChoice("none")),
    ("required", ToolChoice("required")),
    ("any", ToolChoice("required")),
    ({"type": "none"}, ToolChoice("none")),
    (
        {"type": "function", "function": {"name": "look"}},
        ToolChoice("named", "look", parallel=False),
    ),
    ({"type": "function", "name": "look"}, ToolChoice("named", "look", parallel=False)),
    ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("named", "patch", parallel=False)),
    (
        {"type": "allowed_tools", "allowed_tools": ALLOWED},
        ToolChoice(allowed=frozenset({"patch"})),
    ),
]


@pytest.mark.parametrize(("given", "choice"), CHOICES, ids=str)
def test_tool_choice(given: object, choice: ToolChoice) -> None:
    assert decode(tools=[LOOK, PATCH], tool_choice=given).tool_choice == choice


def test_allowed_tools_do_not_change_the_offered_tools() -> None:
    tool_choice = {"type": "allowed_tools", "allowed_tools": {**ALLOWED, "mode": "required"}}
    request = decode(tools=[LOOK, PATCH], tool_choice=tool_choice)
    assert [tool.name for tool in request.tools] == ["look", "patch"]
    assert request.tool_choice == ToolChoice("required", allowed=frozenset({"patch"}))


def test_allowed_tools_that_do_not_exist_are_reported() -> None:
    allowed = [{"type": "function", "function": {"name": name}} for name in ("look", "x")]
    nested = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed}}
    assert decode(tools=[LOOK], tool_choice=nested).ignored == (
        "tool_choice.allowed_tools.tools[1]",
    )
    flat = {"type": "allowed_tools", "tools": [{"type": "function", "name": "x"}]}
    assert decode(tool_choice=flat).ignored == ("tool_choice.tools[0]",)


def test_parallel_tool_calls() -> None:
    assert not decode(tools=[LOOK], parallel_tool_calls=False).tool_choice.parallel
    assert decode(tools=[LOOK], parallel_tool_calls=None).tool_choice.parallel


SAMPLING: list[tuple[Json, Sampling]] = [
    ({"max_tokens": 9}, Sampling(max_tokens=9)),
    ({"max_completion_tokens": 8}, Sampling(max_tokens=8)),
    ({"max_tokens": 9, "max_completion_tokens": 8}, Sampling(max_tokens=8)),
    ({"max_tokens": -1}, Sampling()),
    ({"temperature": 1, "top_p": 0.5, "seed": 3}, Sampling(temperature=1.0, top_p=0.5, seed=3)),
    ({"top_k": 5, "min_p": 0.1}, Sampling(top_k=5, min_p=0.1)),
    ({"presence_penalty": -1}, Sampling(presence_penalty=-1.0)),
    ({"frequency_penalty": 1}, Sampling(frequency_penalty=1.0)),
    ({"repetition_penalty": 1.1}, Sampling(repetition_penalty=1.1)),
    ({"stop": "x"}, Sampling(stop=("x",))),
    ({"stop": ["x", "", "y"]}, Sampling(stop=("x", "y"))),
    ({"stop": None, "temperature": None, "n": None}, Sampling()),
    ({"logprobs": True}, Sampling(logprobs=0)),
    ({"logprobs": True, "top_logprobs": 4}, Sampling(logprobs=4)),
    ({"logprobs": False, "top_logprobs": 4}, Sampling()),
    ({"top_logprobs": 4}, Sampling(logprobs=4)),
    ({"n": 2}, Sampling(n=2)),
]


@pytest.mark.parametrize(("fields", "sampling"), SAMPLING, ids=str)
def test_sampling(fields: Json, sampling: Sampling) -> None:
    assert decode(**fields).sampling == sampling


KWARGS: list[Json] = [
    {"enable_thinking": False},
    {"thinking": True},
    {"thinking_mode": "disabled"},
    {"reasoning_effort": "high"},
    {"clear_thinking": False},
]
THINKING: list[tuple[Json, Thinking]] = [
    ({}, Thinking()),
    ({"reasoning_effort": "high"}, Thinking(True, "high")),
    ({"reasoning_effort": "none"}, Thinking(False, "none")),
    ({"reasoning": {"effort": "low"}}, Thinking(True, "low")),
    ({"reasoning": {"enabled": True}}, Thinking(True)),
    ({"reasoning": {"enabled": False, "effort": "high"}}, Thinking(False, "high")),
    ({"reasoning": {"max_tokens": 50}}, Thinking(budget=50)),
    ({"reasoning": {}}, Thinking()),
    ({"reasoning": False}, Thinking(False)),
    ({"thinking": {"type": "disabled"}}, Thinking(False)),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, Thinking(True, budget=9)),
    ({"thinking": {"type": "adaptive"}}, Thinking(True)),
    ({"enable_thinking": False}, Thinking(False)),
    ({"enable_thinking": True, "thinking_budget": 7}, Thinking(True, budget=7)),
    ({"thinking_token_budget": 7}, Thinking(budget=7)),
    ({"nvext": {"max_thinking_tokens": 6}}, Thinking(budget=6)),
    ({"chat_template_kwargs": KWARGS[0]}, Thinking(False, template_kwargs=KWARGS[0])),
    ({"chat_template_args": KWARGS[1]}, Thinking(True, template_kwargs=KWARGS[1])),
    ({"chat_template_kwargs": KWARGS[2]}, Thinking(False, template_kwargs=KWARGS[2])),
    ({"chat_template_kwargs": KWARGS[3]}, Thinking(True, "high", template_kwargs=KWARGS[3])),
    ({"chat_template_kwargs": KWARGS[4]}, Thinking(template_kwargs=KWARGS[4])),
    (
        {"reasoning_effort": "high", "chat_template_kwargs": KWARGS[0]},
        Thinking(False, "high", template_kwargs=KWARGS[0]),
    ),
]


@pytest.mark.parametrize(("fields", "thinking"), THINKING, ids=str)
def test_thinking(fields: Json, thinking: Thinking) -> None:
    assert decode(**fields).thinking == thinking


def test_opencode_requests_preserved_reasoning_of_glm() -> None:
    thinking = {"type": "enabled", "clear_thinking": False}
    assert decode(thinking=thinking).thinking == Thinking(True, keep="all")


SCHEMA: Json = {"type": "object"}
FORMATS: list[tuple[Json | None, OutputFormat]] = [
    (None, OutputFormat()),
    ({"type": "text"}, OutputFormat()),
    ({"type": "json_object"}, OutputFormat("json_object")),
    (
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}},
        OutputFormat("json_schema", SCHEMA, "a", True),
    ),
    ({"type": "json_schema", "json_schema": {"name": "a"}}, OutputFormat("json_schema", {}, "a")),
    ({"type": "json_object", "schema": SCHEMA}, OutputFormat("json_schema", SCHEMA)),
    ({"type": "json_schema", "schema": SCHEMA}, OutputFormat("json_schema", SCHEMA)),
]


@pytest.mark.parametrize(("format", "output"), FORMATS, ids=str)
def test_response_format(format: Json | None, output: OutputFormat) -> None:
    assert decode(response_format=format).output == output


def test_json_schema_without_a_schema_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match=r"response_format\.json_schema: Field required"):
        decode(response_format={"type": "json_schema"})


class TestIdentity:
    def test_opencode_names_its_session_in_prompt_cache_key(self) -> None:
        assert decode(prompt_cache_key="ses_1").identity.session == "ses_1"
        assert decode({"x-session-id": "s"}, prompt_cache_key="k").identity.session == "s"

    def test_user(self) -> None:
        assert decode(user="u", safety_identifier="s").identity.user == "u"
        assert decode(safety_identifier="s").identity.user == "s"

    def test_user_that_is_not_text_is_ignored(self) -> None:
        assert decode(user=17, prompt_cache_key=["x"]).identity.user is None

    def test_hints(self) -> None:
        request = decode(nvext={"agent_hints": {"priority": 2}, "dispatch": ["tools"], "new": 1})
        assert request.hints == Hints(priority=2, dispatch=frozenset({"tools"}))
        assert request.ignored == ("nvext.new",)


class TestUnknown:
    def test_fields_without_effect_are_reported(self) -> None:
        request = decode(of_tomorrow=1, verbosity="low", web_search_options=None)
        assert request.ignored == ("of_tomorrow", "verbosity")

    def test_vllm_clients_request_continuous_usage(self) -> None:
        request = decode(stream_options={"include_usage": True, "continuous_usage_stats": True})
        assert request.ignored == ("stream_options.continuous_usage_stats",)

    def test_other_fields_of_pi_and_sdks_are_known(self) -> None:
        assert decode(store=False, metadata={}, service_tier="auto").ignored == ()

    def test_stream_options_without_a_stream(self) -> None:
        assert not decode(stream_options={"include_usage": True}).stream

    def test_javascript_client_sends_a_lone_surrogate(self) -> None:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "a\\ud83d"}]}'
        assert CODEC.decode(body, {}).turns == (Turn("user", (TextBlock("a?"),)),)
