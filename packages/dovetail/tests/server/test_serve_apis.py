"""The scripted server as a process with the official SDKs: all APIs, all features."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from server_process import NAME, Running, qwen_folder, served

TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANTHROPIC_TOOL: Any = {"name": "look_up", "description": "Weather", "input_schema": TOOL_SCHEMA}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "look_up", "parameters": TOOL_SCHEMA}}
RESPONSES_TOOL: Any = {"type": "function", "name": "look_up", "parameters": TOOL_SCHEMA}
CALL = (
    "<tool_call>\n<function=look_up>\n<parameter=city>\nOslo\n</parameter>\n"
    "</function>\n</tool_call>"
)
REASONING = "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve."
RULES = {
    "weather": f"<think>\nWhich city?\n</think>\n\nLet me see.\n\n{CALL}",
    "alphabet": "a b c d e f g h i j k l m n o p q r s t u v w x y z",
    "ponder": f"<think>\n{REASONING}\n</think>\n\nThirteen.",
    "city as JSON": '{"city": "Oslo"}',
}
HELLO = "<think>\nA greeting.\n</think>\n\nHello there, é 漢字 🦜."
GREETING = "Hello there, é 漢字 🦜."
SCHEMA = {**TOOL_SCHEMA, "additionalProperties": False}


def user_messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


HAIKU = "claude-haiku-4-5-20251001"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("apis")
    qwen_folder(place / "model")
    rules = [
        {"when": {"text": text, "tail": 400}, "text": output} for text, output in RULES.items()
    ]
    (place / "script.yaml").write_text(json.dumps({"rules": rules, "turns": [{"text": HELLO}]}))
    return place


def command(folder: Path) -> list[str | Path]:
    """The command of the scripted server, without the port."""
    return [
        *(folder / "model", "--engine", "scripted", "--script", folder / "script.yaml"),
        *("--served-model-name", NAME, "--tool-call-parser", "qwen3_coder"),
        *("--reasoning-parser", "qwen3", "--http-host", "127.0.0.1"),
    ]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    aliases = ["--model-alias", f"{HAIKU}={NAME}"]
    aliases += ["--model-alias", f"claude-*={NAME}"]
    with served(*command(folder), *aliases) as running:
        yield running


def test_first_line_has_the_address(server: Running) -> None:
    assert server.greeting.startswith(f"serving {NAME} at http://127.0.0.1:")


def test_messages_unary_and_streamed_are_equal(server: Running) -> None:
    client = server.anthropic()
    body: Any = {"model": NAME, "max_tokens": 200, "messages": user_messages("hello")}
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        blocks: Any = message.content
        thinking, text = blocks
        assert thinking.type == "thinking"
        assert thinking.thinking.strip() == "A greeting."
        assert thinking.signature
        assert text.type == "text"
        assert text.text == GREETING
        assert message.stop_reason == "end_turn"
        assert message.model == NAME
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 10


def test_responses_unary_and_streamed_are_equal(server: Running) -> None:
    client = server.openai()
    whole = client.responses.create(model=NAME, input="hello")
    with client.responses.stream(model=NAME, input="hello") as stream:
        streamed = stream.get_final_response()
    for response in (whole, streamed):
        assert [item.type for item in response.output] == ["reasoning", "message"]
        assert response.output_text == GREETING
        assert response.status == "completed"
    assert whole.usage is not None
    assert streamed.usage is not None
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_chat_unary_and_streamed_are_equal(server: Running) -> None:
    client = server.openai()
    body: Any = {"model": NAME, "messages": user_messages("hello")}
    whole: Any = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body) as stream:
        streamed: Any = stream.get_final_completion()
    for completion in (whole, streamed):
        message = completion.choices[0].message
        assert message.content == GREETING
        assert message.reasoning_content.strip() == "A greeting."
        assert completion.choices[0].finish_reason == "stop"


def test_tools_in_all_three_apis(server: Running) -> None:
    message = server.anthropic().messages.create(
        model=NAME, max_tokens=500, messages=user_messages("weather"), tools=[ANTHROPIC_TOOL]
    )
    assert message.stop_reason == "tool_use"
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    use: Any = message.content[2]
    client = server.openai()
    response = client.responses.create(model=NAME, input="weather", tools=[RESPONSES_TOOL])
    item: Any = response.output[-1]
    completion = client.chat.completions.create(
        model=NAME, messages=user_messages("weather"), tools=[CHAT_TOOL]
    )
    choice = completion.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    call: Any = choice.message.tool_calls[0]
    found = [(use.name, use.input), (item.name, json.loads(item.arguments))]
    found.append((call.function.name, json.loads(call.function.arguments)))
    assert found == [("look_up", {"city": "Oslo"})] * 3


def test_counted_tokens_equal_those_of_the_request(server: Running) -> None:
    client = server.anthropic()
    body: Any = {
        "model": NAME,
        "system": "You are terse.",
        "messages": user_messages("weather, é 漢字 <|im_end|> and all"),
        "tools": [ANTHROPIC_TOOL],
    }
    counted = client.messages.count_tokens(**body)
    used = client.messages.create(**body, max_tokens=10).usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def test_models_by_slashed_name_in_both_dialects(server: Running) -> None:
    listed = server.openai().models.list().data
    assert [model.id for model in listed] == [NAME, HAIKU]
    one: Any = server.openai().models.retrieve(NAME)
    assert (one.id, one.context_length) == (NAME, 40960)
    theirs = server.anthropic().models.list().data
    assert [(model.id, model.type) for model in theirs] == [(NAME, "model"), (HAIKU, "model")]
    entry = server.anthropic().models.retrieve(NAME)
    assert (entry.id, entry.max_input_tokens) == (NAME, 40960)


def test_tokenize_and_detokenize(server: Running) -> None:
    text = "<|im_start|>user\né 🦜<|im_end|>"
    for prefix in ("", "/v1"):
        ids = server.post(f"{prefix}/tokenize", {"model": NAME, "prompt": text})
        assert ids["tokens"][0] == 151644
        assert ids["count"] == len(ids["tokens"])
        back = server.post(f"{prefix}/detokenize", {"tokens": ids["tokens"]})
        assert back == {"prompt": text}


def test_tokenized_conversation_is_the_prompt_of_the_request(server: Running) -> None:
    body = {"model": NAME, "messages": user_messages("hello"), "tools": [CHAT_TOOL]}
    ids = server.post("/tokenize", body)
    usage = server.post("/v1/chat/completions", body)["usage"]
    assert ids["count"] == usage["prompt_tokens"]


def test_text_completions(server: Running) -> None:
    client = server.openai()
    done = client.completions.create(model=NAME, prompt="alphabet", max_tokens=5)
    assert (done.choices[0].text, done.choices[0].finish_reason) == ("a b c d e", "length")
    pieces = client.completions.create(model=NAME, prompt="alphabet", max_tokens=5, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == "a b c d e"


def test_stop_sequences(server: Running) -> None:
    message = server.anthropic().messages.create(
        model=NAME,
        max_tokens=100,
        messages=user_messages("alphabet"),
        stop_sequences=["k l", "zzz"],
    )
    text: Any = message.content[-1]
    assert text.text == "a b c d e f g h i j "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "k l")
    completion = server.openai().chat.completions.create(
        model=NAME, messages=user_messages("alphabet"), stop="k l"
    )
    assert completion.choices[0].message.content == "a b c d e f g h i j "
    assert completion.choices[0].finish_reason == "stop"


def test_max_tokens(server: Running) -> None:
    message = server.anthropic().messages.create(
        model=NAME, max_tokens=4, messages=user_messages("alphabet")
    )
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 4)
    client = server.openai()
    completion = client.chat.completions.create(
        model=NAME, messages=user_messages("alphabet"), max_completion_tokens=4
    )
    assert completion.choices[0].finish_reason == "length"
    response = client.responses.create(model=NAME, input="alphabet", max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_max_tokens_beyond_the_context_window_are_clamped(server: Running) -> None:
    message = server.anthropic().messages.create(
        model=NAME, max_tokens=1_000_000, messages=user_messages("alphabet"), timeout=60
    )
    assert message.stop_reason == "end_turn"


def test_several_choices(server: Running) -> None:
    body: Any = {"model": NAME, "messages": user_messages("hello"), "n": 2}
    whole = server.openai().chat.completions.create(**body)
    assert [(one.index, one.message.content) for one in whole.choices] == [
        (0, GREETING),
        (1, GREETING),
    ]
    with server.openai().chat.completions.stream(**body) as stream:
        streamed = stream.get_final_completion()
    assert [one.message.content for one in streamed.choices] == [GREETING] * 2


def test_logprobs(server: Running) -> None:
    completion = server.openai().chat.completions.create(
        model=NAME, messages=user_messages("alphabet"), logprobs=True, top_logprobs=1, max_tokens=3
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [one.token for one in logprobs.content] == ["a", " b", " c"]
    done = server.openai().completions.create(
        model=NAME, prompt="alphabet", max_tokens=3, logprobs=1
    )
    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.tokens == ["a", " b", " c"]


def test_json_by_schema(server: Running) -> None:
    client = server.openai()
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    completion = client.chat.completions.create(
        model=NAME, messages=user_messages("city as JSON"), response_format=form
    )
    assert json.loads(completion.choices[0].message.content or "") == {"city": "Oslo"}
    text: Any = {"format": {"type": "json_schema", "name": "place", "schema": SCHEMA}}
    response = client.responses.create(model=NAME, input="city as JSON", text=text)
    assert json.loads(response.output_text) == {"city": "Oslo"}
    message = server.anthropic().messages.create(
        model=NAME,
        max_tokens=50,
        messages=user_messages("city as JSON"),
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    block: Any = message.content[-1]
    assert json.loads(block.text) == {"city": "Oslo"}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look_up"}])
def test_required_tool_calls(server: Running, choice: Any) -> None:
    message = server.anthropic().messages.create(
        model=NAME,
        max_tokens=500,
        messages=user_messages("weather"),
        tools=[ANTHROPIC_TOOL],
        tool_choice=choice,
    )
    assert message.stop_reason == "tool_use"


def test_tool_choice_of_an_unknown_tool_is_rejected(server: Running) -> None:
    with pytest.raises(anthropic.BadRequestError):
        server.anthropic().messages.create(
            model=NAME,
            max_tokens=500,
            messages=user_messages("weather"),
            tools=[ANTHROPIC_TOOL],
            tool_choice={"type": "tool", "name": "no_such_tool"},
        )


def test_reasoning_can_be_switched_off_and_on(server: Running) -> None:
    """The template writes an empty reasoning span into the prompt if thinking is off."""
    client = server.anthropic()
    body: Any = {"model": NAME, "messages": user_messages("hello")}
    on = client.messages.count_tokens(**body, thinking={"type": "adaptive"})
    off = client.messages.count_tokens(**body, thinking={"type": "disabled"})
    assert off.input_tokens == on.input_tokens + 4
    chat = {"model": NAME, "messages": user_messages("hello")}
    switched = {**chat, "chat_template_kwargs": {"enable_thinking": False}}
    assert server.post("/tokenize", switched)["count"] == off.input_tokens
    assert server.post("/tokenize", chat)["count"] == on.input_tokens
    response = server.openai().responses.create(
        model=NAME, input="hello", reasoning={"effort": "none"}
    )
    assert response.usage is not None
    assert response.usage.input_tokens == off.input_tokens


def test_reasoning_ends_when_its_budget_is_spent(server: Running) -> None:
    budget = 8
    message = server.anthropic().messages.create(
        model=NAME,
        max_tokens=2000,
        messages=user_messages("ponder"),
        extra_body={"thinking": {"type": "enabled", "budget_tokens": budget}},
    )
    thinking: Any = message.content[0]
    assert thinking.type == "thinking"
    assert REASONING.startswith(thinking.thinking.strip())
    assert len(thinking.thinking.strip()) < len(REASONING) / 2
    completion: Any = server.openai().chat.completions.create(
        model=NAME,
        messages=user_messages("ponder"),
        extra_body={"nvext": {"max_thinking_tokens": budget}},
    )
    reasoning = completion.choices[0].message.reasoning_content
    assert reasoning.strip() == thinking.thinking.strip()
    assert completion.usage.completion_tokens_details.reasoning_tokens <= budget + 3


def test_side_channels_by_header(server: Running) -> None:
    body = {
        "model": NAME,
        "messages": user_messages("weather"),
        "tools": [CHAT_TOOL],
        "stream": True,
    }
    plain = server.request("POST", "/v1/chat/completions", body).body
    assert b"dispatch" not in plain
    reply = server.request(
        "POST", "/v1/chat/completions", body, x_dovetail_dispatch="tools, reasoning"
    ).body
    assert reply.count(b"event: tool_call_dispatch") == 1
    assert reply.count(b"event: reasoning_dispatch") == 1


def test_aliases_are_echoed(server: Running) -> None:
    client = server.anthropic()
    for name in (HAIKU, "claude-opus-9", NAME):
        message = client.messages.create(
            model=name, max_tokens=9, messages=user_messages("alphabet")
        )
        assert message.model == name
        completion = server.openai().chat.completions.create(
            model=name, messages=user_messages("alphabet"), max_tokens=9
        )
        assert completion.model == name
        assert server.openai().responses.create(model=name, input="alphabet").model == name
    assert client.models.retrieve("claude-opus-9").id == "claude-opus-9"


def test_unknown_model_is_rejected(server: Running) -> None:
    with pytest.raises(anthropic.NotFoundError, match=NAME):
        server.anthropic().messages.create(
            model="gpt-9", max_tokens=9, messages=user_messages("hello")
        )
    with pytest.raises(openai.NotFoundError, match=NAME):
        server.openai().chat.completions.create(model="gpt-9", messages=user_messages("hello"))
    with pytest.raises(openai.NotFoundError, match=NAME):
        server.openai().responses.create(model="gpt-9", input="hello")


def test_probes(server: Running) -> None:
    assert server.request("HEAD", "/").status == 200
    assert server.request("GET", "/health").json["status"] == "ready"
    assert server.request("GET", "/live").status == 200
    assert server.request("GET", "/ready").status == 200
    metrics = server.request("GET", "/metrics").body.decode()
    assert f'dovetail_requests_total{{endpoint="messages",model="{NAME}"' in metrics
    document = server.request("GET", "/openapi.json").json
    assert {"/v1/messages", "/v1/responses", "/v1/chat/completions"} <= document["paths"].keys()


def test_context_overflow_is_reported_in_each_dialect(folder: Path) -> None:
    with served(*command(folder), "--context-length", "64") as small:
        text = "word " * 100
        with pytest.raises(anthropic.BadRequestError, match=r"too long: 1\d\d tokens > 63"):
            small.anthropic().messages.create(
                model=NAME, max_tokens=9, messages=user_messages(text)
            )
        with pytest.raises(openai.BadRequestError) as refused:
            small.openai().chat.completions.create(model=NAME, messages=user_messages(text))
        assert refused.value.code == "context_length_exceeded"
        body = {"model": NAME, "input": text, "stream": True}
        stream = small.request("POST", "/v1/responses", body)
        assert stream.status == 200
        assert b"event: response.failed" in stream.body
        assert b"context_length_exceeded" in stream.body
        with pytest.raises(openai.BadRequestError):
            small.openai().completions.create(model=NAME, prompt=text)
        full = small.anthropic().messages.create(
            model=NAME, max_tokens=1000, messages=user_messages("alphabet " * 40)
        )
        assert full.stop_reason == "model_context_window_exceeded"


def test_keys_and_flags(folder: Path) -> None:
    """Two keys, side channels for every stream, and another field for reasoning."""
    flags = ["--api-key", "one", "--api-key", "two", "--reasoning-field-name", "reasoning"]
    flags += ["--enable-streaming-tool-dispatch", "--enable-streaming-reasoning-dispatch"]
    with served(*command(folder), *flags) as guarded:
        body: Any = {"model": NAME, "messages": user_messages("weather")}
        for key in ("one", "two"):
            guarded.anthropic(key).messages.create(**body, max_tokens=9)
            guarded.openai(key).chat.completions.create(**body)
        with pytest.raises(anthropic.AuthenticationError):
            guarded.anthropic("three").messages.create(**body, max_tokens=9)
        with pytest.raises(openai.AuthenticationError):
            guarded.openai("three").models.list()
        assert guarded.request("POST", "/v1/messages", {**body, "max_tokens": 9}).status == 401
        assert guarded.request("GET", "/health").status == 200
        for path, more in {
            "/v1/chat/completions": {**body, "tools": [CHAT_TOOL]},
            "/v1/messages": {**body, "tools": [ANTHROPIC_TOOL], "max_tokens": 500},
            "/v1/responses": {"model": NAME, "input": "weather", "tools": [RESPONSES_TOOL]},
        }.items():
            stream = guarded.request("POST", path, {**more, "stream": True}, x_api_key="one").body
            assert stream.count(b"event: tool_call_dispatch") == 1, path
            assert stream.count(b"event: reasoning_dispatch") == 1, path
        completion: Any = guarded.openai("one").chat.completions.create(**body)
        assert completion.choices[0].message.reasoning.strip() == "Which city?"
        assert "one" not in guarded.log.read_text().split()
