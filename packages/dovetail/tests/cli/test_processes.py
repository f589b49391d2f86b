"""Commands as processes: serve, chat, and render with the turns of a stopped server."""

import json
import socket
import subprocess
import sys
from http.client import HTTPConnection
from importlib.metadata import version
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest
from server_process import (
    NAME,
    TIMEOUT_SECONDS,
    clean_environment,
    dovetail,
    free_port,
    qwen_folder,
    served,
)

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("processes")
    qwen_folder(place / "qwen")
    (place / "hello.txt").write_text("<think>\nHm.\n</think>\n\nHello.")
    turns = [{"text": f"<think>\nHm.\n</think>\n\nLook.\n\n{CALL}"}, {"text": "Done."}]
    (place / "loop.yaml").write_text(json.dumps({"turns": turns}))
    (place / "broken.yaml").write_text("turns: [")
    (place / "not.pem").write_text("no certificate")
    return place


def scripted(script: str = "hello.txt") -> list[str]:
    return ["qwen", "--engine", "scripted", "--script", script]


def test_demo_turns_are_exact(tmp_path: Path) -> None:
    ran = dovetail("demo", "--fast", home=tmp_path)
    assert ran.status == 0, ran.err
    assert "in the next prompt, token for token: yes" in ran.out
    assert ran.err == ""


def test_chat_responds_line_by_line(place: Path) -> None:
    ran = dovetail("chat", *scripted(), home=place, given="Hi\nAgain\n")
    assert ran.status == 0, ran.err
    assert ran.out.count("Hello.") == 2
    assert "input tokens" in ran.out


@pytest.mark.long
def test_render_reuses_turns_of_a_stopped_server(place: Path, tmp_path: Path) -> None:
    """The ledger provides the complete second prompt, except for the tool result."""
    body: dict[str, Any] = {"model": NAME, "max_tokens": 500, "tools": [TOOL]}
    body["messages"] = [{"role": "user", "content": "Go."}]
    arguments: list[str | Path] = [place / "qwen", *scripted(str(place / "loop.yaml"))[1:]]
    with served(*arguments, "--served-model-name", NAME, home=tmp_path) as running:
        first = running.post("/v1/messages", body)
        use = first["content"][-1]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "42"}
        body["messages"] += [
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        count = running.post("/v1/messages/count_tokens", body)["input_tokens"]
    (tmp_path / "second.json").write_text(json.dumps(body))
    known = first["usage"]["input_tokens"] + first["usage"]["output_tokens"] - 1
    command = ["render", str(place / "qwen"), "second.json", "--data-dir", "."]
    rendered = json.loads(dovetail(*command, "--json", home=tmp_path).out)
    assert (len(rendered["ids"]), rendered["reused_tokens"], rendered["how"]) == (
        count,
        known,
        "grown",
    )
    shown = dovetail(*command, home=tmp_path)
    assert f"{count} tokens, {known} of them from the ledger (grown)" in shown.err
    cold = json.loads(dovetail(*command[:3], "--json", home=tmp_path).out)
    assert cold["reused_tokens"] == 0


STARTS = [
    (["nothing"], "built-in models: smollm2"),
    (["qwen"], "requires a GGUF file"),
    (["qwen", "--engine", "nope"], "use dynamo, llamacpp, openai, scripted"),
    (["qwen", "--engine", "scripted"], "--script FILE"),
    (scripted("nofile.txt"), "nofile.txt"),
    ([*scripted(), "--tool-call-parser", "nope"], "unknown tool parser 'nope'"),
    (
        [*scripted(), "--tool-call-parser", "harmony", "--reasoning-parser", "qwen3"],
        "are incompatible",
    ),
    ([*scripted(), "--model-alias", "x"], "ALIAS=NAME"),
    ([*scripted(), "--model-alias", "x=y"], "'y'"),
    ([*scripted(), "--store", "nope"], "--store must be sqlite"),
    ([*scripted(), "--api-key-file", "nofile"], "nofile"),
    ([*scripted(), "--seal-key-file", "nofile"], "nofile"),
    ([*scripted(), "--http-host", "999.1.1.1"], "999.1.1.1"),
    ([*scripted(), "--tls-key-path", "not.pem"], "--tls-cert-path"),
    ([*scripted(), "--volatile-pattern", "("], "volatile pattern"),
]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [*STARTS[:5], *(pytest.param(*one, marks=pytest.mark.long) for one in STARTS[5:])],
)
def test_startup_failure_is_reported_in_one_line(
    place: Path, arguments: list[str], expected: str
) -> None:
    ran = dovetail("serve", *arguments, home=place)
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.startswith("dovetail serve: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*scripted("broken.yaml")], "broken.yaml: not YAML"),
        ([*scripted(), "--tls-cert-path", "not.pem"], "not.pem"),
    ],
)
def test_long_errors_have_no_traceback(place: Path, arguments: list[str], expected: str) -> None:
    ran = dovetail("serve", *arguments, home=place)
    assert ran.status == 1
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_port_in_use_is_reported_before_the_model_loads(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = dovetail("serve", "nothing", "--http-port", str(port), home=place)
    assert ran.status == 1
    assert ran.err == (
        f"dovetail serve: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        "set another port with --http-port\n"
    )


def test_startup_warnings_are_printed(place: Path, tmp_path: Path) -> None:
    """Warnings about a parser that does not match the template, and about missing API keys."""
    flags = ["--tool-call-parser", "qwen3_coder", "--http-host", "0.0.0.0"]
    arguments: list[str | Path] = [place / "qwen", *scripted(str(place / "hello.txt"))[1:]]
    with served(*arguments, *flags, home=tmp_path) as running:
        log = running.log.read_text()
        assert 'event=warning_emitted text="template and parsers do not match' in log
        assert 'event=warning_emitted text="listening on 0.0.0.0 without API keys' in log
        assert running.url.startswith("http://127.0.0.1:")
        assert running.request("GET", "/live").status == 200


def test_json_log_contains_only_json_lines(place: Path) -> None:
    """This includes the events of start and stop."""
    flags = ["--http-host", "0.0.0.0", "--log-format", "json", "--served-model-name", NAME]
    with served(place / "qwen", *scripted(str(place / "hello.txt"))[1:], *flags) as running:
        running.process.send_signal(SIGTERM)
        running.process.wait(TIMEOUT_SECONDS)
        lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    *warnings, serving, draining, stopped = lines
    assert {line["event"] for line in warnings} == {"warning_emitted"}
    assert [line["event"] for line in (serving, draining, stopped)] == [
        "server_started",
        "drain_started",
        "server_stopped",
    ]
    port = running.url.rpartition(":")[2]
    fields = (serving["address"], serving["models"], serving["workers"], serving["version"])
    assert fields == (f"http://0.0.0.0:{port}", NAME, 1, version("dovetail"))


def test_unreachable_engine_is_reported_once(place: Path) -> None:
    nowhere = ["--engine", "vllm", "--engine-url", f"http://127.0.0.1:{free_port()}"]
    ran = dovetail("serve", *nowhere, "--tokenizer", "qwen", "--http-port", "0", home=place)
    assert ran.status == 1
    assert len(ran.err.splitlines()) == 1, ran.err
    assert ran.err.startswith("dovetail serve: ")


@pytest.mark.parametrize(("signal", "status"), [(SIGINT, 130), (SIGTERM, -SIGTERM)])
def test_interrupt_stops_the_server_cleanly(place: Path, signal: int, status: int) -> None:
    with served(place / "qwen", *scripted(str(place / "hello.txt"))[1:]) as running:
        running.process.send_signal(signal)
        assert running.process.wait(TIMEOUT_SECONDS) == status
        assert "Traceback" not in running.log.read_text()


def test_scripted_engine_runs_as_a_process(place: Path) -> None:
    command = [sys.executable, "-m", "dovetail", "engine", "scripted", "--port", "0"]
    with subprocess.Popen(
        [*command, "--script", "hello.txt", "--model", "qwen"],
        cwd=place,
        env=clean_environment(place),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip().rpartition("http://")[2]
            body = {"model": "qwen", "prompt": [1, 2, 3], "max_tokens": 50}
            response = _post(address, "/v1/completions", body)
            assert response["choices"][0]["text"].endswith("Hello.")
            assert response["usage"]["prompt_tokens"] == 3
        finally:
            process.send_signal(SIGTERM)
            process.wait(TIMEOUT_SECONDS)


def test_scripted_engine_reports_its_own_errors(place: Path) -> None:
    ran = dovetail("engine", "scripted", "--script", "nofile.txt", home=place)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "nofile.txt" in ran.err
    assert "--script" in dovetail("engine", "scripted", "--help", home=place).out


def _post(address: str, path: str, body: Any) -> Any:
    connection = HTTPConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", path, json.dumps(body).encode(), headers)
        with connection.getresponse() as response:
            return json.loads(response.read())
    finally:
        connection.close()
