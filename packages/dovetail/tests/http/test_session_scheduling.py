"""`--session-scheduling auto` in a server: waiting turns, releases, metrics, `/admin/sessions`."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from http_fixture import NAME, head, run, service, serving
from returning_sessions import suspend
from scheduling_fixture import ADMIN, CAPACITY, SLOW, TEXT, body, scheduling, send, wait_until

from dovetail.access.auth import ApiKeys
from dovetail.http.options import HttpOptions
from dovetail.pipeline.scheduled_turn import begin_turn, is_background, urgency
from dovetail.routing.session_admission import SessionAdmission
from dovetail_model import Hints, Identity, Request, TextBlock, Turn


def test_turns_that_do_not_fit_wait_and_are_shown() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            first = asyncio.create_task(send(stage, "one"))
            await wait_until(lambda: stage.engine.running)
            second = asyncio.create_task(send(stage, "two"))
            await wait_until(lambda: sessions.has_waiting_turns(0))
            assert len(stage.engine.requests) == 1
            listed = (await stage.request("GET", "/admin/sessions", x_api_key=ADMIN)).json
            (model,) = listed["models"]
            states = {one["session"].split("#")[0]: one for one in model["sessions"]}
            assert states["one"]["status"] == "running"
            assert states["one"]["tokens"] > len(TEXT)
            assert states["two"]["status"] == "paused"
            assert states["two"]["waiting_seconds"] >= 0
            (replica,) = model["replicas"]
            assert replica["capacity_tokens"] == CAPACITY
            assert (replica["running_turns"], replica["waiting_turns"]) == (1, 1)
            assert replica["suspended"] is False
            assert replica["prefill_tokens_per_second"] is None  # not measured yet
            assert stage.metric("dovetail_sessions", model=NAME, state="running") == 1
            assert stage.metric("dovetail_sessions", model=NAME, state="paused") == 1
            go_on.set()
            await asyncio.gather(first, second)
            assert len(stage.engine.requests) == 2
            assert stage.metric("dovetail_session_wait_seconds_count", model=NAME) == 2
            assert stage.metric("dovetail_session_wait_seconds_sum", model=NAME) > 0
            capacity = {"model": NAME, "replica": "0"}
            assert stage.metric("dovetail_session_capacity_tokens", **capacity) == CAPACITY

    run(scene)


def test_suspension_is_shown() -> None:
    """Sessions that never return before their places are given up."""

    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            go_on.set()
            await send(stage, "first")
            ((_, scheduler),) = sessions.schedulers()
            suspend(scheduler)
            await asyncio.gather(*(send(stage, f"s{number}") for number in range(4)))
            assert stage.metric("dovetail_session_wait_seconds_sum", model=NAME) == 0
            replica = {"model": NAME, "replica": "0"}
            assert stage.metric("dovetail_session_scheduling_suspended", **replica) == 1
            listed = (await stage.request("GET", "/admin/sessions", x_api_key=ADMIN)).json
            (listed_replica,) = listed["models"][0]["replicas"]
            assert listed_replica["suspended"] is True
            assert listed_replica["prefill_tokens_per_second"] == 100

    run(scene)


def test_expired_waits_of_removed_replicas_are_counted() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, _go_on):
            sessions.add_replica(1, "stage", None)
            scheduler = dict(sessions.schedulers())[1]
            scheduler.counters.forced = 3
            assert stage.metric("dovetail_session_waits_expired_total", model=NAME) == 3
            sessions.remove_replica(1)
            assert stage.metric("dovetail_session_waits_expired_total", model=NAME) == 3

    run(scene)


def test_returns_after_tool_calls_are_predicted() -> None:
    async def scene() -> None:
        async with scheduling(100_000) as (stage, _sessions, go_on):
            go_on.set()
            for _ in range(6):
                await send(stage, "one")
            # After three observations the time of `bash` is known.
            count = stage.metric("dovetail_tool_time_actual_seconds_count", model=NAME)
            assert count >= 1
            assert stage.metric("dovetail_tool_time_predicted_seconds_count", model=NAME) == count
            between = [
                stage.metric("dovetail_sessions", model=NAME, state=state)
                for state in ("held", "idle")
            ]
            assert sum(between) == 1

    run(scene)


def test_final_request_frees_the_place_at_once() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            go_on.set()
            await send(stage, "one")
            assert len([*sessions.sessions()]) == 1  # it is expected back from its tool
            await send(stage, "one", x_dynamo_session_final="true")
            assert not [*sessions.sessions()]

    run(scene)


@pytest.mark.parametrize("waits", [False, True], ids=["running", "waiting"])
def test_disconnect_frees_the_place_at_once(waits: bool) -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            other = asyncio.create_task(send(stage, "other")) if waits else None
            await wait_until(lambda: not waits or stage.engine.running)
            _, writer = await stage.connect()
            sent = json.dumps(body(stream=True)).encode()
            headers = {"x_dynamo_session_id": "one", "x_api_key": ADMIN}
            writer.write(head("POST", "/v1/messages", len(sent), headers) + sent)
            await wait_until(lambda: len([*sessions.sessions()]) == 1 + waits)
            writer.close()
            await wait_until(lambda: len([*sessions.sessions()]) == waits)
            assert not sessions.has_waiting_turns(0)
            go_on.set()
            if other is not None:
                await other
                assert len(stage.engine.requests) == 1

    run(scene)


def test_disconnect_of_a_final_request_frees_all_places_of_the_session() -> None:
    async def scene() -> None:
        async with scheduling(600, limits=SLOW) as (stage, sessions, go_on):
            go_on.set()
            await send(stage, "one")
            go_on.clear()
            other = asyncio.create_task(send(stage, "other"))
            await wait_until(lambda: stage.engine.running)
            _, writer = await stage.connect()
            sent = json.dumps(body(stream=True, system=TEXT)).encode()
            headers = {"x_dynamo_session_id": "one", "x_api_key": ADMIN}
            headers["x_dynamo_session_final"] = "true"
            writer.write(head("POST", "/v1/messages", len(sent), headers) + sent)
            await wait_until(lambda: sessions.has_waiting_turns(0))
            assert len([*sessions.sessions()]) == 3
            writer.close()
            await wait_until(lambda: len([*sessions.sessions()]) == 1)
            go_on.set()
            await other

    run(scene)


def test_subagent_does_not_wait_for_the_session_that_waits_for_it() -> None:
    async def scene() -> None:
        async with scheduling(400, limits=SLOW) as (stage, sessions, go_on):
            go_on.set()
            await send(stage, "one")  # it ends with a tool call
            ((_, caller),) = sessions.sessions()
            assert caller.status == "held"
            headers = {"x_dynamo_session_id": "one", "x_api_key": ADMIN}
            subagent = body(system="A subagent.")
            reply = await stage.request("POST", "/v1/messages", subagent, **headers)
            assert reply.status == 200
            assert sessions.stats.waits.sum == 0

    run(scene)


def test_stream_of_a_waiting_turn_is_opened() -> None:
    async def scene() -> None:
        async with scheduling(start_timeout_seconds=0.01) as (stage, sessions, go_on):
            first = asyncio.create_task(send(stage, "one"))
            await wait_until(lambda: stage.engine.running)
            client = stage.anthropic(key=ADMIN, default_headers={"x-dynamo-session-id": "two"})
            async with client.messages.stream(**body_without_stream()) as stream:
                opened = await anext(stream.__aiter__())
                assert opened.type == "message_start"
                assert sessions.has_waiting_turns(0)  # it still waits
                go_on.set()
                message = await stream.get_final_message()
            assert message.stop_reason == "tool_use"
            await first

    run(scene)


def body_without_stream() -> dict[str, Any]:
    fields = body()
    del fields["stream"]
    return fields


def test_subagents_have_sessions_of_their_own() -> None:
    async def scene() -> None:
        async with scheduling(100_000) as (stage, sessions, go_on):
            go_on.set()
            await send(stage, "one")
            named = {"x_dynamo_session_id": "one", "x_api_key": ADMIN}
            schema = {"type": "object", "properties": {}}
            tools = [{"name": "search", "input_schema": schema}]
            other = [{"role": "user", "content": "Search for tests."}]
            subagents = body(system="You search files."), body(tools=tools), body(messages=other)
            for subagent in subagents:
                await stage.request("POST", "/v1/messages", subagent, **named)
            keys = {state.session for _, state in sessions.sessions()}
            assert len(keys) == 4
            assert {key.split("#")[0] for key in keys} == {"one"}
            await send(stage, "one", x_dynamo_session_final="true")
            assert not [*sessions.sessions()]

    run(scene)


@pytest.mark.parametrize("named", [{}, {"x_dynamo_session_id": "one"}], ids=["unnamed", "named"])
def test_conversation_is_recognized_from_its_first_turn_on(named: dict[str, str]) -> None:
    async def scene() -> None:
        async with scheduling(100_000) as (stage, sessions, go_on):
            go_on.set()
            history: list[dict[str, Any]] = [{"role": "user", "content": TEXT}]
            for _ in range(2):
                fields = body(messages=history)
                headers = {"x_api_key": ADMIN, **named}
                reply = await stage.request("POST", "/v1/messages", fields, **headers)
                (state,) = [one for _, one in sessions.sessions()]
                history.append({"role": "assistant", "content": reply.json["content"]})
                (call,) = [one for one in reply.json["content"] if one["type"] == "tool_use"]
                result = {"type": "tool_result", "tool_use_id": call["id"], "content": "a"}
                history.append({"role": "user", "content": [result]})
            assert state.status in ("held", "idle")

    run(scene)


def test_adapters_have_places_of_their_own() -> None:
    async def scene() -> None:
        registry, _ = service()
        entry = next(registry.base_models())
        request = Request(
            NAME, (Turn("user", (TextBlock("Hello."),)),), identity=Identity(session="a")
        )
        prepared = await entry.preparer.prepare(request)
        sessions = SessionAdmission(1000)
        profiles = [
            begin_turn(sessions, one, prepared).profile
            for one in (entry, replace(entry, adapter="fine-tuned"))
        ]
        assert profiles[0].session == profiles[1].session
        assert profiles[0].branch != profiles[1].branch

    run(scene)


def test_sessions_of_a_server_without_scheduling_are_not_listed() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=ApiKeys([ADMIN]))) as stage:
            reply = await stage.request("GET", "/admin/sessions", x_api_key=ADMIN)
            assert reply.json == {"models": []}
        async with serving() as stage:
            assert (await stage.request("GET", "/admin/sessions")).status == 403

    run(scene)


def test_hints_order_waiting_turns() -> None:
    ordered = [
        Hints(strict_priority=1, priority=-(2**31)),
        Hints(priority=2**31 - 1),
        Hints(priority=2),
        Hints(priority=1, latency_sensitivity=0.5),
        Hints(priority=1),
        Hints(latency_sensitivity=2.0),
        Hints(latency_sensitivity=0.1),
        Hints(),
    ]
    assert sorted(ordered, key=urgency, reverse=True) == ordered
    assert is_background(Hints(latency_sensitivity=0.0))
    assert not is_background(Hints(latency_sensitivity=0.1))
    assert not is_background(Hints())


def test_background_response_runs_after_turns_for_which_a_client_waits() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            first = asyncio.create_task(send(stage, "one"))
            await wait_until(lambda: stage.engine.running)
            ((_, scheduler),) = sessions.schedulers()
            headers = {"x_dynamo_session_id": "background", "x_api_key": ADMIN}
            fields = {"model": NAME, "input": TEXT, "background": True, "max_output_tokens": 50}
            await stage.request("POST", "/v1/responses", fields, **headers)
            await wait_until(lambda: scheduler.waiting_turns == 1)
            interactive = asyncio.create_task(send(stage, "interactive"))
            await wait_until(lambda: scheduler.waiting_turns == 2)
            go_on.set()
            await asyncio.gather(first, interactive)
            await wait_until(lambda: len(stage.engine.requests) == 3)
            order = [str(one.session).split("/")[-1] for one in stage.engine.requests]
            assert order == ["one", "interactive", "background"]

    run(scene)


def test_latency_sensitive_turn_runs_first() -> None:
    async def scene() -> None:
        async with scheduling() as (stage, sessions, go_on):
            first = asyncio.create_task(send(stage, "one"))
            await wait_until(lambda: stage.engine.running)
            tasks = [first]
            ((_, scheduler),) = sessions.schedulers()
            for number, sensitivity in enumerate((0.0, 0.2, 0.9)):
                hints = {"agent_hints": {"latency_sensitivity": sensitivity}}
                fields = body(nvext=hints)
                headers = {"x_dynamo_session_id": f"s{number}", "x_api_key": ADMIN}
                sent = stage.request("POST", "/v1/chat/completions", fields, **headers)
                tasks.append(asyncio.create_task(sent))
                await wait_until(lambda n=number: scheduler.waiting_turns == n + 1)
            go_on.set()
            await asyncio.gather(*tasks)
            order = [one.session for one in stage.engine.requests]
            assert [str(one)[-2:] for one in order[1:]] == ["s2", "s1", "s0"]

    run(scene)
