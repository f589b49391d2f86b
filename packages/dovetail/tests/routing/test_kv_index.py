"""Dynamo's index of KV events against the cached tokens that two real vLLM servers report.

vLLM publishes its events within a millisecond after a response, but nothing guarantees that. The
tests therefore wait until the index contains what the last response must have stored.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from dynamo_environment import PYTHON as DYNAMO_PYTHON
from kv_replicas import (
    BLOCK_TOKENS,
    SALT_PREFIX,
    KvIndex,
    KvReplica,
    expected_cached_tokens,
    running_kv_replica,
)
from tiny_qwen3 import tiny_qwen3
from vllm_environment import PYTHON as VLLM_PYTHON

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        DYNAMO_PYTHON is None or VLLM_PYTHON not in os.environ,
        reason="vLLM and Dynamo are required: run make test-fleet",
    ),
]
MAX_TOKENS = 3000
TIMEOUT_SECONDS = 30.0


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[KvReplica]]:
    folder = tmp_path_factory.mktemp("replicas")
    model = tiny_qwen3(folder / "model")
    with ExitStack() as stack:
        yield [
            stack.enter_context(running_kv_replica(number, model, folder / str(number)))
            for number in (1, 2)
        ]


@pytest.fixture(scope="module")
def index(replicas: list[KvReplica], tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvIndex]:
    index = KvIndex(tmp_path_factory.mktemp("index") / "log")
    try:
        for replica in replicas:
            index.add(replica)
        warm_up(index, replicas)
        yield index
    finally:
        index.close()


def warm_up(index: KvIndex, replicas: list[KvReplica]) -> None:
    """Generate until the index receives the events of all replicas."""
    dice = random.Random(1)
    for replica in replicas:
        until = time.monotonic() + TIMEOUT_SECONDS
        stored = 0
        while not stored:
            assert time.monotonic() < until, "no KV event arrives"
            prompt = random_ids(dice, BLOCK_TOKENS + 1)
            replica.generate(prompt, 1)
            time.sleep(0.2)
            stored = index.overlap(prompt)[replica.number]


def random_ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000, 100_000) for _ in range(count)]


def await_blocks(
    index: KvIndex, replica: KvReplica, ids: list[int], salt: str | None = None
) -> None:
    """Wait until the index has all complete blocks of a turn. Its last token is not cached."""
    wanted, until = (len(ids) - 1) // BLOCK_TOKENS, time.monotonic() + TIMEOUT_SECONDS
    while index.overlap(ids, salt)[replica.number] < wanted:
        assert time.monotonic() < until, "the blocks of the last turn are not in the index"
        time.sleep(0.005)


def test_cached_tokens_are_predicted(index: KvIndex, replicas: list[KvReplica]) -> None:
    """Sessions, forks and resumes on both replicas, with more blocks than a cache can hold."""
    dice = random.Random(7)
    sessions: list[list[int]] = []
    predicted, reported = [], []
    for _ in range(60):
        if sessions and dice.random() < 0.75:
            at = dice.randrange(len(sessions))
            prompt = sessions[at]
            if dice.random() < 0.2:  # a fork, or a truncated history
                prompt = prompt[: dice.randrange(BLOCK_TOKENS, len(prompt))]
        else:
            at, prompt = len(sessions), random_ids(dice, dice.randrange(40, 900))
            sessions.append(prompt)
        prompt = (prompt + random_ids(dice, dice.randrange(1, 120)))[:MAX_TOKENS]
        replica = dice.choice(replicas)
        blocks = index.overlap(prompt)[replica.number]
        cached, output = replica.generate(prompt, dice.randrange(1, 60))
        predicted.append(expected_cached_tokens(prompt, blocks))
        reported.append(cached)
        sessions[at] = prompt + output
        await_blocks(index, replica, sessions[at])
    assert predicted == reported
    assert sum(reported) > 5_000  # there was something to predict


def test_salts_separate_caches(index: KvIndex, replicas: list[KvReplica]) -> None:
    """The salt that vLLM receives has a prefix, the salt of the index has none."""
    replica, dice = replicas[0], random.Random(8)
    prompt = random_ids(dice, 5 * BLOCK_TOKENS + 3)
    _, output = replica.generate(prompt, 40, "tenant-a")
    turn = prompt + output
    await_blocks(index, replica, turn, "tenant-a")
    assert index.overlap(turn)[1] == index.overlap(turn, "tenant-b")[1] == 0
    assert index.overlap(turn, SALT_PREFIX + "tenant-a")[1] == 0
    blocks = index.overlap(turn, "tenant-a")[1]
    assert replica.generate(turn, 1, "tenant-a")[0] == expected_cached_tokens(turn, blocks) > 0
    assert replica.generate(turn, 1, "tenant-b")[0] == 0


def test_late_subscriber_receives_earlier_blocks(
    index: KvIndex, replicas: list[KvReplica], tmp_path: Path
) -> None:
    """They are replayed when the first event after the subscription arrives."""
    replica, dice = replicas[1], random.Random(9)
    prompt = random_ids(dice, 6 * BLOCK_TOKENS + 1)
    replica.generate(prompt, 1)
    await_blocks(index, replica, prompt)
    late = KvIndex(tmp_path / "log")
    try:
        late.add(replica)
        assert late.overlap(prompt)[replica.number] == 0
        warm_up(late, [replica])
        await_blocks(late, replica, prompt)
    finally:
        late.close()


def test_wrong_block_size_finds_nothing(
    index: KvIndex, replicas: list[KvReplica], tmp_path: Path
) -> None:
    """The index reports no error, so its user must compare the sizes."""
    replica, dice = replicas[0], random.Random(10)
    wrong = KvIndex(tmp_path / "log")
    try:
        wrong.add(replica, BLOCK_TOKENS // 2)
        for _ in range(3):
            prompt = random_ids(dice, 6 * BLOCK_TOKENS + 1)
            replica.generate(prompt, 1)
            await_blocks(index, replica, prompt)
            assert wrong.overlap(prompt)[replica.number] == 0
    finally:
        wrong.close()
