"""The client of the completions protocol.

It is tested with the scripted engine's server, and with servers that reject requests, fail or
disconnect.
"""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import uvloop
from completions_fixture import MODEL, fake_server, open_stream, scripted_server, status, stream
from scripted_fixture import END, RETURN, ids, request

from dovetail.engines.completions.client import CompletionsClient, encode_request
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest, TokenDelta
from dovetail.engines.token_ids import PromptEncoder
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import Endpoint, Timeouts
from dovetail_model import (
    ContextOverflow,
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Sampling,
)

HELLO = "[{text: 'h<think>é</think>!'}]"
TOKEN = b'{"choices":[{"token_ids":[7],"finish_reason":null}]}'
LAST = b'{"choices":[{"token_ids":[8],"finish_reason":"stop"}]}'


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    """Run it on the event loop that the product uses."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await check()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


async def generate(endpoint: Endpoint, request: EngineRequest, **more: Any) -> list[TokenDelta]:
    client = CompletionsClient(endpoint, MODEL, **more)
    return [delta async for delta in iter_deltas(client, request)]


def ids_of(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_turn_includes_its_stop_token() -> None:
    async def check() -> None:
        async with scripted_server(HELLO) as (_, endpoint):
            deltas = await generate(endpoint, request())
            assert ids_of(deltas) == [*ids("h<think>é</think>!"), END]
            assert [delta.finish for delta in deltas if delta.finish] == ["stop"]
            assert deltas[-1].cached == 0
            assert all(delta.exact for delta in deltas)
            stopped = await generate(endpoint, request(stop_ids=frozenset(ids("!"))))
            assert ids_of(stopped) == ids("h<think>é</think>!")

    run_async(check)


def test_tokens_that_arrive_together_are_one_delta() -> None:
    async def check() -> None:
        text = "x" * 3000
        async with scripted_server(f"[{{text: '{text}'}}]", chunk=7) as (_, endpoint):
            deltas = await generate(endpoint, request())
            assert ids_of(deltas) == [*ids(text), END]
            assert len(deltas) < 3000 / 7

    run_async(check)


def test_request_as_the_server_receives_it() -> None:
    async def check() -> None:
        async with scripted_server(HELLO) as (scripted, endpoint):
            sampling = Sampling(temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=-1)
            sent = request(
                sampling=sampling,
                priority=3,
                cache_salt="salt",
                session="s1",
                stop_ids=frozenset({RETURN, END}),
                constraint=Constraint("json_schema", '{"type": "object"}'),
            )
            await generate(endpoint, sent)
            got = scripted.requests[-1]
            assert (got.id, got.session, got.cache_salt) == (sent.id, "s1", "salt")
            assert got.prompt == sent.prompt
            assert got.priority == 3
            assert got.stop_ids == sent.stop_ids
            assert got.constraint == sent.constraint
            assert got.sampling.temperature == 0.5
            assert got.sampling.seed == 2**63 - 1

    run_async(check)


@pytest.mark.parametrize(
    ("syntax", "member"),
    [
        ("structural_tag", "structural_tag"),
        ("json_schema", "json"),
        ("ebnf", "grammar"),
        ("lark", "grammar"),
    ],
)
def test_constraints_use_the_fields_of_vllm(syntax: ConstraintSyntax, member: str) -> None:
    sent = request(constraint=Constraint(syntax, "text"))
    body = json.loads(encode_request(sent, PromptEncoder(), MODEL, with_priority=True))
    assert body["structured_outputs"] == {member: "text"}


def test_unset_fields_are_not_sent() -> None:
    body = json.loads(
        encode_request(
            request(stop_ids=frozenset()),
            PromptEncoder(),
            MODEL,
            with_priority=True,
            extra_fields={"x": 1},
        )
    )
    assert set(body) == {
        "model",
        "prompt",
        "max_tokens",
        "request_id",
        "stream",
        "stream_options",
        "return_token_ids",
        "add_special_tokens",
        "skip_special_tokens",
        "x",
    }


def test_priority_is_negated() -> None:
    assert (
        json.loads(encode_request(request(priority=5), PromptEncoder(), MODEL, with_priority=True))[
            "priority"
        ]
        == -5
    )
    assert "priority" not in json.loads(
        encode_request(request(priority=5), PromptEncoder(), MODEL, with_priority=False)
    )


def test_priority_is_not_sent_again_after_a_rejection() -> None:
    bodies: list[dict[str, Any]] = []

    async def respond(path: str, content: bytes) -> list[bytes]:
        bodies.append(json.loads(content))
        if "priority" in bodies[-1]:
            return [status(400, b'{"error":{"message":"Priority scheduling is not enabled"}}')]
        return [stream(TOKEN, LAST, b"[DONE]")]

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            client = CompletionsClient(endpoint, MODEL)
            for _ in range(2):
                deltas = [delta async for delta in iter_deltas(client, request(priority=2))]
                assert ids_of(deltas) == [7, 8]

    run_async(check)
    assert ["priority" in body for body in bodies] == [True, False, False]


def test_cancelling_stops_the_server() -> None:
    async def check() -> None:
        script = f"[{{text: '{'a' * 5000}'}}]"
        async with scripted_server(script, decode_rate=1000) as (scripted, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            async with aclosing(iter_deltas(client, request())) as deltas:
                await anext(deltas)
                assert scripted.counters.running == 1
            while scripted.counters.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert scripted.counters.generated < 5000

    run_async(check)


def test_abort_all_fails_every_stream() -> None:
    async def check() -> None:
        script = f"[{{text: '{'a' * 5000}'}}]"
        async with scripted_server(script, decode_rate=1000) as (_, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            async with aclosing(iter_deltas(client, request())) as deltas:
                await anext(deltas)
                client.abort_all()
                with pytest.raises(EngineUnavailable, match="incomplete response"):
                    async for _ in deltas:
                        pass

    run_async(check)


def test_reports_cached_tokens_is_detected() -> None:
    async def check() -> None:
        async with scripted_server(HELLO) as (_, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            reported = [client.reports_cached_tokens]
            async for _ in iter_deltas(client, request()):
                pass
            assert [*reported, client.reports_cached_tokens] == [None, True]

        async def respond(path: str, content: bytes) -> list[bytes]:
            return [stream(TOKEN, LAST, b"[DONE]")]

        async with fake_server(respond) as endpoint:
            client = CompletionsClient(endpoint, MODEL)
            async for _ in iter_deltas(client, request()):
                pass
            assert client.reports_cached_tokens is False

    run_async(check)


def test_logprobs() -> None:
    async def check() -> None:
        logprobs = {
            "tokens": ["a"],
            "token_logprobs": [-1.0],
            "top_logprobs": [{"a": -1.0, "b": -0.1}],
        }
        frame = {"choices": [{"token_ids": [7], "finish_reason": "length", "logprobs": logprobs}]}
        bodies: list[dict[str, Any]] = []

        async def respond(path: str, content: bytes) -> list[bytes]:
            bodies.append(json.loads(content))
            return [stream(json.dumps(frame).encode(), b"[DONE]")]

        async with fake_server(respond) as endpoint:
            (delta,) = await generate(endpoint, request(sampling=Sampling(logprobs=1)))
            assert delta.logprobs[0].top == (("b", -0.1),)
            assert bodies[0]["logprobs"] == 1
            assert bodies[0]["return_tokens_as_token_ids"]

    run_async(check)


FAULTS: list[tuple[str, list[bytes], type[DovetailError], str]] = [
    (
        "refused",
        [status(401, b'{"error":"Unauthorized"}')],
        EngineError,
        "rejected the configured API key",
    ),
    ("disconnected", [open_stream(TOKEN)], EngineUnavailable, "incomplete response"),
    ("ended without a finish", [stream(TOKEN)], EngineUnavailable, "without a finish reason"),
    ("ended immediately", [stream()], EngineUnavailable, "without a finish reason"),
    ("no response", [], EngineUnavailable, "incomplete response"),
    ("an error frame", [stream(TOKEN, b'{"error":{"message":"died"}}')], EngineError, "died"),
]


@pytest.mark.parametrize(
    ("pieces", "kind", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_server_failures(pieces: list[bytes], kind: type[DovetailError], words: str) -> None:
    async def respond(path: str, content: bytes) -> list[bytes]:
        return pieces

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            with pytest.raises(kind, match=words):
                await generate(endpoint, request())

    run_async(check)


def test_stream_may_end_after_the_finish_reason() -> None:
    async def respond(path: str, content: bytes) -> list[bytes]:
        return [stream(TOKEN, LAST)]

    async def check() -> None:
        async with fake_server(respond) as endpoint:
            deltas = await generate(endpoint, request())
            assert ids_of(deltas) == [7, 8]
            assert deltas[-1].finish == "stop"

    run_async(check)


def test_read_timeout() -> None:
    async def check() -> None:
        hold = asyncio.Event()

        async def respond(path: str, content: bytes) -> list[bytes]:
            await hold.wait()
            return []

        async with fake_server(respond) as endpoint:
            timeouts = Timeouts(connect=5.0, read=0.05)
            with pytest.raises(EngineTimeout, match="sent no data"):
                await generate(endpoint, request(), timeouts=timeouts)
            hold.set()

    run_async(check)


def test_prompt_too_long_for_the_context_window() -> None:
    async def check() -> None:
        async with scripted_server(HELLO, max_model_len=10) as (_, endpoint):
            sent = EngineRequest("r", array("I", [97] * 11), 5)
            with pytest.raises(ContextOverflow, match="maximum context length is 10"):
                await generate(endpoint, sent)

    run_async(check)
