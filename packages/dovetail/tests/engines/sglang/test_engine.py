"""The adapter for SGLang with a fake server."""

import asyncio
from array import array
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import pytest
from scripted_fixture import END, TOKENIZER, ids
from sglang_fixture import (
    PATHS,
    SERVER_INFO,
    FakeSglang,
    event,
    frames,
    generate,
    listening,
    make_request,
    running,
)

from dovetail.engines.engine import EngineRequest
from dovetail.engines.sglang import SglangEngine
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import Endpoint
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineTimeout,
    EngineUnavailable,
    InvalidRequest,
)

TEXT = "é漢🦜 and more"


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.parametrize("repeats", [True, False])
def test_generate(repeats: bool) -> None:
    async def main() -> None:
        server = FakeSglang((*ids(TEXT), END), repeats=repeats)
        async with running(server) as engine:
            deltas = await generate(engine, make_request())
        output_ids = [id for delta in deltas for id in delta.ids]
        assert output_ids == [*ids(TEXT), END]
        assert TOKENIZER.decode(output_ids[:-1]) == TEXT
        assert [delta.cached for delta in deltas if delta.cached is not None] == [1]
        assert deltas[-1].finish == "stop"
        assert server.aborted == []
        assert "authorization: bearer k" in server.headers[-1].lower()

    run(main())


def test_concurrent_requests_are_independent() -> None:
    async def main() -> None:
        server = FakeSglang()
        async with running(server) as engine:
            outputs = await asyncio.gather(
                *(generate(engine, make_request(20 + n)) for n in range(16))
            )
        for n, deltas in enumerate(outputs):
            assert sum(len(delta.ids) for delta in deltas) == 20 + n
        rids = [request["rid"] for request in server.requests]
        assert len(set(rids)) == 16
        # SGLang aborts every request whose id begins with the given one.
        assert not [a for a in rids for b in rids if a != b and b.startswith(a)]
        assert all(rid.endswith("-r") for rid in rids)

    run(main())


def test_cancelling_closes_the_connection_and_aborts() -> None:
    async def main() -> None:
        server = FakeSglang(halt=1)
        async with running(server) as engine:
            async with aclosing(iter_deltas(engine, make_request())) as deltas:
                await anext(deltas)
            await server.disconnected.wait()
            await server.abort_received.wait()
        assert server.aborted == [server.requests[0]["rid"]]

    run(main())


def test_cancelling_a_waiting_task_aborts() -> None:
    async def main() -> None:
        server = FakeSglang(halt=1)
        begun = asyncio.Event()

        async def listen(engine: SglangEngine) -> None:
            async for _ in iter_deltas(engine, make_request()):
                begun.set()

        async with running(server) as engine:
            task = asyncio.create_task(listen(engine))
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.abort_received.wait()
        assert server.aborted == [server.requests[0]["rid"]]

    run(main())


def test_turn_truncated_by_the_adapter_is_aborted() -> None:
    """Test with a server that ignores `stop_token_ids`, as routers do."""

    async def main() -> None:
        parts = [[97], [END], [98], [99]]
        sent = [event(frame) for frame in frames(parts, {"type": "length"}, repeats=False)]
        server = FakeSglang(script=sent, halt=3)
        async with running(server) as engine:
            deltas = await generate(engine, make_request())
            assert [id for delta in deltas for id in delta.ids] == [97, END]
            await server.abort_received.wait()
        assert server.aborted == [server.requests[0]["rid"]]

    run(main())


def test_aborts_are_not_sent_to_a_server_without_them() -> None:
    async def main() -> None:
        server = FakeSglang(halt=1, abort_status=404)
        async with running(server) as engine:
            for _ in range(3):
                async with aclosing(iter_deltas(engine, make_request())) as deltas:
                    await anext(deltas)
                await server.abort_received.wait()
                await engine._control.wait()
        assert len(server.aborted) == 1

    run(main())


def test_stop_aborts_running_requests() -> None:
    async def main() -> None:
        server = FakeSglang(halt=1)
        async with (
            running(server) as engine,
            aclosing(iter_deltas(engine, make_request())) as deltas,
        ):
            await anext(deltas)
            await engine.stop()
            assert server.aborted == [server.requests[0]["rid"]]
            with pytest.raises(EngineUnavailable, match="not running"):
                await anext(deltas)
            with pytest.raises(EngineUnavailable, match="not running"):
                await generate(engine, make_request())
            assert not (await engine.health()).ready

    run(main())


class Stuck(FakeSglang):
    """A server that hangs: it accepts connections and never responds."""

    def _abort(self, rid: str) -> None:
        self.aborted.append(rid)


def test_stop_does_not_wait_for_a_hung_server() -> None:
    async def main() -> None:
        server = Stuck(halt=1)
        async with (
            running(server) as engine,
            aclosing(iter_deltas(engine, make_request())) as deltas,
        ):
            await anext(deltas)
            waiting = asyncio.ensure_future(anext(deltas))
            await engine.stop()
            with pytest.raises(EngineUnavailable, match="not running"):
                await asyncio.wait_for(waiting, 10)

    run(main())


def test_requests_before_a_stop_do_not_continue_after_a_start() -> None:
    async def main() -> None:
        server = FakeSglang()
        async with (
            running(server) as engine,
            aclosing(iter_deltas(engine, make_request())) as deltas,
        ):
            await anext(deltas)
            await engine.stop()
            await engine.start()
            with pytest.raises(EngineUnavailable, match="not running"):
                await anext(deltas)
            assert (await generate(engine, make_request(5)))[-1].finish == "length"

    run(main())


PLAIN = [event(frame) for frame in frames([[97], [98]], {"type": "length"}, repeats=True)]
NO_ROOM = {"error": {"message": "The input (2 tokens) is longer than the model's context length"}}
FAILURES: list[tuple[str, FakeSglang, type[DovetailError], str]] = [
    ("too long", FakeSglang(status=400, rejection=NO_ROOM), ContextOverflow, "longer than"),
    ("refused", FakeSglang(status=400, rejection={"error": "no"}), InvalidRequest, "rejected"),
    (
        "disconnected",
        FakeSglang(script=PLAIN[:1]),
        EngineUnavailable,
        "before the output was complete",
    ),
    (
        "ended early",
        FakeSglang(script=[PLAIN[0], b"data: [DONE]\n\n"]),
        EngineUnavailable,
        "finish reason",
    ),
    (
        "no path",
        FakeSglang(status=404, rejection={}),
        EngineUnavailable,
        "does not have this model or path",
    ),
]


@pytest.mark.parametrize(
    ("server", "kind", "words"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_failures(server: FakeSglang, kind: type[DovetailError], words: str) -> None:
    async def main() -> None:
        async with running(server) as engine:
            with pytest.raises(kind, match=words):
                await generate(engine, make_request())
            assert server.aborted == []

    run(main())


def test_read_timeout() -> None:
    async def main() -> None:
        server = FakeSglang(halt=1)
        async with running(server, silence=0.05) as engine:
            with pytest.raises(EngineTimeout, match="sent no data"):
                await generate(engine, make_request())
            await server.abort_received.wait()

    run(main())


def test_no_server() -> None:
    async def main() -> None:
        async with listening(FakeSglang()) as endpoint:
            pass
        engine = SglangEngine(Endpoint(endpoint.host, endpoint.port), TOKENIZER)
        with pytest.raises(EngineUnavailable, match="no connection"):
            await engine.start()
        assert (await engine.health()).detail == "not started"

    run(main())


@pytest.mark.parametrize(
    ("gone", "path"),
    [((), "/ready"), (("/ready",), "/model_info"), (("/ready", "/model_info"), "/health")],
)
def test_health_uses_the_cheapest_path(gone: tuple[str, ...], path: str) -> None:
    async def main() -> None:
        known = {**PATHS, "/health": {}}
        server = FakeSglang(paths={name: known[name] for name in known if name not in gone})
        async with running(server) as engine:
            assert (await engine.health()).ready
        assert server.headers[-1].startswith(f"GET {path} ")

    run(main())


def test_capabilities_are_those_of_the_server() -> None:
    async def main() -> None:
        info = {**SERVER_INFO, "grammar_backend": "outlines", "max_req_input_len": 10}
        server = FakeSglang(
            paths={**PATHS, "/server_info": info | {"enable_priority_scheduling": True}}
        )
        async with running(server) as engine:
            assert engine.capabilities.constraints == ("json_schema",)
            assert engine.capabilities.context_length == 10
            assert engine.capabilities.cached_tokens
            with pytest.raises(ContextOverflow, match="10 tokens > 9 maximum"):
                await generate(engine, EngineRequest("r", array("I", range(10)), 1))
            await generate(engine, make_request(5, priority=4))
        assert server.requests[-1]["priority"] == 4

    run(main())
