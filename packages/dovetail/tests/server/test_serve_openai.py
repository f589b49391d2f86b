"""End to end: SDKs, a Dovetail server, and behind it an upstream that renders and parses itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from llama_server import llama_server
from llamacpp_environment import need_weights
from server_process import NAME, Running, qwen_folder, served

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANTHROPIC_TOOL: Any = {"name": "look_up", "description": "Weather", "input_schema": SCHEMA}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}
RESPONSES_TOOL: Any = {"type": "function", "name": "look_up", "parameters": SCHEMA}
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "%s"}}\n</tool_call>'
INTERLEAVED = (
    "<think>\nFirst Oslo.\n</think>\n\n" + CALL % "Oslo"
    + "\n<think>\nThen Rome.\n</think>\n\n" + CALL % "Rome"
)  # fmt: skip
SCRIPT = {
    "rules": [
        {"when": {"text": "Sunny.", "tail": 200}, "text": "<think>\nSo.\n</think>\n\nBoth sunny."},
        {"when": {"text": "weather", "tail": 400}, "text": INTERLEAVED},
    ],
    "turns": [{"text": "<think>\nA greeting.\n</think>\n\nHello there, é 漢字 🦜."}],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the upstream's model."""
    return qwen_folder(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def behind(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The upstream, which renders and parses."""
    place = tmp_path_factory.mktemp("behind")
    (place / "script.yaml").write_text(json.dumps(SCRIPT))
    with served(
        *(model, "--engine", "scripted", "--script", place / "script.yaml"),
        *("--served-model-name", NAME, "--tool-call-parser", "hermes"),
        *("--reasoning-parser", "qwen3"),
    ) as running:
        yield running


@pytest.fixture(scope="module", params=["chat", "responses"])
def server(behind: Running, request: pytest.FixtureRequest) -> Iterator[Running]:
    with served(
        *("--engine", "openai", "--engine-url", f"{behind.url}/v1"),
        *("--upstream-api", request.param),
    ) as running:
        yield running


@pytest.fixture
def question(request: pytest.FixtureRequest) -> str:
    """A different text in each test: turns of equal conversations are ambiguous upstream."""
    return f"The weather, for {request.node.name}?"


@pytest.fixture(scope="module")
def counting(behind: Running, model: Path) -> Iterator[Running]:
    """A server that has the tokenizer and the template of the upstream's model."""
    with served(
        *("--engine", "openai", "--engine-url", f"{behind.url}/v1"),
        *("--upstream-api", "responses", "--tokenizer", model),
    ) as running:
        yield running


def user_messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_model_is_discovered_and_listed(server: Running) -> None:
    assert server.greeting.startswith(f"serving {NAME} at http://")
    (card,) = server.request("GET", "/v1/models").json["data"]
    assert (card["id"], card["max_model_len"]) == (NAME, 40960)


class TestMessages:
    @pytest.mark.parametrize("shown", [True, False], ids=["thoughts", "seals_alone"])
    def test_interleaved_reasoning_and_calls(
        self, server: Running, question: str, shown: bool
    ) -> None:
        client = server.anthropic()
        body: Any = {"model": NAME, "max_tokens": 32000, "tools": [ANTHROPIC_TOOL]}
        with client.messages.stream(messages=user_messages(question), **body) as stream:
            first = stream.get_final_message()
        kinds = [block.type for block in first.content]
        assert kinds == ["thinking", "tool_use", "thinking", "tool_use"]
        assert first.stop_reason == "tool_use"
        calls = [
            block for block in first.content if isinstance(block, anthropic.types.ToolUseBlock)
        ]
        assert [call.input for call in calls] == [{"city": "Oslo"}, {"city": "Rome"}]
        results: Any = [
            {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."} for call in calls
        ]
        blocks = [block.model_dump() for block in first.content]
        for block in blocks:
            if block["type"] == "thinking" and not shown:
                block["thinking"] = ""
        history: Any = [
            *user_messages(question),
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": results},
        ]
        second = client.messages.create(messages=history, **body)
        assert second.content[-1].type == "text"
        assert second.content[-1].text == "Both sunny."
        # The upstream recognized its own turn: no token of it was computed twice.
        before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
        reached = second.usage.cache_read_input_tokens or 0
        assert reached >= before + first.usage.output_tokens - 16

    def test_prompt_beyond_the_context_window(self, server: Running) -> None:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            server.anthropic().messages.create(
                model=NAME, max_tokens=10, messages=user_messages("word " * 50000)
            )


def test_chat(server: Running, question: str) -> None:
    client = server.openai()
    stream = client.chat.completions.create(
        model=NAME, messages=user_messages(question), tools=[CHAT_TOOL], stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    order: list[str] = []
    for chunk in stream:
        for choice in chunk.choices:
            if choice.delta.tool_calls:
                order.append("call")
            if getattr(choice.delta, "reasoning_content", None):
                order.append("thought")
    assert [kind for at, kind in enumerate(order) if not at or order[at - 1] != kind] == [
        "thought", "call", "thought", "call",
    ]  # fmt: skip
    assert chunk.usage is not None
    assert chunk.usage.prompt_tokens > 0


def test_responses(server: Running, question: str) -> None:
    client = server.openai()
    first = client.responses.create(model=NAME, input=question, tools=[RESPONSES_TOOL])
    kinds = [item.type for item in first.output]
    assert kinds == ["reasoning", "function_call", "reasoning", "function_call"]
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "Sunny."}
        for item in first.output
        if isinstance(item, openai.types.responses.ResponseFunctionToolCall)
    ]
    items: Any = [*user_messages(question), *(i.model_dump() for i in first.output), *results]
    second = client.responses.create(model=NAME, input=items, tools=[RESPONSES_TOOL])
    assert second.output_text == "Both sunny."
    assert first.usage is not None
    assert second.usage is not None
    reached = second.usage.input_tokens_details.cached_tokens
    assert reached >= first.usage.total_tokens - 16


def test_inexact_turns_are_reported(server: Running) -> None:
    assert "turns are not exact" in server.log.read_text()


def test_unavailable_upstream_is_a_proper_error(tmp_path: Path) -> None:
    model = qwen_folder(tmp_path / "model")
    (tmp_path / "script.yaml").write_text(json.dumps(SCRIPT))
    back: list[str | Path] = [model, "--engine", "scripted", "--script", tmp_path / "script.yaml"]
    with (
        served(*back, "--served-model-name", NAME) as short_lived,
        served("--engine", "openai", "--engine-url", short_lived.url) as front,
    ):
        client = front.openai()
        assert client.chat.completions.create(model=NAME, messages=user_messages("hello"))
        short_lived.stop()
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(model=NAME, messages=user_messages("hello"))
        assert error.value.status_code == 503


def test_llama_server_in_three_apis_and_raw() -> None:
    need_weights()
    forced = {"grammar": 'root ::= "<think>Hm.</think>Hi."', "reasoning_format": "none"}
    with llama_server() as url:
        named = ("--engine", "openai", "--engine-url", url, "--served-model-name", "smollm2")
        with served(*named) as front:
            message = front.anthropic().messages.create(
                model="smollm2", max_tokens=4, messages=user_messages("hello")
            )
            assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 4)
            assert (
                front.openai()
                .responses.create(model="smollm2", input="hello", max_output_tokens=4)
                .output_text
            )
        with served(
            *(*named, "--upstream-raw"),
            *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
            *("--engine-option", f"body={json.dumps(forced)}"),
        ) as front:
            raw = front.anthropic().messages.create(
                model="smollm2", max_tokens=40, messages=user_messages("hello")
            )
            assert [block.type for block in raw.content] == ["thinking", "text"]


class TestTokenizer:
    """With `--tokenizer`, the server counts like the upstream, which has the same template."""

    def test_stream_starts_with_the_count_of_the_upstream(self, counting: Running) -> None:
        body: Any = {"model": NAME, "max_tokens": 100, "tools": [ANTHROPIC_TOOL]}
        messages = user_messages("Hello, who are you?")
        counted = counting.anthropic().messages.count_tokens(
            model=NAME, messages=messages, tools=[ANTHROPIC_TOOL]
        )
        with counting.anthropic().messages.stream(messages=messages, **body) as stream:
            first = next(iter(stream))
            final = stream.get_final_message()
        assert first.type == "message_start"
        total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
        assert (first.message.usage.input_tokens, counted.input_tokens) == (total, total)

    def test_tokenize_and_detokenize(self, counting: Running) -> None:
        reply = counting.request("POST", "/tokenize", {"prompt": "Hello there."})
        assert reply.json["count"] == len(reply.json["tokens"])
        back = counting.request("POST", "/detokenize", {"tokens": reply.json["tokens"]})
        assert back.json == {"prompt": "Hello there."}

    def test_without_a_tokenizer_the_error_names_the_option(self, server: Running) -> None:
        with pytest.raises(anthropic.BadRequestError, match="--tokenizer"):
            server.anthropic().messages.count_tokens(model=NAME, messages=user_messages("Hi."))


def test_fields_reach_the_second_server(server: Running, question: str) -> None:
    """What the upstream reports about the request is part of the response."""
    raw = server.openai().responses.with_raw_response.create(
        model=NAME, input=question, text={"verbosity": "low"}, metadata={"a": "b"}, user="u"
    )
    notes = raw.headers.get("x-dovetail-diagnostics", "")
    assert "verbosity" in notes  # the scripted engine of the upstream has none
    response = raw.parse()
    assert (response.metadata, response.user) == ({"a": "b"}, "u")
