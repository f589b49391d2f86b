"""Engines that fail under the real Claude Code, and what becomes of its work.

Every call adds a line to a file and tells how many there are: what was lost or done twice would be
seen. The scripted model goes by that number, as a real one would.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from claude_code import HEADLESS, claude, hide, told
from exactness import Tell, was_exact
from sandbox import Sandbox
from server_process import TIMEOUT_SECONDS, free_port, served
from stage import MODEL, QWEN3_CODER, Stage, call, lay_out, say, stage, think, turns

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
DONE: Sequence[OutputBlock] = (think("All there."), say("Three lines."))


def script(**broken: Any) -> dict[str, Any]:
    """Answers by the number of lines. The turn with two calls breaks off once, as is said."""
    pair = FAMILY.spell(*PAIR)
    told_one = {"regex": r"\n1\n</tool_response>\s*<\|im_end\|>\s*<\|im_start\|>assistant\s*$"}
    answers = [
        {"when": {"text": "\n3\n</tool_response>", "tail": 80}, **turns(FAMILY, DONE)[0]},
        {"when": {"text": "\n2\n</tool_response>", "tail": 80}, **turns(FAMILY, LAST)[0]},
        {"when": {"text": f"user\n{GO_ON}", "tail": 80}, **turns(FAMILY, PAIR)[0]},
        {"when": {"text": "was cut off mid-stream", "tail": 400}, **turns(FAMILY, PAIR)[0]},
        {"when": told_one, **turns(FAMILY, PAIR)[0]},
        {"when": {"text": "Now two more.", "tail": 300}, **turns(FAMILY, PAIR)[0]},
    ]
    failing = [{"when": told_one, "times": 1, "text": pair, **broken}] if broken else []
    return {"rules": [*failing, *answers], "turns": turns(FAMILY, FIRST)}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        # Nothing was said: an HTTP error, which the client tries again.
        pytest.param(0, "", id="before"),
        # No block was whole: the client asks again, without streaming.
        pytest.param(3, "<think>\nNow", id="in the thought"),
        # The first call has run: the client goes on with its result.
        pytest.param(60, "</think>\n\n<tool_call>\n<function", id="in a marker"),
        pytest.param(
            90,
            "wc -l < lines.txt\n</parameter>\n<parameter=description>\nAdd",
            id="in the second call",
        ),
    ],
)
def test_claude_code_survives_a_failure(
    after: int, said: str, place: Sandbox, tmp_path: Path, tell: Tell
) -> None:
    where = stage(tmp_path / "stage", FAMILY)
    with where.server(script(fail={"after": after})) as server:
        assert claude(place, server.url, PROMPT).result == "Three lines."
    assert where.heard[1].output_text.endswith(said)
    _has_three(place)
    # What the client did not take of the turn that failed need not stand in later prompts.
    tell(was_exact(where.heard, new=1))


def test_claude_code_goes_on_after_a_failure(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    """Broken off between a whole thought and a whole call, a turn can end the client's run.

    It does in 2.1.197, whether the stream ends with an error or is cut, and the session can be gone
    on with. Later versions tell the model that it was cut off.
    """
    hide(place, "lines.txt")
    where = stage(tmp_path / "stage", FAMILY)
    with where.server(script(fail={"after": 30, "message": "the lights went out"})) as server:
        ran = place.run("claude", server.url, "-p", PROMPT, *HEADLESS)
        ended = told(ran)
        if ran.status:
            assert "the lights went out" in str(ended.events[-1]["result"])
            assert (place.work / "lines.txt").read_text() == "eins\n"
            ended = claude(place, server.url, GO_ON, "--continue")
        assert ended.result == "Three lines."
    _has_three(place)
    tell(was_exact(where.heard, new=1))


def test_claude_code_outlives_an_engine(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    """The engine is another process, dies in the middle of a call and is started again.

    The server waits for it, and goes on with the very token: the client does not notice.
    """
    where = stage(tmp_path / "stage", FAMILY)
    lay_out(FAMILY, where.folder / "model", where.window)
    port = free_port()
    dying = script(die=40, delay={"between": 0.01})
    with _engine(where, port, dying) as engine, _server(where, port) as url:
        with place.start("claude", url, "-p", PROMPT, *HEADLESS) as client:
            engine.wait(TIMEOUT_SECONDS)
            with _engine(where, port, script()):
                out, err = client.communicate(timeout=TIMEOUT_SECONDS)
        assert client.returncode == 0, f"{out} {err}"
    _has_three(place)
    # The server tries a new engine with prompts of its own, of a few tokens.
    asked = [one for one in where.heard if len(one.prompt) > 1_000]
    _, broken, rest, _ = asked
    assert rest.prompt == broken.prompt + broken.output
    assert broken.output_text + rest.output_text == FAMILY.spell(*PAIR) + FAMILY.eos[0]
    tell(was_exact(asked, new=1, cold=[2]))


def _has_three(place: Sandbox) -> None:
    assert (place.work / "lines.txt").read_text() == "eins\nzwei\ndrei\n"


@contextmanager
def _engine(where: Stage, port: int, played: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    """The scripted engine as a process of its own, in place of a vLLM server."""
    path = where.folder / "played.json"
    path.write_text(json.dumps(played))
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(path)]
    command += ["--model", str(where.folder / "model"), "--served-model-name", MODEL]
    command += ["--port", str(port), "--record", str(where.folder / "record.jsonl"), "--continues"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("scripted engine: ")
            yield process
        finally:
            process.terminate()


@contextmanager
def _server(where: Stage, port: int) -> Iterator[str]:
    where.data.mkdir()
    with served(
        *("--engine", "vllm", "--engine-url", f"http://127.0.0.1:{port}"),
        *("--tokenizer", str(where.folder / "model"), "--served-model-name", MODEL),
        *("--tool-call-parser", FAMILY.tool_parser, "--data-dir", str(where.data)),
        *("--reasoning-parser", FAMILY.reasoning_parser),
        home=where.data,
    ) as running:
        yield running.url
