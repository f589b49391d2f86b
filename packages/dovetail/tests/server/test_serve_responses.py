"""Stored responses of real servers: after a restart, and shared by servers through Redis."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from redis_server import RedisServer
from server_process import NAME, Running, qwen_folder, served

TURNS = 20
CALL = '<tool_call>\n{"name": "run", "arguments": {"command": "ls", "timeout": 10.0}}\n</tool_call>'
TOOL: Any = {"type": "function", "name": "run", "parameters": {"type": "object"}}


def _arguments(folder: Path) -> list[str | Path]:
    """Every output is a call after reasoning: this template drops reasoning at a new user turn."""
    model, script = folder / "model", folder / "script.yaml"
    outputs = [
        f"<think>\nStep {at}: e\u0301, 漢字.\n</think>\n\nI look.\n{CALL}" for at in range(TURNS)
    ]
    script.write_text(json.dumps({"turns": [{"text": text} for text in outputs]}))
    return [
        *(model if model.is_dir() else qwen_folder(model), "--engine", "scripted"),
        *("--script", script, "--served-model-name", NAME, "--http-host", "127.0.0.1"),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    ]


class Conversation:
    """A conversation of which the client stores only the id of the last response."""

    def __init__(self) -> None:
        self.previous: str | None = None
        self.last = 0  # tokens of the last prompt and its output, without the stop token
        self._more: Any = "What is there?"

    def turn(self, client: OpenAI) -> None:
        """Stream one turn, which continues as soon as the last frame has arrived."""
        raw = client.responses.with_streaming_response.create(
            model=NAME,
            input=self._more,
            previous_response_id=self.previous,
            tools=[TOOL],
            stream=True,
            extra_headers={"x-dovetail-debug": "prefix"},
        )
        with raw as reply:
            common = int(reply.headers["x-dovetail-prefix-common"])
            assert common == self.last, reply.headers
            for event in reply.parse():
                if event.type == "response.completed":
                    self._add_output(event.response)
                    return
        raise AssertionError("the stream has no end")

    def _add_output(self, response: Any) -> None:
        self.previous = response.id
        self.last = response.usage.input_tokens + response.usage.output_tokens - 1
        calls = [item.call_id for item in response.output if item.type == "function_call"]
        self._more = [
            {"type": "function_call_output", "call_id": id, "output": "a.txt"} for id in calls
        ]
        assert self._more


def test_conversation_continues_exactly_after_a_restart(tmp_path: Path) -> None:
    conversation, home = Conversation(), tmp_path / "home"
    for _ in range(2):
        with served(*_arguments(tmp_path), home=home) as running:
            client = running.openai()
            for _ in range(3):
                conversation.turn(client)
            assert conversation.previous is not None
            items = client.responses.input_items.list(conversation.previous, order="asc", limit=100)
    # Each turn got one item, and passed reasoning, a message and a call to the next.
    assert len(items.data) == 6 + 3 * 5


@pytest.mark.long
def test_stored_responses_are_bounded_by_the_settings(tmp_path: Path) -> None:
    bound = ("--responses-max-bytes", "30000", "--responses-max-age", "3600")
    with served(*_arguments(tmp_path), *bound) as running:
        client = running.openai()
        ids = [client.responses.create(model=NAME, input=str(at)).id for at in range(40)]
        assert client.responses.retrieve(ids[-1]).id == ids[-1]
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[0])


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    """Two servers with one Redis. They share the keys that seal turns, and nothing else."""
    redis = RedisServer()
    redis.start()
    keys = tmp_path / "keys"
    keys.write_text("ab" * 32)
    keys.chmod(0o600)
    arguments = [*_arguments(tmp_path), "--store", redis.url, "--seal-key-file", keys]
    try:
        with (
            served(*arguments, home=tmp_path / "one") as one,
            served(*arguments, home=tmp_path / "two") as two,
        ):
            yield one, two
    finally:
        redis.remove()


def test_two_servers_take_turns(shared: tuple[Running, Running]) -> None:
    clients = [server.openai() for server in shared]
    conversation = Conversation()
    for at in range(TURNS):
        conversation.turn(clients[at % 2])
    assert conversation.previous is not None
    one, two = clients
    assert one.responses.retrieve(conversation.previous) == two.responses.retrieve(
        conversation.previous
    )
    one.responses.delete(conversation.previous)
    with pytest.raises(openai.NotFoundError):
        two.responses.retrieve(conversation.previous)
    with pytest.raises(openai.BadRequestError):
        two.responses.create(model=NAME, input="x", previous_response_id=conversation.previous)


@pytest.mark.long
def test_workers_take_turns_over_one_file(tmp_path: Path) -> None:
    """Each turn has a separate connection, so any of the processes may get it."""
    conversation = Conversation()
    with served(*_arguments(tmp_path), "--workers", "3") as running:
        for _ in range(TURNS):
            client = running.openai()
            conversation.turn(client)
            client.close()
        assert conversation.previous is not None
        for _ in range(6):
            client = running.openai()
            assert client.responses.retrieve(conversation.previous).id == conversation.previous
            client.close()
