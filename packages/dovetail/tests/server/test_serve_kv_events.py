"""Servers with `--kv-events` in front of two real vLLM servers.

A second server that starts later knows the caches from the events only: it has no session homes and
has sent no prompts.
"""

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kv_fleet import (
    REAL,
    KvFleet,
    KvServer,
    Turn,
    assistant,
    random_text,
    running_index,
    running_kv_fleet,
    user,
)
from kv_replicas import BLOCK_TOKENS, expected_cached_tokens
from redis_server import RedisServer
from server_process import free_port

pytestmark = REAL
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvFleet]:
    with running_kv_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The flags of servers that share their turns."""
    key = tmp_path_factory.mktemp("store") / "seal.key"
    key.write_text("00" * 32)
    key.chmod(0o600)
    server = RedisServer()
    server.start()
    yield ["--store", server.url, "--seal-key-file", str(key)]
    server.remove()


def start_session(server: KvServer, dice: random.Random, name: str | None) -> tuple[Messages, Turn]:
    """Send the first turn of a session. Returns the history with its response."""
    messages = [user(random_text(dice, 500))]
    turn = server.send(messages, name)
    return [*messages, assistant(turn.reply)], turn


def test_sessions_forks_and_resumes_go_to_their_prefix(fleet: KvFleet, store: list[str]) -> None:
    dice = random.Random(1)
    with fleet.serve("first", *fleet.events, *store) as first:
        first.receive_events()
        started = [start_session(first, dice, name) for name in "abcd"]
        assert {turn.replica for _, turn in started} == {0, 1}
        with fleet.serve("second", *fleet.events, *store) as second:
            second.receive_events()
            for name, (history, home) in zip("abcd", started, strict=True):
                following = [*history, user("Continue.")]
                for server, session in ((first, name), (first, f"fork-{name}"), (second, None)):
                    turn = server.send(following, session, is_last=session != name)
                    assert (turn.replica, turn.is_cached) == (home.replica, True), (session, turn)


def test_indexes_of_two_frontends_agree(fleet: KvFleet, tmp_path: Path) -> None:
    """Each subscribes to all replicas. Both predict the cached tokens that vLLM reports."""
    dice, sessions = random.Random(2), list[list[int]]()
    with ExitStack() as stack:
        indexes = [stack.enter_context(running_index(fleet, tmp_path / name)) for name in "ab"]
        for number in range(40):
            prompt = list(dice.choice(sessions)) if number > 6 and dice.random() < 0.7 else []
            prompt = (prompt + random_ids(dice, dice.randrange(40, 400)))[:3000]
            replica = dice.choice(fleet.replicas)
            before = [index.find(prompt) for index in indexes]
            cached, output = replica.generate(prompt, dice.randrange(1, 40))
            sessions.append(prompt + output)
            for index in indexes:
                index.await_blocks(replica.number, sessions[-1])
            if number > 6:  # events of both replicas have arrived
                assert before[0] == before[1]
                blocks = before[0].get(replica.number, 0) // BLOCK_TOKENS
                assert expected_cached_tokens(prompt, blocks) == cached
        found = [[index.find(session) for session in sessions] for index in indexes]
        assert found[0] == found[1]
        assert {replica for overlaps in found[0] for replica in overlaps} == {0, 1}


def test_indexes_recover_from_a_restart(fleet: KvFleet, store: list[str]) -> None:
    """One server sends requests while the replica is down. The other one does not notice it."""
    dice = random.Random(3)
    with (
        fleet.serve("busy", *fleet.events, *store) as busy,
        fleet.serve("idle", *fleet.events, *store) as idle,
    ):
        for server in (busy, idle):
            server.receive_events()
        fleet.stop(1)
        while not busy.logged("replica_failed"):
            _, turn = start_session(busy, dice, f"down-{dice.random()}")
            assert turn.replica == 0
        fleet.start(1)
        busy.await_log("replica_recovered")
        for server in (busy, idle):
            server.receive_events(3)
        used = set()
        for number in range(8):
            history, turn = start_session(busy, dice, f"up-{number}")
            resumed = idle.send([*history, user("Continue.")], f"fork-{number}", is_last=True)
            assert (resumed.replica, resumed.is_cached) == (turn.replica, True)
            used.add(turn.replica)
        assert used == {0, 1}


def test_wrong_block_size(fleet: KvFleet) -> None:
    with fleet.serve("size", *fleet.events, "--kv-block-size", "16") as server:
        rejected = server.await_log("kv_events_rejected", 2)
        for line in rejected:
            assert "blocks of 32 tokens, but the index has blocks of 16" in line["reason"]
            assert "--kv-block-size" in line["reason"]
        check_approximate_index(server)


def test_unreachable_events_and_replicas_without_an_address(fleet: KvFleet) -> None:
    url = fleet.replicas[0].vllm.url
    address = f"tcp://127.0.0.1:{free_port()}"
    with fleet.serve("reach", "--kv-events", f"{url}={address}") as server:
        (missing,) = server.await_log("kv_events_missing")
        assert missing["url"] == url
        assert f"{address} is not reachable" in missing["reason"]
        (rejected,) = server.await_log("kv_events_rejected")
        assert rejected["url"] == fleet.replicas[1].vllm.url
        assert f"--kv-events has no address for it, only for {url}" in rejected["reason"]
        check_approximate_index(server)


def check_approximate_index(server: KvServer) -> None:
    """Requests are served, and forks are routed by what the server sent."""
    metrics = server.running.request("GET", "/metrics").body.decode()
    assert re.search(r'dovetail_kv_index_replicas{.*source="events"} 0.0', metrics)
    dice = random.Random(server.trace.parent.name)
    started = [start_session(server, dice, name) for name in "ab"]
    assert {turn.replica for _, turn in started} == {0, 1}
    for history, turn in started:
        fork = server.send([*history, user("Continue.")], "fork", is_last=True)
        assert (fork.replica, fork.is_cached) == (turn.replica, True)


def random_ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(1000, 100_000) for _ in range(count)]
