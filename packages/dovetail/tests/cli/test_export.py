"""`dovetail export` with a real server: the ids equal those that the engine recorded."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_clients import Agent, ClaudeCode, Codex, OpenClaw
from generation_log import read_generation_log
from redis_server import RedisServer
from server_process import NAME, Ended, Running, clean_environment, dovetail, qwen_folder, served
from typer.testing import CliRunner

from dovetail.cli.main import build_app
from dovetail.engines.scripted.engine import RecordedGeneration

KINDS = (ClaudeCode, Codex, OpenClaw)  # Messages, Responses, Chat Completions
LOGPROBS = (-0.5, -0.25, -0.125)
PATHS = {
    ("toolu_", False): "/v1/messages",
    ("call_", True): "/v1/responses",
    ("call_", False): "/v1/chat/completions",
}


def _outputs() -> list[str]:
    calls = [
        f"<think>\nStep {at}: é 漢字.\n</think>\n\nI look.\n\n<tool_call>\n"
        f'{{"name": "run_command", "arguments": {{"timeout": 10.0, "command": "ls  {at}"}}}}\n'
        "</tool_call>"
        for at in range(3)
    ]
    return [*calls, "<think>\nAll.\n</think>\n\nThe answer is 42."]


def _arguments(folder: Path, *more: str) -> list[str | Path]:
    script = folder / "script.yaml"
    turns = [{"text": text, "logprobs": list(LOGPROBS)} for text in _outputs()]
    script.write_text(json.dumps({"turns": turns, "end": "last"}))
    return [
        *(qwen_folder(folder / "model"), "--engine", "scripted", "--script", script),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
        *("--served-model-name", NAME, "--model-alias", f"m={NAME}"),
        *("--engine-option", f"record={folder / 'record'}", *more),
    ]


def _play(running: Running, agent: Agent) -> list[str]:
    """Run the script with this agent. Returns the public ids of the responses."""
    agent.add_user_message(f"What is the answer, {agent.name}?")
    response_ids = []
    for at in range(len(_outputs())):
        body = agent.body()
        headers = {name.replace("-", "_"): value for name, value in agent.headers.items()}
        path = PATHS[agent.codec.call_id_prefix, "input" in body]
        reply = running.request("POST", path, body, **headers)
        assert reply.status == 200, reply.body
        response_ids.append(_response_id(reply.body))
        calls = agent.receive(reply.body)
        agent.add_results([(call, f"file {at}.txt") for call in calls])
    return response_ids


def _response_id(frames: bytes) -> str:
    first = json.loads(frames.partition(b"data: ")[2].partition(b"\n")[0])
    holder = first.get("message") or first.get("response") or first
    return str(holder["id"])


class Ran:
    """A server that three agents have used, each in its own session."""

    def __init__(self, running: Running, home: Path, generations: list[RecordedGeneration]) -> None:
        self.running = running
        self.home = home
        self.generations = generations
        self.response_ids: dict[str, list[str]] = {}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: Any) -> Iterator[Ran]:
    home = tmp_path_factory.mktemp("export")
    with served(*_arguments(home, "--keep-logprobs"), home=home / "data") as running:
        ran = Ran(running, home / "data", [])
        for kind in KINDS:
            ran.response_ids[kind.name] = _play(running, kind(session=kind.name))
        ran.generations = read_generation_log(home / "record")
        assert len(ran.generations) == len(KINDS) * len(_outputs())
        yield ran


def _run(home: Path, *arguments: str | Path) -> Ended:
    """Run the command in this process: starting a process takes longer than the export."""
    given = ["export", *map(str, arguments)]
    done = CliRunner().invoke(build_app(), given, env=clean_environment(home))
    return Ended(done.exit_code, done.stdout, done.stderr)


def _export(home: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    done = _run(home, *arguments)
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def _check(samples: Sequence[dict[str, Any]], generations: Sequence[RecordedGeneration]) -> None:
    """Check that the export has every prompt and output that the engine recorded, and no others."""
    exported = []
    for sample in samples:
        assert sample["schema"] == "dovetail.sample/1"
        ids, mask = sample["ids"], sample["loss_mask"]
        expected_mask = [0] * len(ids)
        for turn in sample["turns"]:
            output = ids[turn["prompt_end"] : turn["end"]]
            exported.append((tuple(ids[: turn["prompt_end"]]), tuple(output)))
            expected_mask[turn["prompt_end"] : turn["end"]] = [1] * len(output)
        assert mask == expected_mask
        assert len(sample["logprobs"]) == len(ids)
    assert sorted(exported) == sorted((one.prompt, one.output) for one in generations)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_exported_ids_equal_the_engine_record(ran: Ran, kind: type[Agent]) -> None:
    samples = _export(ran.home, kind.name)
    _check(samples, [one for one in ran.generations if kind.name in one.text])
    assert {sample["session"] for sample in samples} == {kind.name}
    kinds = [span["kind"] for s in samples for turn in s["turns"] for span in turn["spans"]]
    assert {"reasoning", "text", "call"} <= set(kinds)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_logprobs_are_stored_without_being_returned(ran: Ran, kind: type[Agent]) -> None:
    sample = _export(ran.home, kind.name)[0]
    for turn in sample["turns"]:
        start, end = turn["prompt_end"], turn["end"]
        expected = [LOGPROBS[min(at, len(LOGPROBS) - 1)] for at in range(end - start)]
        assert sample["logprobs"][start:end] == expected
    prompts = [at for at, chosen in enumerate(sample["loss_mask"]) if not chosen]
    assert all(sample["logprobs"][at] is None for at in prompts)
    body = kind(session="watched").body() | {"stream": False}
    key = "input" if "input" in body else "messages"
    request = body | {key: [{"role": "user", "content": "What is the answer?"}]}
    path = PATHS[kind.codec.call_id_prefix, "input" in body]
    response = ran.running.post(path, request)
    assert not [value for value in _values(response, "logprobs") if value]


def _values(tree: Any, name: str) -> list[Any]:
    if isinstance(tree, dict):
        inner = [value for one in tree.values() for value in _values(one, name)]
        return [*inner, *([tree[name]] if name in tree else [])]
    return [value for one in tree for value in _values(one, name)] if isinstance(tree, list) else []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_turn_is_exported_by_its_response_id(ran: Ran, kind: type[Agent]) -> None:
    response_ids = ran.response_ids[kind.name]
    assert response_ids[0].startswith(("msg_", "resp_", "chatcmpl-"))
    (sample,) = _export(ran.home, response_ids[1])
    assert len(sample["turns"]) == 2
    (whole,) = [s for s in _export(ran.home, kind.name) if s["turns"][0] == sample["turns"][0]]
    assert whole["ids"][: len(sample["ids"])] == sample["ids"]
    call = next(span["id"] for span in sample["turns"][1]["spans"] if span["kind"] == "call")
    assert _export(ran.home, call) == [sample]


def test_unary_response_id_finds_its_turn(ran: Ran) -> None:
    question = [{"role": "user", "content": "In one piece?"}]
    client = ran.running.anthropic()
    message = client.messages.create(model="m", max_tokens=99, messages=question)  # type: ignore[arg-type]
    openai = ran.running.openai()
    response = openai.responses.create(model="m", input="In one piece?")
    chat = openai.chat.completions.create(model="m", messages=question)  # type: ignore[arg-type]
    for id in (message.id, response.id, chat.id):
        (sample,) = _export(ran.home, id)
        assert len(sample["turns"]) == 1


def test_stored_responses_are_exported_by_id(ran: Ran) -> None:
    """Export a background response, and a response that continues it."""
    client = ran.running.openai()
    first = client.responses.create(model="m", input="In the background?", background=True)
    while first.status in ("queued", "in_progress"):
        first = client.responses.retrieve(first.id)
    assert first.status == "completed"
    second = client.responses.create(model="m", input="And?", previous_response_id=first.id)
    for id, turns in ((first.id, 1), (second.id, 2)):
        samples = _export(ran.home, id)
        assert sum(len(sample["turns"]) for sample in samples) == turns
    (session,) = {sample["session"] for sample in samples}
    assert (
        _export(ran.home, session) == samples
    )  # without a session of the client, it is the first turn's id
    assert session == samples[0]["turns"][0]["entry"]


def test_all_listed_sessions_are_exported(ran: Ran) -> None:
    listed = _run(ran.home, "--list")
    for kind in KINDS:
        (line,) = [one for one in listed.out.splitlines() if one.endswith(f"  {kind.name}")]
        assert f" {len(_outputs())} turns" in line
    sessions = {sample["session"] for sample in _export(ran.home, "--all")}
    assert {kind.name for kind in KINDS} <= sessions


def test_closed_pipe_ends_the_export_without_an_error(ran: Ran) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dovetail", "export", "--list", "--data-dir", str(ran.home)]
    done = subprocess.run(
        command,
        env=clean_environment(ran.home),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_file_is_private_and_survives_an_unknown_name(ran: Ran, tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    done = dovetail("export", KINDS[0].name, "-o", file, home=ran.home)
    assert (done.status, done.out) == (0, "")
    assert f"1 sample, {len(_outputs())} turns, " in done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    done = _run(ran.home, "nobody", "-o", file)
    assert done.status == 1
    assert "no stored turns of 'nobody'" in done.err
    assert file.read_bytes() == before


def test_other_tenant_has_no_turns(ran: Ran) -> None:
    done = _run(ran.home, KINDS[0].name, "--tenant", "other")
    assert done.status == 1
    assert "of tenant 'other'" in done.err
    assert _run(ran.home, "--list", "--tenant", "other").out == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("x", "--store", "memory"), "--store memory cannot be exported"),
        (("x",), "no stored turns in"),
        (("x", "--store", "redis://127.0.0.1:1"), "is unavailable"),
        (("x", "--store", "what"), "must be sqlite, memory, or a redis:// or redis+cluster:// URL"),
        ((), "exactly one of SESSION, --all and --list is required"),
        (("x", "--list"), "exactly one of SESSION, --all and --list is required"),
    ],
)
def test_errors_are_reported_and_no_file_is_created(
    arguments: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    done = _run(tmp_path, *arguments)
    assert done.status != 0
    assert expected in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_logprobs_are_requested_from_a_remote_engine(tmp_path: Path) -> None:
    arguments = _arguments(tmp_path)
    script = tmp_path / "script.yaml"
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", script]
    options = ["--model", arguments[0], "--served-model-name", NAME, "--port", "0"]
    engine = subprocess.Popen(
        list(map(str, [*command, *options])), stdout=subprocess.PIPE, text=True
    )
    with engine:
        try:
            assert engine.stdout is not None
            url = engine.stdout.readline().split()[-1]
            remote = ("--engine", "vllm", "--engine-url", url, "--tokenizer", arguments[0])
            parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
            home = tmp_path / "data"
            with served(
                *remote, *parsers, "--model-alias", f"m={NAME}", "--keep-logprobs", home=home
            ) as running:
                _play(running, OpenClaw(session="remote"))
                samples = _export(home, "remote")
        finally:
            engine.terminate()
    assert sum(len(sample["turns"]) for sample in samples) == len(_outputs())
    for sample in samples:
        known = [value is not None for value in sample["logprobs"]]
        assert known == [bool(chosen) for chosen in sample["loss_mask"]]
        first = sample["turns"][0]
        assert sample["logprobs"][first["prompt_end"]] == LOGPROBS[0]


def test_export_from_redis_is_identical(tmp_path: Path) -> None:
    server = RedisServer()
    server.start()
    try:
        arguments = _arguments(tmp_path, "--store", server.url)
        with served(*arguments, home=tmp_path / "data") as running:
            _play(running, Codex(session="in redis"))
            samples = _export(tmp_path, "in redis", "--store", server.url)
        generations = read_generation_log(tmp_path / "record")
        assert all(sample["logprobs"] is None for sample in samples)
        _check([{**one, "logprobs": one["ids"]} for one in samples], generations)
    finally:
        server.remove()
