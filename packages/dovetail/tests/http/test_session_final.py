"""`x-dynamo-session-final`: the request after which nothing is held for its session."""

from pathlib import Path
from typing import Any

from background_fixture import two_workers
from http_fixture import NAME, Reply, Stage, run, serving

BODY: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "Hello there, all of you."}],
}


async def _send(stage: Stage, session: str, **headers: str) -> Reply:
    reply = await stage.request(
        "POST",
        "/v1/messages",
        BODY,
        x_dynamo_session_id=session,
        x_dovetail_debug="prefix",
        **headers,
    )
    assert reply.status == 200
    return reply


def test_last_request_of_a_session_releases_what_is_held_for_it() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for session in ("one", "other"):
                assert "x-dovetail-prefix-reason" in (await _send(stage, session)).headers
            again = await _send(stage, "one", x_dynamo_session_final="true")
            assert "x-dovetail-prefix-reason" not in again.headers  # still known
            assert [one.ends_session for one in stage.engine.requests] == [False, False, True]
            reply = await _send(stage, "one")
            assert reply.headers["x-dovetail-prefix-reason"] == "first"
            assert "x-dovetail-prefix-reason" not in (await _send(stage, "other")).headers

    run(scene)


def test_session_that_is_final_from_the_start() -> None:
    async def scene() -> None:
        async with serving() as stage:
            for _ in range(2):
                reply = await _send(stage, "one", x_dynamo_session_final="1")
                assert reply.headers["x-dovetail-prefix-reason"] == "first"

    run(scene)


def test_other_workers_release_the_session_too(tmp_path: Path) -> None:
    async def scene() -> None:
        async with two_workers(tmp_path) as (first, second):
            for session in ("one", "other"):
                await _send(second, session)
            await _send(first, "one", x_dynamo_session_final="true")
            await first.app.service.release_in_peers.__self__.close()  # type: ignore[attr-defined]
            reply = await _send(second, "one")
            assert reply.headers["x-dovetail-prefix-reason"] == "first"
            assert "x-dovetail-prefix-reason" not in (await _send(second, "other")).headers

    run(scene)
