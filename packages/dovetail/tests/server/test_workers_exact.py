"""Sessions whose turns reach different workers: each worker knows the turns of the others."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import pytest
from redis_server import RedisServer
from server_process import Running
from workers_fixture import Chat, numbers, serve_with_workers, wait_until

TURNS = 10
AT_ONCE = 4


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


def play(folder: Path, store: str, sessions: int) -> None:
    """Run many concurrent sessions, with a separate connection for each turn."""
    with serve_with_workers(folder, "--store", store) as running:
        chats = [Chat(running, f"{at}") for at in range(sessions)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            exact = list(threads.map(lambda chat: chat.turns(TURNS), chats))
        assert exact == [[True] * TURNS] * sessions
        taken = numbers(running, "dovetail_requests_total")
        assert sum(taken.values()) == sessions * TURNS
        # Half of the turns reached a worker that had not generated the previous turn.
        assert all(count > sessions * TURNS / 4 for count in taken.values())
        assert len(taken) == 2


def test_turn_is_known_to_all_workers_when_its_end_arrives(tmp_path: Path) -> None:
    play(tmp_path, "sqlite", 8)


@pytest.mark.long
def test_turn_is_known_to_all_workers_over_redis(tmp_path: Path, redis: RedisServer) -> None:
    play(tmp_path, redis.url, 8)


@pytest.mark.long
def test_redis_hangs_crashes_and_recovers(tmp_path: Path, redis: RedisServer) -> None:
    with serve_with_workers(tmp_path, "--store", redis.url) as running:
        idle, busy = ([Chat(running, f"{kind}{at}") for at in range(4)] for kind in "ab")
        assert all(all(chat.turns(3)) for chat in (*idle, *busy))
        assert redis.process is not None
        redis.process.send_signal(signal.SIGSTOP)
        for chat in busy:
            chat.turns(2)  # each gets a response, exact or not
        redis.process.send_signal(signal.SIGCONT)
        wait_until(lambda: exact_again(running))
        assert all(all(chat.turns(3)) for chat in idle)  # turns stored before are found
        wait_until(
            lambda: all(all(chat.turns(3)) for chat in busy)
        )  # the turns generated meanwhile are stored
        redis.stop()
        for chat in busy:
            chat.turns(2)
        redis.start()  # it has no data any more
        wait_until(lambda: exact_again(running))
        for chat in busy:
            chat.turns(2)


def exact_again(running: Running) -> bool:
    """Whether new sessions are exact on all workers."""
    chats = [Chat(running, f"{number}") for number in islice(NUMBERS, 4)]
    return all(all(chat.turns(4)) for chat in chats)


NUMBERS = count(1000)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_thousand_turns_without_a_miss(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    play(tmp_path, "sqlite" if kind == "sqlite" else redis.url, 200)
