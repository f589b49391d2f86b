"""The client of the completions protocol: against the scripted engine's server, and against
servers that refuse, fail and break off."""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
import uvloop
from completions_fixture import MODEL, made_up_server, open_stream, scripted_server, status, stream
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


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """On the loop that the product runs on."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await scene()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


async def heard(endpoint: Endpoint, asked: EngineRequest, **more: Any) -> list[TokenDelta]:
    client = CompletionsClient(endpoint, MODEL, **more)
    return [delta async for delta in iter_deltas(client, asked)]


def said(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_a_turn_with_its_stop_token() -> None:
    async def scene() -> None:
        async with scripted_server(HELLO) as (_, endpoint):
            deltas = await heard(endpoint, request())
            assert said(deltas) == [*ids("h<think>é</think>!"), END]
            assert [delta.finish for delta in deltas if delta.finish] == ["stop"]
            assert deltas[-1].cached == 0
            assert all(delta.exact for delta in deltas)
            stopped = await heard(endpoint, request(stop_ids=frozenset(ids("!"))))
            assert said(stopped) == ids("h<think>é</think>!")

    play(scene)


def test_tokens_that_come_together_are_one_delta() -> None:
    async def scene() -> None:
        text = "x" * 3000
        async with scripted_server(f"[{{text: '{text}'}}]", chunk=7) as (_, endpoint):
            deltas = await heard(endpoint, request())
            assert said(deltas) == [*ids(text), END]
            assert len(deltas) < 3000 / 7

    play(scene)


def test_what_the_server_is_asked() -> None:
    async def scene() -> None:
        async with scripted_server(HELLO) as (playing, endpoint):
            sampling = Sampling(temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=-1)
            asked = request(
                sampling=sampling,
                priority=3,
                cache_salt="salt",
                session="s1",
                stop_ids=frozenset({RETURN, END}),
                constraint=Constraint("json_schema", '{"type": "object"}'),
            )
            await heard(endpoint, asked)
            got = playing.requests[-1]
            assert (got.id, got.session, got.cache_salt) == (asked.id, "s1", "salt")
            assert got.prompt == asked.prompt
            assert got.priority == 3
            assert got.stop_ids == asked.stop_ids
            assert got.constraint == asked.constraint
            assert got.sampling.temperature == 0.5
            assert got.sampling.seed == 2**63 - 1

    play(scene)


@pytest.mark.parametrize(
    ("syntax", "member"),
    [
        ("structural_tag", "structural_tag"),
        ("json_schema", "json"),
        ("ebnf", "grammar"),
        ("lark", "grammar"),
    ],
)
def test_constraints_in_the_members_that_vllm_reads(syntax: ConstraintSyntax, member: str) -> None:
    asked = request(constraint=Constraint(syntax, "text"))
    told = json.loads(encode_request(asked, PromptEncoder(), MODEL, with_priority=True))
    assert told["structured_outputs"] == {member: "text"}


def test_what_nobody_set_is_left_to_the_server() -> None:
    told = json.loads(
        encode_request(
            request(stop_ids=frozenset()),
            PromptEncoder(),
            MODEL,
            with_priority=True,
            extra_fields={"x": 1},
        )
    )
    assert set(told) == {
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


def test_a_lower_number_runs_sooner_over_there() -> None:
    assert (
        json.loads(encode_request(request(priority=5), PromptEncoder(), MODEL, with_priority=True))[
            "priority"
        ]
        == -5
    )
    assert "priority" not in json.loads(
        encode_request(request(priority=5), PromptEncoder(), MODEL, with_priority=False)
    )


def test_a_server_that_takes_no_priorities_is_asked_once() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(path: str, content: bytes) -> list[bytes]:
        bodies.append(json.loads(content))
        if "priority" in bodies[-1]:
            return [status(400, b'{"error":{"message":"Priority scheduling is not enabled"}}')]
        return [stream(TOKEN, LAST, b"[DONE]")]

    async def scene() -> None:
        async with made_up_server(answer) as endpoint:
            client = CompletionsClient(endpoint, MODEL)
            for _ in range(2):
                deltas = [delta async for delta in iter_deltas(client, request(priority=2))]
                assert said(deltas) == [7, 8]

    play(scene)
    assert ["priority" in told for told in bodies] == [True, False, False]


def test_closing_lets_the_server_go() -> None:
    async def scene() -> None:
        script = f"[{{text: '{'a' * 5000}'}}]"
        async with scripted_server(script, decode_rate=1000) as (playing, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            async with aclosing(iter_deltas(client, request())) as deltas:
                await anext(deltas)
                assert playing.counters.running == 1
            while playing.counters.running:  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert playing.counters.generated < 5000

    play(scene)


def test_dropping_ends_every_answer_with_an_error() -> None:
    async def scene() -> None:
        script = f"[{{text: '{'a' * 5000}'}}]"
        async with scripted_server(script, decode_rate=1000) as (_, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            async with aclosing(iter_deltas(client, request())) as deltas:
                await anext(deltas)
                client.abort_all()
                with pytest.raises(EngineUnavailable, match="broke off"):
                    async for _ in deltas:
                        pass

    play(scene)


def test_whether_what_is_cached_is_told() -> None:
    async def scene() -> None:
        async with scripted_server(HELLO) as (_, endpoint):
            client = CompletionsClient(endpoint, MODEL)
            told = [client.reports_cached_tokens]
            async for _ in iter_deltas(client, request()):
                pass
            assert [*told, client.reports_cached_tokens] == [None, True]

        async def answer(path: str, content: bytes) -> list[bytes]:
            return [stream(TOKEN, LAST, b"[DONE]")]

        async with made_up_server(answer) as endpoint:
            client = CompletionsClient(endpoint, MODEL)
            async for _ in iter_deltas(client, request()):
                pass
            assert client.reports_cached_tokens is False

    play(scene)


def test_probabilities() -> None:
    async def scene() -> None:
        told = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0, "b": -0.1}]}
        frame = {"choices": [{"token_ids": [7], "finish_reason": "length", "logprobs": told}]}
        bodies: list[dict[str, Any]] = []

        async def answer(path: str, content: bytes) -> list[bytes]:
            bodies.append(json.loads(content))
            return [stream(json.dumps(frame).encode(), b"[DONE]")]

        async with made_up_server(answer) as endpoint:
            (delta,) = await heard(endpoint, request(sampling=Sampling(logprobs=1)))
            assert delta.logprobs[0].top == (("b", -0.1),)
            assert bodies[0]["logprobs"] == 1
            assert bodies[0]["return_tokens_as_token_ids"]

    play(scene)


FAULTS: list[tuple[str, list[bytes], type[DovetailError], str]] = [
    ("refused", [status(401, b'{"error":"Unauthorized"}')], EngineError, "refuses the key"),
    ("broken off", [open_stream(TOKEN)], EngineUnavailable, "broke off"),
    ("ended without a finish", [stream(TOKEN)], EngineUnavailable, "without saying why"),
    ("ended at once", [stream()], EngineUnavailable, "without saying why"),
    ("no answer", [], EngineUnavailable, "broke off"),
    ("an error frame", [stream(TOKEN, b'{"error":{"message":"died"}}')], EngineError, "died"),
]


@pytest.mark.parametrize(
    ("pieces", "kind", "words"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_faults(pieces: list[bytes], kind: type[DovetailError], words: str) -> None:
    async def answer(path: str, content: bytes) -> list[bytes]:
        return pieces

    async def scene() -> None:
        async with made_up_server(answer) as endpoint:
            with pytest.raises(kind, match=words):
                await heard(endpoint, request())

    play(scene)


def test_a_finish_without_the_rest_is_a_finish() -> None:
    async def answer(path: str, content: bytes) -> list[bytes]:
        return [stream(TOKEN, LAST)]

    async def scene() -> None:
        async with made_up_server(answer) as endpoint:
            deltas = await heard(endpoint, request())
            assert said(deltas) == [7, 8]
            assert deltas[-1].finish == "stop"

    play(scene)


def test_a_silent_server() -> None:
    async def scene() -> None:
        hold = asyncio.Event()

        async def answer(path: str, content: bytes) -> list[bytes]:
            await hold.wait()
            return []

        async with made_up_server(answer) as endpoint:
            patience = Timeouts(connect=5.0, read=0.05)
            with pytest.raises(EngineTimeout, match="was silent"):
                await heard(endpoint, request(), patience=patience)
            hold.set()

    play(scene)


def test_a_prompt_that_does_not_fit() -> None:
    async def scene() -> None:
        async with scripted_server(HELLO, max_model_len=10) as (_, endpoint):
            asked = EngineRequest("r", array("I", [97] * 11), 5)
            with pytest.raises(ContextOverflow, match="maximum context length is 10"):
                await heard(endpoint, asked)

    play(scene)
