"""`dovetail launch` as users run it, with a server that is already running."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from launch_fixture import DIES, FakeHarness
from server_process import (
    NAME,
    Ended,
    Running,
    clean_environment,
    dovetail,
    free_port,
    qwen_folder,
    served,
)

LONG = 200_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("launching")
    config = qwen_folder(place / "qwen") / "config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "max_position_embeddings": LONG})
    )
    (place / "hello.txt").write_text("<think>\nHm.\n</think>\n\nHello.")
    return place


def scripted(place: Path) -> list[str]:
    engine = ["--engine", "scripted", "--script", str(place / "hello.txt")]
    return [str(place / "qwen"), *engine, "--served-model-name", NAME]


@pytest.fixture(scope="module")
def running(place: Path) -> Iterator[Running]:
    with served(*scripted(place), "--context-length", str(LONG)) as running:
        yield running


def launch(home: Path, *arguments: str, bin: Path | None = None, **environment: str) -> Ended:
    path = f"{bin}{os.pathsep}{os.environ['PATH']}" if bin else str(home / "nothing")
    return dovetail("launch", *arguments, home=home, environment={"PATH": path, **environment})


def test_harness_gets_its_arguments_and_returns_its_status(
    running: Running, tmp_path: Path
) -> None:
    harness = FakeHarness(tmp_path, "claude")
    ran = launch(tmp_path, "claude", "--url", running.url, "--", "-p", "--url", bin=harness.bin)
    assert (ran.status, ran.err) == (7, "")
    assert harness.invocation["arguments"][2:] == ["-p", "--url"]
    environment = harness.invocation["environment"]
    assert environment["ANTHROPIC_MODEL"] == NAME
    assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(LONG)


def test_status_of_a_killed_harness_is_reported(running: Running, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "pi", DIES)
    assert launch(tmp_path, "pi", "--url", running.url, bin=harness.bin).status == -9


def test_harness_has_default_sigpipe_handling(running: Running, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "pi")
    (harness.bin / "pi").write_text("#!/usr/bin/env bash\nyes | head -1\necho ${PIPESTATUS[0]}\n")
    ran = launch(tmp_path, "pi", "--url", running.url, bin=harness.bin)
    assert (ran.status, ran.out, ran.err) == (0, "y\n141\n", "")


def test_invalid_data_folder_is_reported_in_one_line(running: Running, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "claude")
    (tmp_path / "file").write_text("")
    flags = ("--url", running.url, "--data-dir", str(tmp_path / "file"))
    ran = launch(tmp_path, "claude", *flags, bin=harness.bin)
    assert (ran.status, ran.out, harness.ran) == (1, "", False)
    assert ran.err.startswith(f"dovetail launch: cannot write {tmp_path / 'file'}/launch/claude")
    assert ran.err.endswith(": Not a directory; set --data-dir to another folder\n")


def test_harness_that_is_not_executable_is_reported_in_one_line(
    running: Running, tmp_path: Path
) -> None:
    harness = FakeHarness(tmp_path, "pi")
    (harness.bin / "pi").write_text("#!/no/such/interpreter\n")
    ran = launch(tmp_path, "pi", "--url", running.url, bin=harness.bin)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert str(harness.bin / "pi") in ran.err


def test_catalog_is_fetched_from_the_server(running: Running, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "codex")
    assert launch(tmp_path, "codex", "--url", running.url, bin=harness.bin).status == 7
    (written,) = (tmp_path / "launch" / "codex").rglob("catalog.json")
    (entry,) = json.loads(written.read_text())["models"]
    assert (entry["slug"], entry["context_window"]) == (NAME, LONG)


def test_server_on_the_configured_port_is_found(running: Running, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "opencode")
    port = running.url.rpartition(":")[2]
    ran = launch(tmp_path, "opencode", bin=harness.bin, DOVETAIL_HTTP_PORT=port)
    assert (ran.status, ran.err) == (7, f"dovetail launch: using the server at {running.url}\n")


def test_settings_file_of_the_folder_does_not_redirect_prompts(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents run in untrusted projects."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "dovetail.toml").write_text("http_port = 1\nno_such_setting = 1\n")
    monkeypatch.chdir(project)
    harness = FakeHarness(tmp_path, "opencode")
    port = running.url.rpartition(":")[2]
    ran = launch(tmp_path, "opencode", bin=harness.bin, DOVETAIL_HTTP_PORT=port)
    assert (ran.status, ran.err) == (7, f"dovetail launch: using the server at {running.url}\n")


def test_print_works_without_an_installed_harness(running: Running, tmp_path: Path) -> None:
    ran = launch(tmp_path, "claude", "--url", running.url, "--print", "--", "-p", "two words")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert f"export ANTHROPIC_BASE_URL={running.url}" in lines
    assert lines[-1].endswith(" -p 'two words'")
    assert not (tmp_path / "launch").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "HARNESS is missing; must be one of claude (Claude Code), codex (Codex)"),
        (["nano"], "unknown harness 'nano'; must be one of claude (Claude Code), codex (Codex)"),
        (["claude"], "Install it with: npm install -g @anthropic-ai/claude-code"),
        (["claude", "--api", "chat"], "--api must be one of messages for Claude Code, got 'chat'"),
        (
            ["pi", "--print", "--url", "URL", "--engine", "vllm"],
            "--engine cannot be combined with --url",
        ),
        (["pi", "--print", "--url", "URL", "--model", "other"], f"serves '{NAME}'"),
        (["pi", "--print", "--url", "ftp://x"], "expected an http://"),
        (["pi", "--print", "--url", "http://127.0.0.1:1"], "cannot reach a server at"),
        (["claude", "--print", "--model", "smollm2"], "needs 49,152 tokens"),
    ],
)
def test_errors_are_reported_in_one_line(
    arguments: list[str], expected: str, running: Running, tmp_path: Path
) -> None:
    given = [running.url if part == "URL" else part for part in arguments]
    ran = launch(tmp_path, *given, DOVETAIL_HTTP_PORT=str(free_port()))
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.startswith("dovetail launch: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1


def test_too_small_context_is_rejected(place: Path, tmp_path: Path) -> None:
    """A harness with a shorter prompt can use the same server."""
    with served(*scripted(place), "--context-length", "16384") as small:
        claude, codex = FakeHarness(tmp_path, "claude"), FakeHarness(tmp_path, "codex")
        ran = launch(tmp_path, "claude", "--url", small.url, bin=claude.bin)
        assert ran.status == 1
        assert not claude.ran
        assert f"the context length of '{NAME}' is too small" in ran.err
        assert "it needs 49,152 tokens" in ran.err
        assert "got 16,384" in ran.err
        assert launch(tmp_path, "codex", "--url", small.url, bin=codex.bin).status == 7


def test_minimum_context_depends_on_the_version_of_the_harness(place: Path, tmp_path: Path) -> None:
    with served(*scripted(place), "--context-length", "45000") as small:
        old = FakeHarness(tmp_path / "old", "claude", version="2.1.197")
        ran = launch(tmp_path, "claude", "--url", small.url, bin=old.bin)
        assert (ran.status, old.ran) == (1, False)
        assert "too small for Claude Code 2.1.197: it needs 49,152 tokens" in ran.err
        assert "its own prompt (about 21,800)" in ran.err
        new = FakeHarness(tmp_path / "new", "claude", version="2.1.325")
        assert launch(tmp_path, "claude", "--url", small.url, bin=new.bin).status == 7
        environment = new.invocation["environment"]
        # Otherwise it would assume 1,000,000 tokens.
        assert environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "45000"
        assert environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "45000"


def test_small_model_must_be_served(place: Path, tmp_path: Path) -> None:
    long = ("--context-length", str(LONG), "--served-model-name", "small")
    with served(*scripted(place), *long) as running:
        harness = FakeHarness(tmp_path, "claude")
        flags = ("claude", "--url", running.url, "--small")
        assert launch(tmp_path, *flags, "small", bin=harness.bin).status == 7
        environment = harness.invocation["environment"]
        assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "small"
        assert environment["ANTHROPIC_MODEL"] == NAME
        ran = launch(tmp_path, *flags, "other", bin=harness.bin)
        assert (ran.status, "does not serve 'other'" in ran.err) == (1, True)
        pi = FakeHarness(tmp_path, "pi")
        ran = launch(tmp_path, "pi", "--url", running.url, "--small", "small", bin=pi.bin)
        assert (ran.status, "Pi has no setting for a small model" in ran.err) == (1, True)


def test_server_with_keys_requires_the_key(place: Path, tmp_path: Path) -> None:
    harness = FakeHarness(tmp_path, "claude")
    long = ("--context-length", str(LONG))
    with served(*scripted(place), *long, environment={"DOVETAIL_API_KEY": "k1"}) as keyed:
        arguments = ["claude", "--url", keyed.url]
        ran = launch(tmp_path, *arguments, bin=harness.bin)
        assert (ran.status, harness.ran) == (1, False)
        assert "requires an API key; set DOVETAIL_API_KEY or --api-key" in ran.err
        ran = launch(tmp_path, *arguments, "--api-key", "k2", bin=harness.bin)
        assert "rejects the API key" in ran.err
        port = keyed.url.rpartition(":")[2]
        ran = launch(tmp_path, "claude", bin=harness.bin, DOVETAIL_HTTP_PORT=port)
        assert (
            "requires an API key; set DOVETAIL_API_KEY or --api-key" in ran.err
        )  # no new server is started instead
        assert launch(tmp_path, *arguments, bin=harness.bin, DOVETAIL_API_KEY="k1").status == 7
        assert harness.invocation["environment"]["ANTHROPIC_AUTH_TOKEN"] == "k1"


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_printed_examples_can_be_pasted_into_a_shell(place: Path, tmp_path: Path) -> None:
    """The key does not appear in the process list, and the model name needs quoting."""
    name, key = 'it\'s "$NAME"', "k1"
    flags = (*scripted(place)[:-1], name, "--context-length", str(LONG))
    harness = FakeHarness(tmp_path, "codex")
    path = os.pathsep.join([str(harness.bin), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**clean_environment(tmp_path), "PATH": path, "KEY": key}
    with served(*flags, environment={"DOVETAIL_API_KEY": key}) as keyed:
        assert keyed.process.stdout is not None
        lines: list[str] = []
        while not lines or "launch pi" not in lines[-1]:
            lines.append(keyed.process.stdout.readline())
        curl_commands = [one for one in lines if one.startswith("curl")]
        assert len(curl_commands) == 3
        for line in curl_commands:
            ran = subprocess.run(
                ["bash", "-c", line], env=environment, capture_output=True, text=True, check=True
            )
            assert "Hello." in ran.stdout
        (line,) = [one for one in lines if "launch codex" in one]
        assert "--api-key" not in line
        assert subprocess.run(["bash", "-c", line], env=environment, check=False).returncode == 7
    assert harness.invocation["environment"]["KEY_OF_DOVETAIL"] == key


def test_other_server_is_suggested_as_an_engine(tmp_path: Path) -> None:
    with _other_server() as url:
        ran = launch(tmp_path, "pi", "--print", "--url", url)
        assert ran.status == 1
        assert (
            f"not a Dovetail server. To use it as an engine, pass --engine vllm --engine-url {url}"
            in (ran.err)
        )


def test_foreign_server_is_reported(tmp_path: Path) -> None:
    """A user with a running vLLM probably wants to use it, not the small built-in model."""
    with _other_server() as url:
        ran = launch(tmp_path, "claude", "--print", DOVETAIL_HTTP_PORT=url.rpartition(":")[2])
        assert ran.status == 1
        assert f"To use it as an engine, pass --engine vllm --engine-url {url}" in ran.err
        assert "needs 49,152 tokens" in ran.err


def test_unknown_model_error_lists_the_served_ones(running: Running, tmp_path: Path) -> None:
    """Then a new server would be started for the model."""
    port = running.url.rpartition(":")[2]
    ran = launch(tmp_path, "pi", "--print", "--model", "typo", DOVETAIL_HTTP_PORT=port)
    assert (ran.status, ran.out) == (1, "")
    assert f"{running.url} does not serve 'typo'; it serves '{NAME}'\n" in ran.err
    assert ran.err.endswith("start one with: dovetail serve typo\n")


class _Other(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _other_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
