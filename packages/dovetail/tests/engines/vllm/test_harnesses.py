"""The real Claude Code through Dovetail on a real vLLM, started by one command.

The weights are random: the output is noise, does not end and calls no tool. Claude Code is
therefore configured with a small output limit. It requests more a few times, as it does after a
truncated response, and gives up. The test checks that prompts of its size pass through, and that
each prompt continues the previous one and its turn.
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
LIMIT = 24  # output tokens per response
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
        # regardless of what the template drops of the turn
        assert cached >= (before - 1) // BLOCK * BLOCK
