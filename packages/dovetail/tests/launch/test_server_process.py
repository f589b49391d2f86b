"""The server that `dovetail launch` starts for a run: signals and exit."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from launch_fixture import DIES, ENDS, WAITS, FakeHarness
from server_process import NAME, TIMEOUT_SECONDS, clean_environment, dovetail, qwen_folder

from dovetail.launch.server_process import (
    build_port_arguments,
    build_secret_environment,
    build_serve_arguments,
    find_builtin_window,
)
from dovetail.settings.sources import load_config

INTERRUPT = b"\x03"


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """Return the flags of a server with enough context for Codex."""
    folder = qwen_folder(tmp_path / "qwen")
    (tmp_path / "hello.txt").write_text("Hello.")
    engine = ["--engine", "scripted", "--script", str(tmp_path / "hello.txt")]
    return ["--model", str(folder), *engine, "--served-model-name", NAME]


def environment(home: Path, harness: FakeHarness) -> dict[str, str]:
    path = f"{harness.bin}{os.pathsep}{os.environ['PATH']}"
    return {**clean_environment(home), "PATH": path}


@pytest.mark.parametrize(("does", "status"), [(ENDS, 7), (DIES, 128 + 9)])
def test_server_runs_only_during_the_launch(
    does: str, status: int, settings: list[str], tmp_path: Path
) -> None:
    harness = FakeHarness(tmp_path, "codex", does)
    environ = {"PATH": environment(tmp_path, harness)["PATH"], "DOVETAIL_API_KEY": "k1"}
    ran = dovetail("launch", "codex", *settings, "--", "a b", home=tmp_path, environment=environ)
    assert ran.status == status, ran.err
    log = tmp_path / "launch" / "codex" / "server.log"
    assert ran.err == f"dovetail launch: starting a server (log: {log})\n"
    assert "event=server_stopped" in log.read_text()
    assert harness.invocation["arguments"][-1] == "a b"
    assert harness.invocation["environment"]["KEY_OF_DOVETAIL"] == "k1"
    assert not _responds(_address(harness))
    assert [one.name for one in log.parent.iterdir()] == ["server.log"]


@pytest.mark.long
def test_startup_failure_shows_the_log(settings: list[str], tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "codex")
    (tmp_path / "hello.txt").unlink()
    environ = {"PATH": environment(tmp_path, harness)["PATH"]}
    ran = dovetail("launch", "codex", *settings, home=tmp_path, environment=environ)
    assert (ran.status, harness.ran) == (1, False)
    assert "the server did not start:\ndovetail serve: " in ran.err
    assert "hello.txt" in ran.err


def test_server_imports_no_modules_of_the_working_folder(
    settings: list[str], tmp_path: Path
) -> None:
    """The command is started like an installed script, without the working folder in its path."""
    harness = FakeHarness(tmp_path, "codex")
    project = tmp_path / "project"
    project.mkdir()
    (project / "uvloop.py").write_text("raise SystemExit('imported')")
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "dovetail", "launch", "codex", *settings],
        cwd=project,
        env=environment(tmp_path, harness),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert (ran.returncode, harness.ran) == (7, True), ran.stderr


def test_keyboard_interrupt_reaches_only_the_harness(settings: list[str], tmp_path: Path) -> None:
    """It is delivered once, and the server keeps running; the harness decides when to exit."""
    harness = FakeHarness(tmp_path, "codex", WAITS)
    with _launched(settings, tmp_path, harness) as (process, keyboard):
        for count in (1, 2):
            os.write(keyboard, INTERRUPT)
            _until(lambda count=count: len(harness.invocation["signals"]) >= count)  # type: ignore[misc]
        assert harness.invocation["signals"] == ["SIGINT", "SIGINT"]
        assert _responds(_address(harness))
        os.kill(harness.invocation["pid"], signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 3
    assert not _responds(_address(harness))


@pytest.mark.long
def test_stopped_harness_returns_to_the_shell(settings: list[str], tmp_path: Path) -> None:
    """It continues when the shell resumes it."""
    harness = FakeHarness(tmp_path, "codex", WAITS)
    with _launched(settings, tmp_path, harness) as (process, _):
        os.kill(harness.invocation["pid"], signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 3


def test_termination_signal_is_forwarded(settings: list[str], tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "codex", WAITS)
    with _launched(settings, tmp_path, harness) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 3
    assert harness.invocation["signals"] == ["SIGTERM"]
    assert not _responds(_address(harness))


def test_server_exits_when_launch_is_killed(settings: list[str], tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "codex", WAITS)
    with _launched(settings, tmp_path, harness) as (process, _):
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        _until(lambda: not _responds(_address(harness)))
        os.kill(harness.invocation["pid"], signal.SIGTERM)


def test_command_line_repeats_the_settings_without_keys(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text('top_p = 0.5\nengine_api_key = "of the file"')
    flags = {
        "served_model_name": ["a", "b,c"],
        "log_prefix": True,
        "enable_anthropic_api": False,
        "chat_template_kwargs": '{"x": [1]}',
        "api_key": ["k1", "k2"],
    }
    given = load_config(flags, {"DOVETAIL_TOP_K": "7"}, file)
    arguments = build_serve_arguments(given, "some model")
    assert arguments[:3] == ["some model", "--config", str(file)]
    assert arguments[3:7] == ["--served-model-name", "a", "--served-model-name", "b,c"]
    assert {"--log-prefix", "--no-enable-anthropic-api"} < set(arguments)
    assert json.loads(arguments[arguments.index("--chat-template-kwargs") + 1]) == {"x": [1]}
    assert not [one for one in arguments if "k1" in one or "of the file" in one]
    assert build_port_arguments(given) == ["--http-port", "0"]
    assert build_port_arguments(load_config({}, {"DOVETAIL_HTTP_PORT": "9000"})) == []
    assert build_secret_environment(given) == {
        "DOVETAIL_API_KEY": "k1,k2",
        "DOVETAIL_ENGINE_API_KEY": "of the file",
    }


@pytest.mark.parametrize(
    ("flags", "model", "known"),
    [
        ({}, None, ("smollm2", 8192)),
        ({"context_length": 4096}, "smollm2", ("smollm2", 4096)),
        ({"context_length": 99_999}, None, ("smollm2", 8192)),
        ({}, "some-org/some-model", None),
        ({"engine_url": ["http://127.0.0.1:8000"]}, None, None),
    ],
)
def test_context_of_a_built_in_model_is_known_before_its_download(
    flags: dict[str, object], model: str | None, known: tuple[str, int] | None
) -> None:
    assert find_builtin_window(load_config(flags, {}).config, model) == known


@contextmanager
def _launched(
    settings: list[str], home: Path, harness: FakeHarness
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run `dovetail launch` on its own terminal until the harness runs."""
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "launch", "codex", *settings],
        cwd=home,
        env=environment(home, harness),
        preexec_fn=lambda: os.login_tty(terminal),
    )
    os.close(terminal)
    try:
        _until(lambda: harness.ran or process.poll() is not None)
        yield process, keyboard
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(keyboard)


def _address(harness: FakeHarness) -> str:
    (found,) = [one for one in harness.invocation["arguments"] if "base_url" in one]
    return str(found.partition('base_url="')[2].partition('/v1"')[0])


def _responds(address: str) -> bool:
    place = urlsplit(address)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/live")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _until(happened: Callable[[], object]) -> None:
    """Wait for a condition; the timeout of the test limits the wait."""
    while not happened():
        time.sleep(0.02)
