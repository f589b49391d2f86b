"""`dovetail watch` as users run it, with a server that renders every prompt from scratch."""

import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from agent_clients import AGENTS, Agent, ClaudeCode, read
from server_process import NAME, Running, clean_environment, dovetail, qwen_folder, served
from watch_process import watching

STEPS = 4
BLOCK = 16  # tokens of a block in the scripted engine's cache
PATHS = {"messages": "/v1/messages?beta=true", "chat": "/v1/chat/completions"}
PLAIN = ("--replay", "client", "--no-strip-anthropic-preamble")


def _call(command: str) -> str:
    return (
        "<tool_call>\n<function=run_command>\n"
        f"<parameter=command>\n{command}\n</parameter>\n<parameter=timeout>\n10.0\n</parameter>\n"
        "</function>\n</tool_call>"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    place: Path = tmp_path_factory.mktemp("watch")
    qwen_folder(place / "model")
    turns = [
        f"<think>\nStep {at}: é, 漢字.\n</think>\n\nI look.\n\n" + _call(f"cd /repo && ls {at}")
        for at in range(STEPS - 1)
    ]
    outputs = [*turns, "<think>\nThat is all.\n</think>\n\nThe answer is 42."]
    script = {"turns": [{"text": text} for text in outputs]}
    (place / "script.yaml").write_text(json.dumps(script))
    return place


def arguments(folder: Path) -> list[str | Path]:
    return [
        *(folder / "model", "--engine", "scripted", "--script", folder / "script.yaml"),
        *("--served-model-name", NAME, "--model-alias", f"m={NAME}"),
        *("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3"),
    ]


class Used(NamedTuple):
    """Token usage of a response. `prompt` includes cached tokens."""

    prompt: int
    generated: int
    cached: int


def steps(running: Running, agent: Agent) -> list[Used]:
    """Run a complete tool loop, and return the usage of each step."""
    agent.add_user_message("What is the answer?")
    return [step(running, agent, at) for at in range(STEPS)]


def step(running: Running, agent: Agent, at: int, **fields: str) -> Used:
    body = {**agent.body(), **fields}
    if agent.codec.name == "chat":
        body["stream_options"] = {"include_usage": True}
    headers = {name.replace("-", "_"): value for name, value in agent.headers.items()}
    reply = running.request("POST", PATHS.get(agent.codec.name, "/v1/responses"), body, **headers)
    assert reply.status == 200, reply.body
    calls = agent.receive(reply.body)
    agent.add_results([(call, f"file {at}.txt") for call in calls])
    return used(reply.body)


def used(frames: bytes) -> Used:
    found: list[Used] = []
    for event in read(frames):
        usage = event.get("usage") or event.get("response", {}).get("usage")
        if usage is None:
            continue
        if "cache_read_input_tokens" in usage:
            cached = usage["cache_read_input_tokens"]
            found.append(Used(usage["input_tokens"] + cached, usage["output_tokens"], cached))
        elif "input_tokens" in usage:
            cached = usage["input_tokens_details"]["cached_tokens"]
            found.append(Used(usage["input_tokens"], usage["output_tokens"], cached))
        else:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            found.append(Used(usage["prompt_tokens"], usage["completion_tokens"], cached))
    return found[-1]


def tokenizer(folder: Path) -> tuple[str | Path, ...]:
    parsers = ("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3")
    return ("--tokenizer", folder / "model", *parsers)


@pytest.mark.long
def test_replay_reports_actual_savings(folder: Path) -> None:
    """The traffic is watched with a plain server, replayed, and then measured on Dovetail."""
    recording, report_path = folder / "session.jsonl", folder / "report.json"
    with served(*arguments(folder), *PLAIN) as plain:
        with watching(
            plain.url, folder, *tokenizer(folder), "--record", recording, "--json", report_path
        ) as watch:
            was = steps(watch, ClaudeCode("session-of-claude-code"))
        text = watch.log.read_text()
    live = json.loads(report_path.read_text())
    assert stat.S_IMODE(recording.stat().st_mode) == 0o600
    assert "x-api-key" not in recording.read_text().lower()
    assert "the billing line at the start of the system text changed" in text

    again = dovetail(
        "watch", "--replay", recording, *tokenizer(folder), "--json", report_path, home=folder
    )
    assert again.status == 0, again.err
    replayed = json.loads(report_path.read_text())
    assert replayed == live

    with served(*arguments(folder)) as exact:
        now = steps(exact, ClaudeCode("session-of-claude-code"))
    seen = replayed["exchanges"]
    assert [one["served"]["total"] for one in seen] == [one.prompt for one in was]
    assert [one["basis"] for one in seen] == ["confirmed"] * STEPS
    assert [one["exact"]["total"] for one in seen] == [one.prompt for one in now]
    exact_tokens = [one["exact"]["kept"] // BLOCK * BLOCK for one in seen]
    assert exact_tokens == [one.cached for one in now]
    served_tokens = [one["served"]["kept"] // BLOCK * BLOCK for one in seen]
    assert served_tokens == [one.cached for one in was]
    needless = sum(one["needless"] for one in seen)
    assert needless == replayed["whole"]["needless"] > 1000


@pytest.mark.long
def test_requests_of_every_harness_are_decoded(plain: Running, folder: Path) -> None:
    report_path = folder / "harnesses.json"
    with watching(plain.url, folder, *tokenizer(folder), "--json", report_path) as watch:
        for kind in AGENTS:
            steps(watch, kind(f"{kind.name} session", f"{kind.name} is who you are."))
    report = json.loads(report_path.read_text())
    assert (report["whole"]["unread"], report["unobserved"]) == (0, {})
    assert [one["label"] for one in report["sessions"]] == [f"{k.name} session" for k in AGENTS]
    for one in report["sessions"]:
        assert one["requests"] == one["thoughts"] == STEPS
        assert one["calls"] == len(one["tool_gaps"]) == len(one["dispatch"]) == STEPS - 1
        assert one["needless"] > 0  # the calls are not in the template's notation
    causes = {one["label"].removesuffix(" session"): one["counts"] for one in report["sessions"]}
    assert causes["claude-code"]["billing"] == STEPS - 1
    assert causes["claude-code"]["rewritten"] == STEPS - 1
    assert causes["plain chat"]["thoughts_not_returned"] == STEPS - 1
    assert not {"billing", "thoughts_not_returned"} & set(causes["sdk"])


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Running]:
    with served(*arguments(folder), *PLAIN) as running:
        yield running


def test_sdks_work_through_the_relay(plain: Running, folder: Path) -> None:
    with watching(plain.url, folder) as watch:
        message = watch.anthropic().messages.create(
            model=NAME, max_tokens=500, messages=[{"role": "user", "content": "Hi!"}]
        )
        assert message.content[0].type == "thinking"
        with watch.openai().responses.stream(model=NAME, input="Hi!") as stream:
            assert stream.get_final_response().status == "completed"
        chat = watch.openai().chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "Hi!"}]
        )
        assert chat.choices[0].message.content
        assert [model.id for model in watch.openai().models.list()] == [NAME, "m"]
        watch.process.send_signal(signal.SIGUSR1)  # the report so far
        while "3 requests" not in watch.log.read_text():
            with pytest.raises(subprocess.TimeoutExpired):
                watch.process.wait(0.05)
    assert "1 other exchange forwarded" in watch.log.read_text()
    assert "estimated (~)" in watch.log.read_text()


@pytest.mark.long
def test_invalid_arguments_are_reported(tmp_path: Path) -> None:
    ended = dovetail("watch", home=tmp_path)
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "URL is missing" in ended.err
    ended = dovetail("watch", "ftp://somewhere", home=tmp_path)
    assert "expected an http://" in ended.err
    ended = dovetail("watch", "http://127.0.0.1:9", "--json", tmp_path / "no" / "x", home=tmp_path)
    assert (ended.status, "No such file or directory" in ended.err) == (1, True)
    (tmp_path / "no.jsonl").write_text("{}\n")
    ended = dovetail("watch", "--replay", tmp_path / "no.jsonl", home=tmp_path)
    assert (ended.status, "is not a recording" in ended.err) == (1, True)


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """Run a server with only vLLM's completions API, and yield its address."""
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--port", "0"]
    command += ["--model", str(folder / "model"), "--script", str(folder / "script.yaml")]
    with subprocess.Popen(
        [*command, "--served-model-name", NAME],
        cwd=folder,
        env=clean_environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield next(
                found[0] for line in process.stdout if (found := re.search(r"http\S+", line))
            )
        finally:
            process.terminate()


def test_fix_mode_serves_the_same_traffic_with_exact_turns(folder: Path) -> None:
    """The engine has none of the three APIs: it returns 404 for forwarded requests."""
    report_path = folder / "fixed.json"
    with (
        engine(folder) as url,
        watching(url, folder, "--fix", *tokenizer(folder), "--json", report_path) as watch,
    ):
        agent = ClaudeCode("fixed session")
        agent.add_user_message("What is the answer?")
        made = [step(watch, agent, at, model=NAME) for at in range(STEPS)]
        for before, after in pairwise(made):
            assert after.cached == (before.prompt + before.generated - 1) // BLOCK * BLOCK
        assert [model.id for model in watch.openai().models.list()] == [NAME]
        body = {"model": NAME, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi!"}]}
        image = {"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}
        for odd in (
            {**body, "model": "unknown"},
            {**body, "messages": [{"role": "user", "content": [image]}]},
            {"model": NAME},
        ):
            assert watch.request("POST", "/v1/messages", odd).status == 404
        long = {**body, "messages": [{"role": "user", "content": "word " * 50_000}]}
        refused = watch.request("POST", "/v1/messages", long)  # too long for the server as well
        assert (refused.status, b"prompt is too long" in refused.body) == (400, True)
    report = json.loads(report_path.read_text())
    assert [one["fixed"] for one in report["exchanges"]] == [True] * STEPS + [False] * 3 + [True]
    assert report["whole"]["fixed"] == STEPS + 1
    assert sum(n for why, n in report["unobserved"].items() if "forwarded" in why) == 3
    assert [one["basis"] for one in report["exchanges"][:STEPS]] == ["confirmed"] * STEPS
    totals = [one["exact"]["total"] for one in report["exchanges"][:STEPS]]
    assert totals == [one.prompt for one in made]
