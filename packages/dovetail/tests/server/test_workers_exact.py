"""Turn after turn on whichever process takes it: each knows what another has just said."""

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
    """Many sessions at once, with a connection of its own for each turn."""
    with serve_with_workers(folder, "--store", store) as running:
        chats = [Chat(running, f"{at}") for at in range(sessions)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            exact = list(threads.map(lambda chat: chat.turns(TURNS), chats))
        assert exact == [[True] * TURNS] * sessions
        taken = numbers(running, "dovetail_requests_total")
        assert sum(taken.values()) == sessions * TURNS
        # Turns were spread over both; half of them came to a process that had not said the last.
        assert all(count > sessions * TURNS / 4 for count in taken.values())
        assert len(taken) == 2


def test_a_turn_is_known_everywhere_as_soon_as_its_end_is_seen(tmp_path: Path) -> None:
    play(tmp_path, "sqlite", 8)


@pytest.mark.long
def test_the_same_over_redis(tmp_path: Path, redis: RedisServer) -> None:
    play(tmp_path, redis.url, 8)


@pytest.mark.long
def test_redis_hangs_dies_and_comes_back(tmp_path: Path, redis: RedisServer) -> None:
    with serve_with_workers(tmp_path, "--store", redis.url) as running:
        idle, busy = ([Chat(running, f"{kind}{at}") for at in range(4)] for kind in "ab")
        assert all(all(chat.turns(3)) for chat in (*idle, *busy))
        assert redis.process is not None
        redis.process.send_signal(signal.SIGSTOP)
        for chat in busy:
            chat.turns(2)  # each is answered, be it exact or not
        redis.process.send_signal(signal.SIGCONT)
        wait_until(lambda: exact_again(running))
        assert all(all(chat.turns(3)) for chat in idle)  # what was kept before is there
        wait_until(
            lambda: all(all(chat.turns(3)) for chat in busy)
        )  # the turns of meanwhile follow
        redis.stop()
        for chat in busy:
            chat.turns(2)
        redis.start()  # it knows nothing any more
        wait_until(lambda: exact_again(running))
        for chat in busy:
            chat.turns(2)


def exact_again(running: Running) -> bool:
    """Whether new sessions are known on all workers."""
    chats = [Chat(running, f"{number}") for number in islice(NUMBERS, 4)]
    return all(all(chat.turns(4)) for chat in chats)


NUMBERS = count(1000)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_thousand_turns_without_a_miss(kind: str, tmp_path: Path, redis: RedisServer) -> None:
    play(tmp_path, "sqlite" if kind == "sqlite" else redis.url, 200)
