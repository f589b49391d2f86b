"""One rate limit store for several real processes, some of which crash or hang."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from server_process import NAME, qwen_folder, served

from dovetail.access.limits import RateLimiter, RateLimitExceeded, RateLimits
from dovetail.access.shared_limits import (
    SharedLimitStore,
    SharedLimitStoreError,
    create_shared_limit_store,
)
from dovetail_model import Usage

KEY = bytes([7]) * 32
NOW = 1e9  # a stopped clock, by which no slot is idle
AT_ONCE = RateLimits(concurrent=4)

_HEAD = """
import sys, time
from pathlib import Path
from dovetail.access.limits import RateLimiter, RateLimitExceeded, RateLimits
from dovetail.access.shared_limits import SharedLimitStore
from dovetail_model import Usage
store = SharedLimitStore(Path(sys.argv[1]), int(sys.argv[2]))
limiter = RateLimiter(store, lambda: 1e9)
key = bytes([7]) * 32
print("ready", flush=True)
sys.stdin.readline()
"""
MANY = """
from dovetail.access import shared_limits
shared_limits._LOCK_TIMEOUT_SECONDS = 60.0  # also on a busy machine
let_in = 0
for _ in range(300):
    try:
        limiter.acquire(key, RateLimits(requests=500, tokens=10**6)).release(Usage(output_tokens=1))
        let_in += 1
    except RateLimitExceeded:
        pass
print(let_in, flush=True)
"""
STAYS = """
limiter.acquire(key, RateLimits(concurrent=4))
print("inside", flush=True)
sys.stdin.readline()
"""
HOLDS = """
with store.lock(key):
    print("holds", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create_shared_limit_store(tmp_path / "book", workers=4)
    return tmp_path / "book"


@contextmanager
def process(path: Path, worker: int, act: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that opens the store as one worker and acts on each line it receives."""
    command = [sys.executable, "-c", _HEAD + act, str(path), str(worker)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert _line(running) == "ready"
            yield running
        finally:
            running.kill()


def _line(running: "subprocess.Popen[str]") -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def _go(running: "subprocess.Popen[str]") -> None:
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()


def test_processes_share_every_limit(path: Path) -> None:
    """No more requests are admitted than by a single process, and no token is uncharged."""
    with (
        process(path, 0, MANY) as one,
        process(path, 1, MANY) as two,
        process(path, 2, MANY) as three,
    ):
        for running in (one, two, three):
            _go(running)
        assert sum(int(_line(running)) for running in (one, two, three)) == 500
    [requests, tokens] = RateLimiter(SharedLimitStore(path, 3), lambda: NOW).status(
        KEY, RateLimits(requests=500, tokens=10**6)
    )
    assert (requests.remaining, tokens.remaining) == (0, 10**6 - 500)


def test_restarted_worker_resets_the_counts_of_its_predecessor(
    path: Path,
) -> None:
    ours = RateLimiter(SharedLimitStore(path, 0), lambda: NOW)
    ours.acquire(KEY, AT_ONCE)
    with process(path, 1, STAYS) as first, process(path, 2, STAYS) as second:
        for running in (first, second):
            _go(running)
            assert _line(running) == "inside"
        ours.acquire(KEY, AT_ONCE)
        with pytest.raises(RateLimitExceeded):
            ours.acquire(KEY, AT_ONCE)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        with process(path, 1, STAYS) as again:
            ours.acquire(KEY, AT_ONCE)  # the number of the killed process
            with pytest.raises(RateLimitExceeded):
                ours.acquire(KEY, AT_ONCE)
            assert again.poll() is None


def test_hanging_process_with_the_lock_does_not_block_others(path: Path) -> None:
    ours = RateLimiter(SharedLimitStore(path, 0), lambda: NOW)
    with process(path, 1, HOLDS) as stuck:
        _go(stuck)
        assert _line(stuck) == "holds"
        os.kill(stuck.pid, signal.SIGSTOP)
        ours.acquire(KEY, RateLimits(requests=1))
        with pytest.raises(RateLimitExceeded):
            ours.acquire(KEY, RateLimits(requests=1))


def test_more_keys_than_slots(tmp_path: Path) -> None:
    """The state of an active key is kept as long as there is an idle slot nearby."""
    create_shared_limit_store(tmp_path / "small", workers=1, slots=128)
    book = SharedLimitStore(tmp_path / "small", 0)
    real = RateLimiter(book)  # by the real clock, so its slots become idle immediately
    stored = RateLimiter(book, lambda: NOW)
    stored.acquire(KEY, RateLimits(requests=1))
    for at in range(2000):
        limits = RateLimits(concurrent=1)
        real.acquire(at.to_bytes(4, "big") * 8, limits).release(Usage())
    with pytest.raises(RateLimitExceeded):
        stored.acquire(KEY, RateLimits(requests=1))


def test_request_is_admitted_if_no_slot_is_idle(tmp_path: Path) -> None:
    create_shared_limit_store(tmp_path / "small", workers=1, slots=16)
    quota = RateLimiter(SharedLimitStore(tmp_path / "small", 0), lambda: NOW)
    visits = [
        quota.acquire(at.to_bytes(32, "little"), RateLimits(requests=5, concurrent=1))
        for at in range(1, 100)
    ]
    for visit in visits:
        visit.release(Usage(output_tokens=1))


def test_file_is_private(path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600
    create_shared_limit_store(path, workers=1)  # a restarted server starts with an empty store
    with pytest.raises(SharedLimitStoreError):
        SharedLimitStore(path, 1)


def test_other_files_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 100)
    with pytest.raises(SharedLimitStoreError):
        SharedLimitStore(tmp_path / "other", 0)
    (tmp_path / "short").write_bytes(b"")
    with pytest.raises(SharedLimitStoreError):
        SharedLimitStore(tmp_path / "short", 0)


@pytest.mark.long
def test_workers_of_a_server_share_the_limits_of_a_key(tmp_path: Path) -> None:
    (tmp_path / "hello.txt").write_text("Hello.")
    model: list[str | Path] = [qwen_folder(tmp_path / "qwen"), "--served-model-name", NAME]
    script: list[str | Path] = ["--engine", "scripted", "--script", tmp_path / "hello.txt"]
    limits = ["--workers", "2", "--rate-limit-requests", "2"]
    body = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}]}
    with (
        served(*model, *script, *limits) as running,
        ThreadPoolExecutor(4) as crowd,
    ):
        request = [
            crowd.submit(running.request, "POST", "/v1/chat/completions", body) for _ in range(16)
        ]
        assert sorted(one.result().status for one in request) == [200] * 2 + [429] * 14
