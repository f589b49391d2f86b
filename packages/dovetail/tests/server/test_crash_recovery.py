"""A server that is killed: what it has sent is known to the next one, or counts as ambiguous.

The clients drop the reasoning and rename the ids of calls, so that a turn can be recognized only by
its visible text. A template that keeps reasoning would show a wrong splice in the prompt.
"""

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked_histories import TEMPLATE, call_text, reasoning_text
from redis_server import RedisServer
from server_process import NAME, Running, qwen_folder, served

NAMES = ("Xanthippe", "Yorick")
TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}]
OUTPUTS = {"text": "Hi there.", "call": call_text('{"command": "ls"}').strip()}

Message = dict[str, Any]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


class Setup:
    """The files of a server whose first responses look the same and differ in their reasoning."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder = folder
        self._output = output
        self.log = folder / "record"
        self._model = qwen_folder(folder / "model")
        self.script = folder / "script.yaml"
        rules = [
            {"times": 1, "text": reasoning_text(f"I am {name}.") + OUTPUTS[output]}
            for name in NAMES
        ]
        self.script.write_text(json.dumps({"rules": [*rules, {"text": "Fine."}]}))

    @contextmanager
    def serve(self, *more: str | Path) -> Iterator[Running]:
        template = self.folder / "template.jinja"
        template.write_text(TEMPLATE)
        keep = ("--custom-jinja-template", template) if self._output == "text" else ()
        with served(
            *(self._model, "--engine", "scripted", "--script", self.script),
            *("--served-model-name", NAME, "--http-host", "127.0.0.1"),
            *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
            *("--data-dir", self.folder / "data", "--engine-option", f"record={self.log}"),
            *(*keep, *more),
        ) as running:
            yield running

    def prompted_names(self) -> set[str]:
        """The names in the reasoning of the last prompt."""
        prompt = json.loads(self.log.read_text().splitlines()[-1])["text"]
        assert OUTPUTS[self._output][:9] in prompt
        return {name for name in NAMES if name in prompt}


def _request(running: Running, messages: list[Message], **headers: str) -> Message:
    body = {"model": NAME, "messages": messages, "tools": TOOLS}
    reply: Message = running.post("/v1/chat/completions", body, **headers)["choices"][0]["message"]
    return reply


def _hello() -> list[Message]:
    return [{"role": "user", "content": "hello"}]


def _continue(reply: Message) -> list[Message]:
    """The next request of a client that drops reasoning and makes call ids of its own."""
    if not reply.get("tool_calls"):
        replayed: Message = {"role": "assistant", "content": reply["content"]}
        return [*_hello(), replayed, {"role": "user", "content": "so?"}]
    call = {**reply["tool_calls"][0], "id": "mine-1"}
    replayed = {"role": "assistant", "content": reply.get("content"), "tool_calls": [call]}
    return [*_hello(), replayed, {"role": "tool", "tool_call_id": "mine-1", "content": "a.txt"}]


def _kill(running: Running) -> None:
    running.process.kill()
    running.process.wait()


@pytest.mark.parametrize("output", list(OUTPUTS))
def test_no_reasoning_of_a_lookalike_after_a_crash(tmp_path: Path, output: str) -> None:
    setup = Setup(tmp_path, output)
    with setup.serve() as running:
        _request(running, _hello())
        second = _request(running, _hello())
        _kill(running)
    with setup.serve() as running:
        _request(running, _continue(second))
        assert setup.prompted_names() == set()


@pytest.mark.parametrize("output", list(OUTPUTS))
def test_turn_survives_a_crash_right_after_its_end(tmp_path: Path, output: str) -> None:
    setup = Setup(tmp_path, output)
    with setup.serve() as running:
        first = _request(running, _hello())
        _kill(running)
    with setup.serve() as running:
        _request(running, _continue(first))
        assert setup.prompted_names() == {NAMES[0]}


def test_a_crash_in_the_middle_of_a_response_makes_its_place_ambiguous(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "text")
    with setup.serve() as running:
        first = _request(running, _hello())
        body = {"model": NAME, "messages": _hello(), "tools": TOOLS, "stream": True}
        with running.open("POST", "/v1/chat/completions", body) as response:
            response.readline()
            _kill(running)
    with setup.serve() as running:
        _request(running, _continue(first))
        assert setup.prompted_names() <= {NAMES[0]}


def test_session_id_finds_the_turn_of_its_session(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "text")
    with setup.serve() as running:
        replies = [_request(running, _hello(), x_session_id=name) for name in NAMES]
        _kill(running)
    with setup.serve() as running:
        for name, reply in zip(NAMES, replies, strict=True):
            _request(running, _continue(reply), x_session_id=name)
            assert setup.prompted_names() == {name}


def test_a_ledger_in_memory_needs_a_session_id(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "text")
    with setup.serve("--store", "memory") as running:
        first = _request(running, _hello(), x_session_id="s")
        _request(running, _continue(first))
        assert setup.prompted_names() == set()
        _request(running, _continue(first), x_session_id="s")
        assert setup.prompted_names() == {NAMES[0]}


def test_a_deleted_ledger_counts_as_a_gap(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "text")
    with setup.serve() as running:
        _request(running, _hello())
    (tmp_path / "data" / "turns.sqlite").unlink()
    with setup.serve() as running:
        second = _request(running, _hello())
        _request(running, _continue(second))
        assert setup.prompted_names() == set()
        assert running.request("GET", "/health").json["stores"][0]["gap_at"] > 0


def _swap_names(setup: Setup) -> None:
    """Let the next server begin with the other reasoning."""
    script = json.loads(setup.script.read_text())
    script["rules"][:2] = reversed(script["rules"][:2])
    setup.script.write_text(json.dumps(script))


@pytest.mark.parametrize("output", list(OUTPUTS))
def test_no_reasoning_of_a_lookalike_from_a_restored_backup(tmp_path: Path, output: str) -> None:
    setup, ledger = Setup(tmp_path, output), tmp_path / "data" / "turns.sqlite"
    with setup.serve() as running:
        _request(running, _hello())
    backup = shutil.copy(ledger, tmp_path / "backup")
    _swap_names(setup)
    with setup.serve() as running:
        second = _request(running, _hello())
    shutil.copy(backup, ledger)
    for suffix in ("-wal", "-shm"):
        ledger.with_name(ledger.name + suffix).unlink(missing_ok=True)
    with setup.serve() as running:
        _request(running, _continue(second))
        assert setup.prompted_names() == set()
        assert "event=ledger_gap_recorded" in running.log.read_text()


def test_no_reasoning_of_a_lookalike_after_the_ledger_was_deleted(tmp_path: Path) -> None:
    """`rm turns.sqlite*` deletes the gap file, too."""
    setup = Setup(tmp_path, "text")
    with setup.serve() as running:
        _request(running, _hello())
    for file in (tmp_path / "data").glob("turns.sqlite*"):
        file.unlink()
    _swap_names(setup)
    with setup.serve() as running:
        second = _request(running, _hello())
        _request(running, _continue(second))
        assert setup.prompted_names() == set()
        assert "event=ledger_gap_recorded" in running.log.read_text()


def test_no_reasoning_of_another_session_of_this_server(tmp_path: Path) -> None:
    """The turn of the other session may have been generated by another server."""
    setup = Setup(tmp_path, "text")
    with setup.serve() as running:
        first = _request(running, _hello(), x_session_id="SA")
        for headers in ({}, {"x_session_id": "SB"}):
            _request(running, _continue(first), **headers)
            assert setup.prompted_names() == set()
        _request(running, _continue(first), x_session_id="SA")
        assert setup.prompted_names() == {NAMES[0]}


def test_no_reasoning_of_a_lookalike_while_redis_is_frozen_and_after(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Two workers: a turn of one is unknown to the other while Redis does not respond."""
    setup = Setup(tmp_path, "text")
    rules = [
        {
            "when": {"text": f"Talk to {at}."},
            "text": reasoning_text(f"I am {name}.") + OUTPUTS["text"],
        }
        for at, name in enumerate(NAMES)
    ]
    setup.script.write_text(json.dumps({"rules": rules}))
    first, second = ({"role": "system", "content": f"Talk to {at}."} for at in range(2))
    # Of each greeting, the two turns reach different workers with a probability of one half.
    greetings = [{"role": "user", "content": f"hello {at}"} for at in range(6)]
    replayed = [{"role": "assistant", "content": OUTPUTS["text"]}, *_hello()]
    with setup.serve("--workers", "2", "--store", redis.url) as running:

        def check() -> None:
            """Continue the second sessions: each request may reach either worker."""
            for greeting in greetings:
                _request(running, [second, greeting, *replayed])
                assert setup.prompted_names() <= {NAMES[1]}

        for greeting in greetings:
            _request(running, [first, greeting])
        assert redis.process is not None
        redis.process.send_signal(signal.SIGSTOP)
        for greeting in greetings:
            _request(running, [second, greeting])
        for _ in range(3):
            check()
        redis.process.send_signal(signal.SIGCONT)
        for _ in range(8):
            check()
            time.sleep(0.3)
