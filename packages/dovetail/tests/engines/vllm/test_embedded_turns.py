"""Exact turns with the embedded vLLM, checked by the ids that it gets and returns.

As `test_turns.py`, which has vLLM's API server between: the weights are random, and the sessions
are tool loops at temperature 1, whose calls end by themselves.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import recording_embedded
from recording_embedded import RECORD_VARIABLE, RecordedGeneration, read_generations
from sdk_conversations import APIS, TurnResult, start_conversation
from server_process import Running, served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import ENVIRONMENT, NAME, PYTHON, REAL

pytestmark = REAL

BLOCK = 32
SESSIONS, TURNS = 6, 8


@dataclass(frozen=True)
class Recorded:
    """A server with the file in which its engine records generations."""

    server: Running
    file: Path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("recorded")
    file = folder / "generations"
    model = tiny_qwen3(folder / NAME)
    options = [f"python={os.environ[PYTHON]}", "dtype=float32", "enforce_eager=true"]
    options += [f"block_size={BLOCK}", "max_num_seqs=32"]
    flags = [part for one in options for part in ("--engine-option", one)]
    environment = {
        **ENVIRONMENT,
        RECORD_VARIABLE: str(file),
        "PYTHONPATH": str(Path(recording_embedded.__file__).parent),
    }
    engine = f"{recording_embedded.__name__}:create"
    with served(model, "--engine", engine, *flags, environment=environment) as server:
        yield Recorded(server, file)


def run_session(server: Running, number: int) -> list[TurnResult]:
    conversation = start_conversation(server, APIS[number % 3], NAME, f"s{number}", limit=200)
    turns = [conversation.send(f"Session {number}.", must_call=True)]
    while len(turns) < TURNS:
        turns.append(conversation.send_result(f"Result {len(turns)}: é 漢字 🦜", must_call=True))
    return turns


def continues(before: RecordedGeneration, after: RecordedGeneration) -> bool:
    """Return whether a prompt begins with the one before and the ids that vLLM returned for it.

    The template writes the token that ends a turn itself.
    """
    known = before.prompt + before.generated[:-1]
    return after.prompt[: len(known)] == known


def test_turns_at_temperature_one(recorded: Recorded) -> None:
    with ThreadPoolExecutor(SESSIONS) as threads:
        shown = list(threads.map(lambda n: run_session(recorded.server, n), range(SESSIONS)))
    found = [read_generations(recorded.file, f"s{number}") for number in range(SESSIONS)]
    assert [len(one) for one in found] == [TURNS] * SESSIONS
    for generations in found:
        for before, after in pairwise(generations):
            assert continues(before, after)
            whole = len(before.prompt) + len(before.generated) - 1
            assert (after.cached or 0) >= whole // BLOCK * BLOCK
    for turns, generations in zip(shown, found, strict=True):
        for turn, one in zip(turns, generations, strict=True):
            assert (one.constrained, one.finish, len(turn.calls)) == (True, "stop", 1)
            numbers = (len(one.prompt), len(one.generated), one.cached)
            assert (turn.input, turn.output, turn.cached) == numbers
    assert len({tuple(one.generated) for generations in found for one in generations}) > TURNS
