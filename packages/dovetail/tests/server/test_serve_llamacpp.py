"""A real model behind the real command: responses, forced calls, exact second turns, failures.

All tests share one server: each leaves it as it found it, except for the last.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from http.client import HTTPResponse
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from openai import BadRequestError
from server_process import WEIGHTS, Running, served

NAME = "smollm2"
PARIS = "The capital of France is Paris."
QUESTION = "What is the capital of France?"
WEATHER = "What is the weather in Oslo?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
SHAPE = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
    "required": ["city", "big"],
    "additionalProperties": False,
}
ANTHROPIC_TOOL: Any = {"name": "get_weather", "input_schema": PARAMETERS}
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
CHAT_TOOL: Any = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL: Any = {"type": "function", **FUNCTION}
GREEDY = {"temperature": 0}  # the SDK no longer has a type for it
LONG = "Write a very long story about the sea, with many chapters."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that already contains the weights."""
    if not WEIGHTS.exists():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    place = tmp_path_factory.mktemp("home")
    (place / "models").mkdir()
    (place / "models" / "smollm2.gguf").symlink_to(WEIGHTS)
    return place


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Running]:
    """The server of `make run`, with one slot and a small context window: tests share two cores."""
    with served("--slots", "1", "--context-length", "1024", home=home) as running:
        yield running


def user_messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_first_response_in_all_apis(server: Running) -> None:
    assert server.greeting.startswith("serving smollm2 at http://127.0.0.1:")
    greedy: Any = {"model": NAME, "temperature": 0}
    message = server.anthropic().messages.create(
        model=NAME, max_tokens=30, messages=user_messages(QUESTION), extra_body=GREEDY
    )
    text: Any = message.content[0]
    assert text.text == PARIS
    client = server.openai()
    completion = client.chat.completions.create(**greedy, messages=user_messages(QUESTION))
    assert completion.choices[0].message.content == PARIS
    with client.responses.stream(**greedy, input=QUESTION) as stream:
        assert stream.get_final_response().output_text == PARIS


CONSTRAINTS: dict[str, tuple[Any, str]] = {
    "guided_choice": (["Berlin", "Rome"], "Berlin|Rome"),
    "guided_regex": ("[0-9]{3}-[a-c]+", "[0-9]{3}-[a-c]+"),
    "regex": ("(Rome|Bonn)[!?]", "(Rome|Bonn)[!?]"),
    "structured_outputs": ({"choice": ["Bern"]}, "Bern"),
    "grammar": ('root ::= "(" word ")"\nword ::= [x-z]{2,4}', r"\([x-z]{2,4}\)"),
    "ebnf": ('root ::= "no" | "nope"', "no|nope"),
    "guided_grammar": ('start: "a" B+\nB: /[bc]/', "a[bc]+"),
    "json_schema": ({"enum": ["Oslo"]}, '"Oslo"'),
}


@pytest.mark.parametrize("field", CONSTRAINTS)
def test_constraints_of_other_servers_are_enforced(server: Running, field: str) -> None:
    value, pattern = CONSTRAINTS[field]
    body: Any = {"model": NAME, "max_tokens": 24, "extra_body": {field: value, **GREEDY}}
    completion = server.openai().chat.completions.create(**body, messages=user_messages(QUESTION))
    text = completion.choices[0].message.content or ""
    whole = completion.choices[0].finish_reason == "stop"
    assert re.fullmatch(pattern, text) or not whole, text
    raw = server.openai().completions.create(**body, prompt="Once")
    whole = raw.choices[0].finish_reason == "stop"
    assert re.fullmatch(pattern, raw.choices[0].text) or not whole, raw.choices[0].text


def test_stop_tokens_and_biases(server: Running) -> None:
    create = server.openai().chat.completions.create
    body: Any = {"model": NAME, "temperature": 0, "messages": user_messages(QUESTION)}
    ids = server.openai().post("/tokenize", body={"prompt": " Paris"}, cast_to=dict[str, Any])
    paris = ids["tokens"][-1]
    biased = create(**body, max_tokens=12, logit_bias={str(paris): -100})
    assert "Paris" not in (biased.choices[0].message.content or "")
    stopped = create(**body, extra_body={"stop_token_ids": [paris]})
    assert stopped.choices[0].message.content == "The capital of France is"
    endless = create(**body, max_tokens=24, extra_body={"ignore_eos": True})
    assert endless.choices[0].finish_reason == "length"
    with pytest.raises(BadRequestError, match="min_tokens"):
        create(**body, extra_body={"min_tokens": 5})


def test_forced_call_and_its_result_over_messages(server: Running) -> None:
    client = server.anthropic()
    body: Any = {"model": NAME, "extra_body": GREEDY, "max_tokens": 120}
    body["tools"] = [ANTHROPIC_TOOL]
    alone = {"disable_parallel_tool_use": True}
    choices: tuple[Any, ...] = ({"type": "any"}, {"type": "tool", "name": "get_weather"})
    for choice in choices:
        demand: Any = {**choice, **alone}
        first = client.messages.create(**body, messages=user_messages(WEATHER), tool_choice=demand)
        assert first.stop_reason == "tool_use"
        use: Any = first.content[-1]
        assert (use.type, use.name, set(use.input)) == ("tool_use", "get_weather", {"city"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny, 20 degrees."}
    history: Any = [
        *user_messages(WEATHER),
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**body, messages=history)
    usage = first.usage
    whole = usage.input_tokens + (usage.cache_read_input_tokens or 0) + usage.output_tokens
    assert whole - 2 <= (second.usage.cache_read_input_tokens or 0) <= whole
    assert second.content


def test_forced_call_and_its_result_over_chat(server: Running) -> None:
    client = server.openai()
    body: Any = {"model": NAME, "temperature": 0, "max_tokens": 120, "tools": [CHAT_TOOL]}
    body["parallel_tool_calls"] = False
    named = {"type": "function", "function": {"name": "get_weather"}}
    choices: tuple[Any, ...] = ("required", named)
    for choice in choices:
        first = client.chat.completions.create(
            **body, messages=user_messages(f"{WEATHER} Now?"), tool_choice=choice
        )
        calls: Any = first.choices[0].message.tool_calls
        assert len(calls) == 1
        assert set(json.loads(calls[0].function.arguments)) == {"city"}
    result: Any = {"role": "tool", "tool_call_id": calls[0].id, "content": "Sunny, 20 degrees."}
    output: Any = first.choices[0].message.model_dump(exclude_none=True)
    second: Any = client.chat.completions.create(
        **body, messages=[*user_messages(f"{WEATHER} Now?"), output, result]
    )
    assert first.usage is not None
    whole = first.usage.total_tokens
    assert whole - 2 <= second.usage.prompt_tokens_details.cached_tokens <= whole


def test_forced_call_and_its_result_over_responses(server: Running) -> None:
    client = server.openai()
    body: Any = {"model": NAME, "temperature": 0, "max_output_tokens": 120}
    body |= {"tools": [RESPONSES_TOOL], "parallel_tool_calls": False}
    choices: tuple[Any, ...] = ("required", {"type": "function", "name": "get_weather"})
    for choice in choices:
        first = client.responses.create(**body, input=f"{WEATHER} Soon?", tool_choice=choice)
        call: Any = first.output[-1]
        assert call.type == "function_call"
        assert set(json.loads(call.arguments)) == {"city"}
    history = [*user_messages(f"{WEATHER} Soon?"), *(item.model_dump() for item in first.output)]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}
    second: Any = client.responses.create(**body, input=[*history, result])
    assert first.usage is not None
    whole = first.usage.total_tokens
    assert whole - 2 <= second.usage.input_tokens_details.cached_tokens <= whole


def test_schema_is_enforced_in_all_apis(server: Running) -> None:
    greedy: Any = {"model": NAME, "temperature": 0}
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SHAPE}}
    completion = server.openai().chat.completions.create(
        **greedy, messages=user_messages("Name a city."), response_format=form
    )
    text: Any = {"format": {"type": "json_schema", "name": "place", "schema": SHAPE}}
    response = server.openai().responses.create(**greedy, input="Name a city.", text=text)
    message = server.anthropic().messages.create(
        model=NAME,
        max_tokens=60,
        extra_body=GREEDY,
        messages=user_messages("Name a city."),
        output_config={"format": {"type": "json_schema", "schema": SHAPE}},
    )
    block: Any = message.content[-1]
    for output in (completion.choices[0].message.content, response.output_text, block.text):
        place = json.loads(output or "")
        assert {name: type(value) for name, value in place.items()} == {"city": str, "big": bool}


def test_disconnect_frees_the_slot(server: Running) -> None:
    """There is one slot: while a long response is generated, other clients wait."""
    for path, body in _long():
        with server.open("POST", path, body) as response:
            _read_until(response, b"delta")
        # Without the disconnect, this would wait for a thousand tokens.
        message = server.anthropic().messages.create(
            model=NAME, max_tokens=30, messages=user_messages(QUESTION), extra_body=GREEDY
        )
        assert message.usage.output_tokens == 8
    lines = [line for line in server.log.read_text().splitlines() if "disconnected=true" in line]
    assert len(lines) == 3
    assert all(int(found[1]) < 200 for line in lines if (found := re.search(r"output=(\d+)", line)))


def test_prompt_beyond_the_context_window(server: Running) -> None:
    reply = server.request(
        "POST",
        "/v1/messages",
        {"model": NAME, "max_tokens": 9, "messages": user_messages("word " * 1100)},
    )
    assert reply.status == 400
    assert "prompt is too long" in reply.json["error"]["message"]


def test_killed_engine_is_reported_to_every_client_and_restarted(home: Path) -> None:
    flags = ["--slots", "3", "--context-length", "1024", "--recovery-wait", "0"]
    with served(*flags, home=home) as running:
        assert running.request("GET", "/health").json["status"] == "ready"
        before = _engine_of(running.process.pid)
        _kill_under_three_streams(running)
        assert running.request("GET", "/live").status == 200
        deadline = monotonic() + 60
        while "event=replica_recovered" not in running.log.read_text():
            assert monotonic() < deadline
        assert running.request("GET", "/health").json["status"] == "ready"
        assert _engine_of(running.process.pid) != before
        after = running.post(
            "/v1/chat/completions", {"model": NAME, "messages": user_messages(QUESTION)}
        )
        assert after["choices"][0]["message"]["content"] == PARIS
        log = running.log.read_text()
        assert "event=replica_failed" in log
        assert "llama.cpp was killed" in log


def test_stream_continues_after_an_engine_restart(home: Path) -> None:
    with served("--context-length", "1024", home=home) as running:
        path, body = next(iter(_long()))
        with running.open("POST", path, {**body, "max_tokens": 60}) as stream:
            begun = _read_until(stream, b"delta")
            os.kill(_engine_of(running.process.pid), signal.SIGKILL)
            stream_bytes = begun + stream.read()
        assert b"event: error" not in stream_bytes
        assert stream_bytes.rstrip().endswith(b'data: {"type":"message_stop"}')
        assert "event=replica_recovered" in running.log.read_text()


def _kill_under_three_streams(running: Running) -> None:
    """Stream over each API, then kill llama.cpp. Every stream ends with an error in its format."""
    (path, body), *rest = _long()
    with running.open("POST", path, body) as first:
        begun = _read_until(first, b"delta")
        (path, body), (other_path, other_body) = rest
        with (
            running.open("POST", path, body) as second,
            running.open("POST", other_path, other_body) as third,
        ):
            begun_second = _read_until(second, b"delta")
            begun_third = _read_until(third, b"delta")
            os.kill(_engine_of(running.process.pid), signal.SIGKILL)
            assert b"event: error" in begun + first.read()
            assert b"event: response.failed" in begun_second + second.read()
            assert b'"error"' in begun_third + third.read()


def _engine_of(parent: int) -> int:
    """The only child process of a server."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    if not children.exists():
        pytest.skip("this system does not list the children of a process")
    found = children.read_text().split()
    assert len(found) == 1
    return int(found[0])


def _long() -> list[tuple[str, Any]]:
    """Request a long response over each API, streamed."""
    more = {"model": NAME, "stream": True, "temperature": 0.9}
    return [
        ("/v1/messages", {**more, "max_tokens": 900, "messages": user_messages(LONG)}),
        ("/v1/responses", {**more, "input": LONG}),
        ("/v1/chat/completions", {**more, "messages": user_messages(LONG)}),
    ]


def _read_until(response: HTTPResponse, mark: bytes) -> bytes:
    """Read the stream up to a few tokens."""
    assert response.status == 200
    read = b""
    while read.count(mark) < 4:
        line = response.readline()
        assert line, "the stream ended early"
        read += line
    return read
