"""Sessions of SGLang stay open while they are expected back, and are closed after that."""

import asyncio
import logging
from array import array

import pytest
from fake_clock_loop import run_jumping
from scripted_fixture import TOKENIZER
from sglang_fixture import (
    PATHS,
    SERVER_INFO,
    FakeSglang,
    generate,
    listening,
    make_request,
    running,
)

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sglang import SglangEngine
from dovetail.engines.sglang.control import ControlClient
from dovetail.engines.sglang.session_references import (
    IDLE_SECONDS,
    PREDICTION_SECONDS,
    STOP_SECONDS,
    SessionReferences,
)
from dovetail.net.http_client import Endpoint
from dovetail_model import EngineUnavailable

WITH_REFERENCES = {**PATHS, "/server_info": {**SERVER_INFO, "enable_session_radix_cache": True}}


def request(id: str, session: str | None = "s", *, ends_session: bool = False) -> EngineRequest:
    return EngineRequest(id, array("I", [1]), 1, session=session, ends_session=ends_session)


class Server:
    """Records when which session is closed, in virtual time."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, float]] = []
        self.references = SessionReferences(self.close)
        self.responds = True
        self.hangs = False

    async def close(self, session: str) -> bool:
        if self.hangs:
            await asyncio.sleep(1e9)
        if self.responds:
            self.closed.append((session, asyncio.get_running_loop().time()))
        return self.responds

    async def run(self, one: EngineRequest, seconds: float = 1.0) -> None:
        with self.references.track(one):
            await asyncio.sleep(seconds)


def test_session_is_closed_when_it_is_no_longer_expected_back() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.retain("r", 5.0)
        server.references.retain("unknown", 50.0)
        await asyncio.sleep(100.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 6.0)]


def test_session_that_returns_in_time_stays_open() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        for number in range(20):
            await server.run(request(f"r{number}"))
            server.references.retain(f"r{number}", 5.0)
            await asyncio.sleep(4.0)
        assert server.closed == []
        await server.run(request("long"), 50.0)
        assert server.closed == []
        server.references.retain("long", 0.0)
        await asyncio.sleep(1.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 150.0)]


def test_conversations_of_a_session_keep_it_open_for_each_other() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("main"))
        server.references.retain("main", 30.0)
        await server.run(request("subagent"))
        server.references.retain("subagent", 0.0)
        long = asyncio.create_task(server.run(request("other"), 60.0))
        await asyncio.sleep(50.0)
        assert server.closed == []
        await long
        server.references.retain("other", 2.0)
        await asyncio.sleep(100.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 64.0)]


def test_prefill_of_the_next_prompt_does_not_change_the_prediction() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.retain("r", 40.0)
        await server.run(request("prefilled"))
        await asyncio.sleep(100.0)
        await server.run(request("r2"))
        server.references.retain("r2", 3.0)
        await server.run(request("prefilled 2"))
        await asyncio.sleep(100.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 41.0), ("s", 104.0 + PREDICTION_SECONDS)]


def test_prefill_after_a_session_was_closed_closes_it_again() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.retain("r", 0.0)
        await asyncio.sleep(0.5)
        assert server.closed == [("s", 1.0)]
        await server.run(request("prefilled"))
        await asyncio.sleep(1000.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 1.0), ("s", 2.5 + PREDICTION_SECONDS)]


def test_session_without_a_prediction_is_closed_when_it_was_idle_for_long() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        await server.run(request("no session", session=None))
        await asyncio.sleep(2 * IDLE_SECONDS)
        return server.closed

    assert run_jumping(scene()) == [("s", 1.0 + IDLE_SECONDS)]


def test_ended_session_is_closed_once_its_last_request_has_ended() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.retain("r", 500.0)
        other = asyncio.create_task(server.run(request("other"), 20.0))
        await server.run(request("last", ends_session=True))
        server.references.retain("last", 500.0)
        assert server.closed == []
        await other
        server.references.retain("other", 0.0)
        await asyncio.sleep(1.0)
        await server.run(request("again", ends_session=True))
        await asyncio.sleep(1.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 21.0), ("s", 23.0)]


def test_stop_closes_all_open_sessions_and_discards_the_predictions() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.retain("r", 30.0)
        await server.run(request("no prediction", "t"))
        running = asyncio.create_task(server.run(request("running", "u"), 5.0))
        await asyncio.sleep(1.0)
        await server.references.stop()
        assert server.closed == [("s", 3.0), ("t", 3.0), ("u", 3.0)]
        await running
        server.references.retain("running", 50.0)
        await asyncio.sleep(2 * IDLE_SECONDS)
        assert len(server.closed) == 3
        await server.run(request("later"))  # the earlier prediction does not apply
        await asyncio.sleep(IDLE_SECONDS - 1.0)
        return server.closed[3:]

    assert run_jumping(scene()) == []


def test_request_from_before_a_stop_does_not_close_a_session_that_is_in_use_again() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        before = asyncio.create_task(server.run(request("before", ends_session=True), 5.0))
        await asyncio.sleep(1.0)
        await server.references.stop()
        after = asyncio.create_task(server.run(request("after"), 20.0))
        await before
        await after
        server.references.retain("after", 3.0)
        await asyncio.sleep(100.0)
        return server.closed

    assert run_jumping(scene()) == [("s", 1.0), ("s", 24.0)]


def test_stop_does_not_wait_for_a_server_that_hangs() -> None:
    async def scene() -> float:
        server = Server()
        server.hangs = True
        for number in range(100):
            await server.run(request(f"r{number}", f"s{number}"), 0.0)
        await server.references.stop()
        return asyncio.get_running_loop().time()

    assert run_jumping(scene()) == STOP_SECONDS


@pytest.mark.parametrize("hangs", [True, False])
def test_sessions_that_could_not_be_closed_are_closed_with_the_next_one(hangs: bool) -> None:
    async def scene() -> list[str]:
        server = Server()
        server.hangs = hangs
        server.responds = False
        for session in "abc":
            await server.run(request(session, session))
        await server.references.stop()
        assert server.closed == []
        server.hangs, server.responds = False, True
        await server.run(request("again", "b"), 100.0)  # it is open, and in use
        server.references.retain("again", 50.0)
        await server.run(request("other", "d"))
        server.references.retain("other", 0.0)
        await asyncio.sleep(1.0)
        assert sorted(session for session, _ in server.closed) == ["a", "c", "d"]
        await asyncio.sleep(100.0)
        return [session for session, _ in server.closed[3:]]

    assert run_jumping(scene()) == ["b"]


def closed_sessions(server: FakeSglang) -> list[str]:
    """Run the session "s", which is not expected back, and one that ends."""

    async def main() -> None:
        async with running(server) as engine:
            await generate(engine, make_request(3, session="s"))
            engine.retain("r", 0.0)
            await generate(engine, make_request(3, session="ended", ends_session=True))
            await asyncio.sleep(0)  # timers that are due
            await asyncio.sleep(0)
            if (closing := engine._references._closing) is not None:
                await closing
            assert server.closed_sessions == (["s", "ended"] if closing is not None else [])

    asyncio.run(main())
    return server.closed_sessions


def test_server_that_evicts_open_sessions_last_learns_which_are_not_expected_back() -> None:
    server = FakeSglang(paths=WITH_REFERENCES)
    assert closed_sessions(server) == ["s", "ended"]
    assert [one["session_id"] for one in server.requests] == ["s", "ended"]


def test_other_servers_receive_no_such_requests() -> None:
    assert closed_sessions(FakeSglang()) == []


def test_server_that_refuses_to_close_sessions_continues_to_work() -> None:
    assert closed_sessions(FakeSglang(paths=WITH_REFERENCES, close_status=404)) == ["s", "ended"]


def test_engine_that_stops_closes_its_sessions() -> None:
    server = FakeSglang(paths=WITH_REFERENCES)

    async def main() -> None:
        async with running(server) as engine:
            await generate(engine, make_request(3, session="s"))
            engine.retain("r", 600.0)
            await engine.stop()
            assert server.closed_sessions == ["s"]
            with pytest.raises(EngineUnavailable, match="not running"):
                await generate(engine, make_request(3, session="t"))
            await engine.start()
            await generate(engine, make_request(3, session="u"))

    asyncio.run(main())
    assert server.closed_sessions == ["s", "u"]


def test_engine_stops_if_its_server_is_gone() -> None:
    async def main() -> None:
        async with listening(FakeSglang(paths=WITH_REFERENCES)) as endpoint:
            engine = SglangEngine(endpoint, TOKENIZER)
            await engine.start()
            for number in range(50):
                await generate(engine, make_request(3, session=f"s{number}"))
        async with asyncio.timeout(10):
            await engine.stop()

    asyncio.run(main())


def test_log_contains_the_beginning_of_a_long_session_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    control = ControlClient(Endpoint("127.0.0.1", 1))
    assert not asyncio.run(control.close_session("s" * 100_000))
    (record,) = caplog.records
    assert record.message == "session_close_failed"
    assert len(record.__dict__["fields"]["session"]) == 200
