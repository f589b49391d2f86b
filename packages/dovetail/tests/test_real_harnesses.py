"""The real Claude Code and the real Codex in a whole tool loop against a real server.

The model alone is scripted: it thinks, calls, thinks and calls again. What is asserted is what the
harness did (its tools really ran) and what the server saw: each prompt begins with the one before
it and with what was generated behind it, to the token, though the harness rewrote what it replays.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harnesses_at_hand import claude_code, codex
from models_at_hand import TOKENIZERS

MODEL = "some-org/some-model"
SAID = re.compile(r"input=(\d+) output=(\d+) cached=(\d+).*prefix=\"prefix: (\d+) of")

FIRST = """<think>
I look at the folder first.
</think>

<tool_call>
<function={tool}>
<parameter={key}>
cd {folder} && ls
</parameter>
</function>
</tool_call>"""
SECOND = """<think>
Now I write it.
</think>

I will write it.

<tool_call>
<function={tool}>
<parameter={key}>
echo grüße > out.txt
</parameter>
</function>
</tool_call>
<think>
And look at it.
</think>
<tool_call>
<function={tool}>
<parameter={key}>
cat out.txt
</parameter>
</function>
</tool_call>"""
LAST = "<think>\nDone.\n</think>\n\nThe file says grüße."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if not (TOKENIZERS / "qwen3").is_dir():
        pytest.skip("no tokenizer at hand: make tokenizers")
    model = tmp_path / "model"
    shutil.copytree(TOKENIZERS / "qwen3", model)
    (model / "config.json").write_text('{"max_position_embeddings": 200000}')
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    return tmp_path


def test_claude_code_runs_a_tool_loop_on_exact_turns(folder: Path) -> None:
    with _server(folder, tool="Bash", key="command") as (address, log):
        done = claude_code(folder, address, MODEL, "Greet")
        result = json.loads(done.splitlines()[-1])
        assert (result["subtype"], result["result"]) == ("success", "The file says grüße.")
        _was_exact(folder, log)


def test_codex_runs_a_tool_loop_on_exact_turns(folder: Path) -> None:
    with _server(folder, tool="exec_command", key="cmd") as (address, log):
        done = codex(folder, address, MODEL, "Greet")
        assert "The file says grüße." in done
        _was_exact(folder, log)


def _was_exact(folder: Path, log: Path) -> None:
    """The tools ran, and each of the three prompts goes on from the last one and its turn."""
    assert (folder / "work" / "out.txt").read_text() == "grüße\n"
    turns = [tuple(map(int, found)) for found in SAID.findall(log.read_text())]
    assert len(turns) == 2  # the first prompt has none before it
    first = re.search(r"input=(\d+) output=(\d+)", log.read_text())
    assert first is not None
    before = int(first[1]) + int(first[2]) - 1  # without the token that ended the turn
    for prompt, generated, cached, kept in turns:
        assert kept == before
        assert cached == kept - kept % 16  # whole blocks of the engine's cache
        before = prompt + generated - 1


@contextmanager
def _server(folder: Path, tool: str, key: str) -> Iterator[tuple[str, Path]]:
    turns = [
        {"text": text.format(tool=tool, key=key, folder=folder / "work")}
        for text in (FIRST, SECOND, LAST)
    ]
    script, log = folder / "script.yaml", folder / "log.txt"
    script.write_text(json.dumps({"turns": turns}))
    command = [sys.executable, "-m", "dovetail", "serve", str(folder / "model")]
    command += ["--engine", "scripted", "--script", str(script), "--served-model-name", MODEL]
    command += ["--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3", "--log-prefix"]
    command += ["--http-port", "0", "--data-dir", str(folder / "data")]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = next(
                (
                    found[1]
                    for line in server.stdout
                    if (found := re.search(r" at (http\S+)", line))
                ),
                None,
            )
            assert address is not None, log.read_text()
            yield address, log
        finally:
            server.terminate()
