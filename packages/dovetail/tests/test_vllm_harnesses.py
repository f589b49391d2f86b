"""The real Claude Code and the real Codex through Dovetail on a real vLLM.

Its weights are random, so what it says is noise and no tool is called; what is seen is that the
one command of the documentation is enough, that prompts of the clients' size go through, and that
the second run of each finds the first one's prompt cached.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harnesses_at_hand import claude_code, codex
from served import Running, served
from vllm_at_hand import NAME, REAL, Vllm, shared_vllm

pytestmark = REAL
_LINE = re.compile(r"endpoint=(\w+) status=(\d+).*?input=(\d+) output=(\d+)(?: cached=(\d+))?")


@pytest.fixture(scope="module")
def front(request: pytest.FixtureRequest) -> Iterator[Running]:
    """The command of the documentation. Short answers, because noise has no end."""
    vllm: Vllm = shared_vllm(request.config)
    with served("--engine", "vllm", "--engine-url", vllm.url) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    return tmp_path


def _requests(front: Running, endpoint: str) -> list[tuple[int, int, int]]:
    """Prompt, answer and cached tokens of each request that was answered."""
    found = _LINE.findall(front.log.read_text())
    return [
        (int(asked), int(said), int(cached or 0))
        for where, status, asked, said, cached in found
        if where == endpoint and status == "200"
    ]


def test_claude_code(front: Running, folder: Path) -> None:
    for _ in range(2):
        done = claude_code(folder, front.url, NAME, "Hello", CLAUDE_CODE_MAX_OUTPUT_TOKENS="24")
        result = json.loads(done.splitlines()[-1])
        assert result["type"] == "result"
        shutil.rmtree(folder / "home")
        (folder / "home").mkdir()
    asked = [one for one in _requests(front, "messages") if one[0] > 10_000]
    assert len(asked) >= 2
    assert all(said <= 24 for _, said, _ in asked)
    prompt, _, cached = asked[-1]
    assert cached > 0.9 * prompt  # the billing line differs, and is not in the prompt


def test_codex(front: Running, folder: Path) -> None:
    for _ in range(2):
        codex(folder, front.url, NAME, "Hello")
    asked = [one for one in _requests(front, "responses") if one[0] > 3000]
    assert len(asked) >= 2
    prompt, _, cached = asked[-1]
    assert cached > 0.9 * prompt
