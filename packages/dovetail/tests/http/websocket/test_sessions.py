"""Conversations over WebSockets: warm-ups, and messages that contain only new items."""

from typing import Any

from http_fixture import CALL, NAME, Stage, run, serving
from websocket_fixture import (
    Event,
    event,
    request_response,
    send_request,
    socket_to,
    text_of,
    until,
)

from dovetail.access.auth import ApiKeys
from dovetail.http.options import HttpOptions, WebSocketOptions
from dovetail.responses.backend import StoredResponse, response_size
from dovetail.responses.connection_cache import ConnectionCache, ConnectionCacheBudget
from dovetail.routing.pool import ReplicaPool

BASE = {"role": "developer", "content": "You are brief, für alle. " * 20}
TOOLS = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}}]
MORE: dict[str, Any] = {"tools": TOOLS, "include": ["reasoning.encrypted_content"]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def ident(events: list[Event]) -> str:
    assert events[-1]["type"] == "response.completed", events
    found: str = events[-1]["response"]["id"]
    return found


async def send(socket: Any, *items: dict[str, Any], after: str | None = None, **more: Any) -> Any:
    """Send a request with these items, as Codex does: not stored, and only new items are sent."""
    return await request_response(
        socket, list(items), previous_response_id=after, **{**MORE, **more}
    )


def prompts(stage: Stage) -> list[str]:
    return [stage.engine.tokenizer.decode(list(one.prompt)) for one in stage.engine.requests]


def test_codex_session() -> None:
    """Each prompt is the previous prompt, its output, and the new items."""

    async def scene() -> None:
        async with serving() as stage:
            reasoning = "<think>\nHm.\n</think>\n\n"
            stage.engine.plan = stage.engine.script("x", f"{reasoning}{CALL}", f"{reasoning}Done.")
            async with socket_to(stage) as socket:
                warm = await send(socket, BASE, generate=False)
                assert warm[0]["type"] == "response.created"
                assert warm[-1]["response"]["output"] == []
                await _read_ahead(stage)
                first = await send(socket, user("Look."), after=ident(warm))
                call = first[-1]["response"]["output"][-1]
                result = {
                    "type": "function_call_output",
                    "call_id": call["call_id"],
                    "output": "Sunny.",
                }
                last = await send(socket, result, after=ident(first))
            assert text_of(last) == "Done."
            assert last[-1]["response"]["previous_response_id"] == ident(first)
            ahead, one, two = (list(request.prompt) for request in stage.engine.requests)
            assert one[: len(ahead)] == ahead
            output_ids = stage.engine.tokenizer.encode(f"{reasoning}{CALL}")
            assert two[: len(one) + len(output_ids)] == one + output_ids
            assert prompts(stage)[2].count("You are brief") == 20
            assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="exact") == 1

    run(scene)


async def _read_ahead(stage: Stage) -> None:
    """Wait until the engine has prefilled the prompt of a warm-up."""
    (served,) = stage.app.service.entries
    pool = served.engine
    assert isinstance(pool, ReplicaPool)
    await until(lambda: pool.warmed_prompts)


def test_warmed_prefix_is_the_beginning_of_every_prompt() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            warm = ident(await send(socket, BASE, generate=False))
            await _read_ahead(stage)
            more = {"role": "developer", "content": "And polite."}
            await send(socket, more, user("Hi."), after=warm)
            await send(socket, user("Hi."), after=warm)
            ahead, *others = (list(one.prompt) for one in stage.engine.requests)
            assert len(ahead) > 400
            assert all(other[: len(ahead)] == ahead for other in others)
            assert stage.engine.requests[0].max_tokens == 1

    run(scene)


def test_warm_up_does_not_depend_on_the_engine() -> None:
    """It gets a response even if the engine is busy, and an error where a request would get one."""

    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            (error,) = await send(socket, BASE, generate=False, model="none")
            assert (error["status"], error["error"]["code"]) == (404, "model_not_found")
            assert ident(await send(socket, BASE, prompt_cache_options={"prewarm": True}))
            usage = (await send(socket, BASE, generate=False))[-1]["response"]["usage"]
            assert (usage["input_tokens"], usage["output_tokens"]) == (0, 0)

    run(scene)


def test_response_that_is_not_stored_is_known_only_to_its_connection() -> None:
    async def scene() -> None:
        async with serving() as stage:
            async with socket_to(stage) as socket, socket_to(stage) as other:
                first = ident(await send(socket, user("Hi.")))
                assert ident(await send(socket, user("Go on."), after=first))
                (error,) = await send(other, user("Go on."), after=first)
                _is_missing(error)
                assert ident(await send(other, user("Alone.")))
            reply = await stage.request("GET", f"/v1/responses/{first}")
            assert reply.status == 404
            async with socket_to(stage) as socket:
                (error,) = await send(socket, user("Go on."), after=first)
                _is_missing(error)

    run(scene)


def _is_missing(error: Event) -> None:
    assert (error["type"], error["status"]) == ("error", 400)
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"


def test_stored_response_is_known_to_all_connections_of_its_tenant() -> None:
    keys = ApiKeys(["a"])

    async def scene() -> None:
        async with serving(HttpOptions(keys=keys)) as stage:
            client = stage.openai(key="a")
            async with socket_to(stage, authorization="Bearer a") as socket:
                first = ident(await send(socket, user("Hi."), store=True))
                stored = await client.responses.retrieve(first)
                assert stored.output_text == "Hello."
                over_http = await client.responses.create(
                    model=NAME, input="Go on.", previous_response_id=first
                )
            async with socket_to(stage, authorization="Bearer a") as socket:
                last = await send(socket, user("On."), after=over_http.id)
                assert ident(last)
            assert prompts(stage)[-1].count("Hello.") == 2

    run(scene)


def test_conversation_may_fork() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            first = ident(await send(socket, user("Hi.")))
            await send_request(socket, "Left.", previous_response_id=first, stream_id="l")
            await send_request(socket, "Right.", previous_response_id=first, stream_id="r")
            ended: list[Event] = []
            while len(ended) < 2:
                received = await event(socket)
                ended += [received] if received["type"] == "response.completed" else []
            assert {one["stream_id"] for one in ended} == {"l", "r"}
            left, right = prompts(stage)[1:]
            assert left.split("Left.")[0] == right.split("Right.")[0]

    run(scene)


def test_long_conversation_continues_from_its_last_response() -> None:
    async def scene() -> None:
        async with serving() as stage, socket_to(stage) as socket:
            first = last = ident(await send(socket, user("Turn 0.")))
            for at in range(1, 40):
                last = ident(await send(socket, user(f"Turn {at}."), after=last))
            text = prompts(stage)[-1]
            assert all(f"Turn {at}." in text for at in range(40))
            assert stage.metric("dovetail_replayed_turns_total", model=NAME, kind="exact") == 39
            (error,) = await send(socket, user("Again."), after=first)
            _is_missing(error)  # only the last few responses are cached

    run(scene)


def test_conversation_over_the_size_limit_is_rejected() -> None:
    async def scene() -> None:
        async with (
            serving(HttpOptions(max_body_bytes=20_000)) as stage,
            socket_to(stage) as socket,
        ):
            first = ident(await send(socket, user("x" * 1500)))
            (error,) = await send(socket, user("x" * 19_000), after=first)
            assert (error["type"], error["status"]) == ("error", 413)
            assert ident(await send(socket, user("Short."), after=first))

    run(scene)


def test_caches_of_all_websockets_are_bounded() -> None:
    options = HttpOptions(
        max_body_bytes=5000, websocket_options=WebSocketOptions(max_cached_bytes=5000)
    )

    async def scene() -> None:
        async with (
            serving(options) as stage,
            socket_to(stage) as first,
            socket_to(stage) as second,
        ):
            early = ident(await send(first, user("x" * 2000)))
            later = ident(await send(second, user("x" * 2000)))
            (error,) = await send(first, user("Go on."), after=early)
            _is_missing(error)
            assert ident(await send(second, user("Go on."), after=later))

    run(scene)


def test_cache_budget_counts_cached_bytes() -> None:
    def made(name: str) -> StoredResponse:
        return StoredResponse("", name, 0.0, "completed", b"", b"x" * 100)

    room = ConnectionCacheBudget(10_000)
    one, two = ConnectionCache(budget=room), ConnectionCache(budget=room)
    a, b, c = made("a"), made("b"), made("c")
    one.put((), a)
    one.put((a,), b)
    two.put((), c)
    assert room.used_bytes == 3 * response_size(a)
    assert one.get_chain("b") == (a, b)
    one.close()
    assert room.used_bytes == response_size(c)
    two.close()
    assert room.used_bytes == 0


def test_result_without_its_call_ends_the_chain() -> None:
    """Open Responses: the result of an unknown call is an error, and the chain is evicted."""

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(CALL, "Done.", "Again.")
            async with socket_to(stage) as socket:
                first = await send(socket, user("Look."))
                unknown = {"type": "function_call_output", "call_id": "call_unknown", "output": "x"}
                (rejected,) = await send(socket, unknown, after=ident(first))
                assert rejected["status"] == 400
                assert rejected["error"]["param"] == "input"
                assert "call_unknown" in rejected["error"]["message"]
                (missing,) = await send(socket, user("Go on."), after=ident(first))
                assert missing["error"]["code"] == "previous_response_not_found"

    run(scene)


def test_result_and_its_call_may_come_together() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("One.", "Two.")
            async with socket_to(stage) as socket:
                first = await send(socket, user("Look."))
                call = {"type": "function_call", "call_id": "call_own", "name": "look_up"}
                result = {"type": "function_call_output", "call_id": "call_own", "output": "x"}
                arguments = {"arguments": "{}"}
                last = await send(socket, call | arguments, result, after=ident(first))
                assert text_of(last) == "Two."

    run(scene)
