"""Thousands of malformed requests to a server of their own: no 500, no hang, constant memory."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from abuse_clients import get, open_files, resident, run_attacks
from abuse_requests import attacks
from server_process import NAME, Running, qwen_folder, served

MANY = 10_000
SERIES = 2_000  # lines of metrics: endpoints, statuses and reasons each have a few values
ROOM = 16 << 20  # bytes that allocators may take from one half of a run to the next


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("abuse")
    qwen_folder(place / "qwen")
    (place / "hello.txt").write_text("<think>\nHm.\n</think>\n\nHello.")
    flags = ("--engine", "scripted", "--script", place / "hello.txt", "--served-model-name", NAME)
    with served(place / "qwen", *flags, "--max-body-bytes", str(1 << 20), home=place) as one:
        yield one


def test_malformed_requests_cause_no_server_errors(running: Running) -> None:
    _throw(running, random.randrange(10**6), 800)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_malformed_requests_leak_nothing(running: Running) -> None:
    """The second half of the requests takes no more memory than the first, and no files."""
    seed = random.randrange(10**6)
    _throw(running, seed, MANY // 2)
    before, files = resident(running.process.pid), open_files(running.process.pid)
    _throw(running, seed + 1, MANY // 2)
    assert resident(running.process.pid) < before + ROOM
    assert open_files(running.process.pid) <= files + 8


def _throw(running: Running, seed: int, count: int) -> None:
    """Send the requests. None may cause a 500, its own log line, or a new metric label."""
    log = Path(running.log)
    before = len(log.read_text())
    results = asyncio.run(run_attacks(running.url, attacks(seed, count, NAME)))
    wrong = [(attack.kind, attack.sent[:600], reply) for attack, reply in results.wrong]
    assert wrong == [], f"seed {seed}"
    assert results.statuses[400] > count / 10, results.statuses
    assert results.statuses[200] > count / 50, results.statuses
    lines = log.read_text()[before:].splitlines()
    assert len(lines) > count / 2
    assert [line for line in lines if not line.startswith("ts=2")] == [], f"seed {seed}"
    status, numbers = get(running.url, "/metrics")
    assert status == 200
    assert len(numbers.splitlines()) < SERIES
