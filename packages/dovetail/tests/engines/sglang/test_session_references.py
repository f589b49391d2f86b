"""Sessions of SGLang stay open while they are expected back, and are closed after that."""

import asyncio
from array import array

from fake_clock_loop import run_jumping
from sglang_fixture import PATHS, SERVER_INFO, FakeSglang, generate, make_request, running

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sglang.session_references import (
    IDLE_SECONDS,
    PREDICTION_SECONDS,
    SessionReferences,
)

WITH_REFERENCES = {**PATHS, "/server_info": {**SERVER_INFO, "enable_session_radix_cache": True}}


def request(id: str, session: str | None = "s", *, ends_session: bool = False) -> EngineRequest:
    return EngineRequest(id, array("I", [1]), 1, session=session, ends_session=ends_session)


class Server:
    """Records when which session is closed, in virtual time."""

    def __init__(self) -> None:
        self.closed: list[tuple[str, float]] = []
        self.references = SessionReferences(
            lambda session: self.closed.append((session, asyncio.get_running_loop().time()))
        )

    async def run(self, one: EngineRequest, seconds: float = 1.0) -> None:
        self.references.start(one)
        await asyncio.sleep(seconds)
        self.references.finish(one)


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


def test_nothing_is_closed_after_a_stop() -> None:
    async def scene() -> list[tuple[str, float]]:
        server = Server()
        await server.run(request("r"))
        server.references.stop()
        await asyncio.sleep(2 * IDLE_SECONDS)
        return server.closed

    assert run_jumping(scene()) == []


def closed_sessions(server: FakeSglang) -> list[str]:
    """Run the session "s", which is not expected back, and one that ends."""

    async def main() -> None:
        async with running(server) as engine:
            await generate(engine, make_request(3, session="s"))
            engine.retain("r", 0.0)
            await generate(engine, make_request(3, session="ended", ends_session=True))
            await asyncio.sleep(0)  # timers that are due
            await asyncio.sleep(0)
            await engine._control.wait()

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
