"""A real small model behind the real server, with a real client.

The output of such a model is unpredictable: the tests assert that the protocol holds and that the
counts are right. Its window is small, so Pi is the client: the prompts of others would fill it.
"""

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from anthropic import beta_tool
from client_sandbox import Sandbox
from server_process import WEIGHTS, Running, served

NAME = "smollm2"
WINDOW = 8192
QUESTION = "What is the capital of France? Answer with one word."
REQUEST_LINE = re.compile(r"endpoint=(\w+) status=(\d+) .*?input=(\d+) output=(\d+) cached=(\d+)")
ENDPOINTS = {"chat": "chat_completions", "responses": "responses", "messages": "messages"}
#: Pi would reserve more for a summary than the window has, and summarize all the time.
SETTINGS = {"compaction": {"enabled": False}, "retry": {"enabled": False}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The server of a plain `dovetail serve`, except for the sampling."""
    if not WEIGHTS.exists():
        pytest.skip("no weights: tools/fetch_tokenizers.py smollm2 fetches them")
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / "smollm2.gguf").symlink_to(WEIGHTS)
    with served("--slots", "1", "--temperature", "0", home=home) as running:
        yield running


@pytest.mark.harness
@pytest.mark.timeout(300)
@pytest.mark.parametrize("api", ENDPOINTS)
def test_pi_with_a_real_model(api: str, server: Running, sandbox: Sandbox) -> None:
    settings = sandbox.home / ".pi" / "agent" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps(SETTINGS))
    before = len(_requests(server.log))
    # The model may call any tool, so its tools only read.
    arguments = ("--tools", "read,ls", "--thinking", "off", "--mode", "json", "-p", QUESTION)
    ran = sandbox.run("pi", server.url, *arguments, flags=("--api", api), PI_OFFLINE="1")
    assert ran.status == 0, ran.err
    events = [json.loads(line) for line in ran.out.splitlines()]
    messages = [
        event["message"]
        for event in events
        if event["type"] == "message_end" and event["message"]["role"] == "assistant"
    ]
    made = _requests(server.log)[before:]
    assert messages
    assert {message["stopReason"] for message in messages} <= {"stop", "length", "toolUse"}
    assert [status for _, status, *_ in made] == [200] * len(messages)
    assert {endpoint for endpoint, *_ in made} == {ENDPOINTS[api]}
    for message, (_, _, prompt, output, cached) in zip(messages, made, strict=True):
        _is_counted(message["usage"], prompt, output, cached)


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_tool_runner_with_a_real_model(server: Running) -> None:
    cities: list[str] = []

    @beta_tool
    def weather(city: str) -> str:
        """Returns the weather of a city."""
        cities.append(city)
        return "sunny"

    runner = server.anthropic().beta.messages.tool_runner(
        model=NAME,
        max_tokens=60,
        max_iterations=3,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[weather],
    )
    messages: list[Any] = list(runner)
    assert messages
    for message in messages:
        assert message.stop_reason in ("end_turn", "tool_use", "max_tokens")
        assert 0 < message.usage.output_tokens <= 60
        assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0
    calls = [block for message in messages for block in message.content if block.type == "tool_use"]
    assert len(cities) <= len(calls)


@pytest.mark.harness
def test_claude_code_is_rejected_before_it_starts(server: Running, sandbox: Sandbox) -> None:
    before = len(_requests(server.log))
    ran = sandbox.run("claude", server.url, "-p", QUESTION)
    assert ran.status != 0
    assert "is too small for Claude Code" in ran.err
    assert f"{WINDOW:,}" in ran.err
    assert "larger context" in ran.err
    assert len(_requests(server.log)) == before


def _is_counted(usage: dict[str, int], prompt: int, output: int, cached: int) -> None:
    """Check that the client added up the counts of the server."""
    assert 0 < prompt < WINDOW
    assert 0 <= cached < prompt
    assert (usage["input"], usage["cacheRead"]) == (prompt - cached, cached)
    assert 0 < usage["output"] == output <= WINDOW - prompt


def _requests(log: Path) -> list[tuple[str, int, int, int, int]]:
    """Return endpoint, status, prompt, output and cached tokens of every response so far."""
    return [
        (endpoint, int(status), int(prompt), int(output), int(cached))
        for endpoint, status, prompt, output, cached in REQUEST_LINE.findall(log.read_text())
    ]
