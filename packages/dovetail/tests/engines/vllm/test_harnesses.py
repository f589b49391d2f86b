"""The real Claude Code through Dovetail on a real vLLM, put together by one command.

The weights are random: what they say is noise, never ends and calls no tool. So Claude Code is told
that answers are short, asks for more a few times as it does where an answer was cut, and gives up.
What is seen: prompts of its size go through, and each goes on from the last one and its turn.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from harness_programs import claude_code
from server_process import Running, served
from vllm_environment import NAME, REAL, shared_vllm

pytestmark = REAL
LIMIT = 24  # tokens of an answer
BLOCK = 32
_LINE = re.compile(r"endpoint=messages status=200.*? input=(\d+) output=(\d+) cached=(\d+)")


@pytest.fixture(scope="module")
def front(pytestconfig: pytest.Config) -> Iterator[Running]:
    with served("--engine", "vllm", "--engine-url", shared_vllm(pytestconfig).url) as running:
        yield running


def test_claude_code(front: Running, tmp_path: Path) -> None:
    for name in ("work", "home"):
        (tmp_path / name).mkdir()
    limit = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(LIMIT)}
    done = claude_code(tmp_path, front.url, NAME, "Hello", status=1, **limit)
    assert (
        f"exceeded the {LIMIT} output token maximum" in json.loads(done.splitlines()[-1])["result"]
    )
    requests = [tuple(map(int, found)) for found in _LINE.findall(front.log.read_text())]
    session = [one for one in requests if one[0] > 10_000]
    assert len(session) > 2
    for (before, generated, _), (prompt, _, cached) in pairwise(session):
        assert generated <= LIMIT
        assert prompt > before
        assert cached >= (before - 1) // BLOCK * BLOCK  # whatever the template drops of the turn
