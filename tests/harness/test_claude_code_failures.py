"""Engine failures under the real Claude Code, and their effect on its work.

Every call adds a line to a file and returns the number of lines, so that lost or repeated calls are
visible. The scripted model responds to that number, as a real one would.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from claude_code import HEADLESS, claude, ignore_in_git, parse_run
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_process import TIMEOUT_SECONDS, free_port, served
from server_setup import (
    MODEL,
    QWEN3_CODER,
    ServerSetup,
    call,
    create_model_folder,
    server_setup,
    text,
    think,
    turns,
)

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
PROMPT = "Write lines."
GO_ON = "Go on."


def line(word: str) -> OutputBlock:
    return call("Bash", command=f"echo {word} >> lines.txt; wc -l < lines.txt", description="Add")


FIRST: Sequence[OutputBlock] = (think("One line."), line("eins"))
PAIR: Sequence[OutputBlock] = (think("Now two more."), line("zwei"), think("And…"), line("drei"))
LAST: Sequence[OutputBlock] = (think("One is missing."), line("drei"))
DONE: Sequence[OutputBlock] = (think("All there."), text("Three lines."))


def script(**broken: Any) -> dict[str, Any]:
    """Respond by the number of lines. The turn with two calls fails once, as specified."""
    pair = FAMILY.spell(*PAIR)
    one_line = {"regex": r"\n1\n</tool_response>\s*<\|im_end\|>\s*<\|im_start\|>assistant\s*$"}
    rules = [
        {"when": {"text": "\n3\n</tool_response>", "tail": 80}, **turns(FAMILY, DONE)[0]},
        {"when": {"text": "\n2\n</tool_response>", "tail": 80}, **turns(FAMILY, LAST)[0]},
        {"when": {"text": f"user\n{GO_ON}", "tail": 80}, **turns(FAMILY, PAIR)[0]},
        {"when": {"text": "was cut off mid-stream", "tail": 400}, **turns(FAMILY, PAIR)[0]},
        {"when": one_line, **turns(FAMILY, PAIR)[0]},
        {"when": {"text": "Now two more.", "tail": 300}, **turns(FAMILY, PAIR)[0]},
    ]
    failing = [{"when": one_line, "times": 1, "text": pair, **broken}] if broken else []
    return {"rules": [*failing, *rules], "turns": turns(FAMILY, FIRST)}


@pytest.mark.parametrize(
    ("after", "output"),
    [
        # No output: an HTTP error, which the client retries.
        pytest.param(0, "", id="before"),
        # No complete block: the client retries without streaming.
        pytest.param(3, "<think>\nNow", id="in reasoning"),
        # The first call has run: the client continues with its result.
        pytest.param(60, "</think>\n\n<tool_call>\n<function", id="in a marker"),
        pytest.param(
            90,
            "wc -l < lines.txt\n</parameter>\n<parameter=description>\nAdd",
            id="in the second call",
        ),
    ],
)
def test_claude_code_survives_a_failure(
    after: int, output: str, sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server(script(fail={"after": after})) as server:
        assert claude(sandbox, server.url, PROMPT).result == "Three lines."
    assert setup.generations[1].output_text.endswith(output)
    _has_three(sandbox)
    # Later prompts need not contain what the client dropped of the failed turn.
    report_run(assert_exact(setup.generations, new=1))


def test_claude_code_continues_after_a_failure(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """A failure between complete reasoning and a complete call can end the client's run.

    It does in 2.1.197, whether the stream ends with an error or is interrupted; the session can be
    resumed. Later versions report the interruption to the model.
    """
    ignore_in_git(sandbox, "lines.txt")
    setup = server_setup(tmp_path / "server", FAMILY)
    with setup.server(script(fail={"after": 30, "message": "the lights went out"})) as server:
        ran = sandbox.run("claude", server.url, "-p", PROMPT, *HEADLESS)
        ended = parse_run(ran)
        if ran.status:
            assert "the lights went out" in str(ended.events[-1]["result"])
            assert (sandbox.work / "lines.txt").read_text() == "eins\n"
            ended = claude(sandbox, server.url, GO_ON, "--continue")
        assert ended.result == "Three lines."
    _has_three(sandbox)
    report_run(assert_exact(setup.generations, new=1))


def test_claude_code_survives_an_engine_crash(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """The engine is another process, crashes in the middle of a call and is started again.

    The server waits for it and continues with the next token: the client does not notice.
    """
    setup = server_setup(tmp_path / "server", FAMILY)
    create_model_folder(FAMILY, setup.folder / "model", setup.window)
    port = free_port()
    dying = script(die=40, delay={"between": 0.01})
    with _engine(setup, port, dying) as engine, _server(setup, port) as url:
        with sandbox.start("claude", url, "-p", PROMPT, *HEADLESS) as client:
            engine.wait(TIMEOUT_SECONDS)
            with _engine(setup, port, script()):
                out, err = client.communicate(timeout=TIMEOUT_SECONDS)
        assert client.returncode == 0, f"{out} {err}"
    _has_three(sandbox)
    # The server tests a new engine with its own prompts of a few tokens.
    requests = [one for one in setup.generations if len(one.prompt) > 1_000]
    _, broken, rest, _ = requests
    assert rest.prompt == broken.prompt + broken.output
    assert broken.output_text + rest.output_text == FAMILY.spell(*PAIR) + FAMILY.eos[0]
    report_run(assert_exact(requests, new=1, cold=[2]))


def _has_three(sandbox: Sandbox) -> None:
    assert (sandbox.work / "lines.txt").read_text() == "eins\nzwei\ndrei\n"


@contextmanager
def _engine(
    setup: ServerSetup, port: int, script_: dict[str, Any]
) -> Iterator["subprocess.Popen[str]"]:
    """Run the scripted engine as a separate process, in place of a vLLM server."""
    path = setup.folder / "script.json"
    path.write_text(json.dumps(script_))
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(path)]
    command += ["--model", str(setup.folder / "model"), "--served-model-name", MODEL]
    command += ["--port", str(port), "--record", str(setup.folder / "record.jsonl"), "--continues"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("scripted engine: ")
            yield process
        finally:
            process.terminate()


@contextmanager
def _server(setup: ServerSetup, port: int) -> Iterator[str]:
    setup.data.mkdir()
    with served(
        *("--engine", "vllm", "--engine-url", f"http://127.0.0.1:{port}"),
        *("--tokenizer", str(setup.folder / "model"), "--served-model-name", MODEL),
        *("--tool-call-parser", FAMILY.tool_parser, "--data-dir", str(setup.data)),
        *("--reasoning-parser", FAMILY.reasoning_parser),
        home=setup.data,
    ) as running:
        yield running.url
