"""Every worker process shows the sessions of all: two applications on one peer channel."""

from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from http_fixture import Stage, run, serving
from simulated_sessions import SimulatedSession

from dovetail.http.options import HttpOptions
from dovetail.server.peer_responses import join_peers
from dovetail.telemetry.record import RequestContents


def test_every_worker_shows_the_requests_of_all() -> None:
    async def scene() -> None:
        async with AsyncExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="dv")))
            stages: list[Stage] = []
            for number in range(2):
                stage = await stack.enter_async_context(serving(HttpOptions(ui=True)))
                await stack.enter_async_context(join_peers(stage.app, folder, number, 2))
                stages.append(stage)
            total = record_turns(stages)
            for stage in stages:
                await check_stage(stage, total)

    run(scene)


def record_turns(stages: list[Stage]) -> int:
    """Let the workers serve the turns of one session in turn. Returns their output tokens."""
    session, total = SimulatedSession("shared"), 0
    for number in range(5):
        data = stages[number % 2].app.ui
        turn = session.turn(100.0 + 20 * number)
        assert data is not None
        assert turn.usage is not None
        data.record_request(turn, RequestContents())
        total += turn.usage.output_tokens
    return total


async def check_stage(stage: Stage, total: int) -> None:
    overview = (await stage.request("GET", "/ui/api/overview")).json
    assert overview["workers"] == 2
    assert overview["totals"]["requests"] == 5
    assert overview["totals"]["output_tokens"] == total
    assert len(overview["replicas"]) == 1
    page = (await stage.request("GET", "/ui/api/sessions")).json
    assert page["count"] == 1
    assert [(one["id"], one["requests"]) for one in page["sessions"]] == [("shared", 5)]
    view = (await stage.request("GET", "/ui/api/session?id=shared")).json
    assert [turn["begin"] for turn in view["turns"]] == [0.0, 20.0, 40.0, 60.0, 80.0]
    assert len(view["waits"]) == 4
