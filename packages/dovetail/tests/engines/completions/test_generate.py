"""vLLM's token API: requests, the frames of its Python and Rust frontends, and its detection."""

import asyncio
import json
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from completions_fixture import MODEL, fake_server, status, stream
from scripted_fixture import TOKENIZER

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.generate import (
    GENERATE_PATH,
    encode_generate_request,
    offers_generate,
    session_headers,
)
from dovetail.engines.engine import Constraint, EngineRequest, RemoteModel, TokenDelta
from dovetail.engines.token_ids import PromptEncoder
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions
from dovetail.net.http_client import Endpoint
from dovetail_model import Sampling

PROMPT = array("I", [1, 2, 3])
MODELS = status(200, json.dumps({"data": [{"id": MODEL}]}).encode())
REJECTED = status(400, b'{"error":{"message":"token_ids: Field required","code":400}}')


def run_async(check: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await check()

    asyncio.run(limited())


def request(**fields: Any) -> EngineRequest:
    return EngineRequest("r", PROMPT, 100, **fields)


def frame(*, usage: dict[str, Any] | None = None, **choice: Any) -> bytes:
    """Return a frame with one choice, or with only the usage."""
    choices = [{"index": 0, "logprobs": None, "finish_reason": None, **choice}] if choice else []
    more = {} if usage is None else {"usage": usage}
    return json.dumps({"request_id": "r", "choices": choices, **more}).encode()


def usage(generated: int, details: dict[str, int] | None) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "completion_tokens": generated, "total_tokens": 3 + generated}
    return {**counts, "prompt_tokens_details": details}


PYTHON = [
    frame(token_ids=[7], stop_reason=None),
    frame(token_ids=[8, 9], finish_reason="stop", stop_reason=9),
    frame(usage=usage(3, {"cached_tokens": 2})),
    b"[DONE]",
]
#: The Rust frontend begins with a frame without ids, and sends the finish in a frame of its own.
RUST = [
    frame(token_ids=[]),
    frame(token_ids=[7]),
    frame(token_ids=[8, 9]),
    frame(token_ids=[], finish_reason="stop", stop_reason=9),
    frame(usage=usage(3, None)),
    b"[DONE]",
]


async def generate(endpoint: Endpoint, request: EngineRequest) -> list[TokenDelta]:
    client = CompletionsClient(endpoint, MODEL, tokenizer=TOKENIZER)
    client.uses_generate = True
    return [delta async for delta in iter_deltas(client, request)]


@pytest.mark.parametrize(("frames", "cached"), [(PYTHON, 2), (RUST, None)])
def test_frames_of_both_frontends(frames: list[bytes], cached: int | None) -> None:
    async def check() -> None:
        sent: list[tuple[str, bytes]] = []

        async def respond(path: str, body: bytes) -> list[bytes]:
            sent.append((path, body))
            return [stream(*frames)]

        async with fake_server(respond) as endpoint:
            deltas = await generate(endpoint, request(stop_ids=frozenset({9})))
        assert [id for delta in deltas for id in delta.ids] == [7, 8, 9]
        assert (deltas[-1].finish, deltas[-1].cached) == ("stop", cached)
        assert all(delta.exact for delta in deltas)
        assert sent[0][0] == GENERATE_PATH

    run_async(check)


def test_stop_token_in_an_earlier_frame_is_not_repeated() -> None:
    """Also with one frame per read, where the token has been passed on already."""

    async def check() -> None:
        async def respond(path: str, body: bytes) -> list[bytes]:
            whole = stream(*RUST)
            split = whole.index(b'"finish_reason": "stop"')
            return [whole[:split], whole[split:]]

        async with fake_server(respond) as endpoint:
            deltas = await generate(endpoint, request(stop_ids=frozenset({9})))
        assert [id for delta in deltas for id in delta.ids] == [7, 8, 9]

    run_async(check)


def test_request_as_the_server_receives_it() -> None:
    sampling = Sampling(temperature=0.5, top_k=3, seed=7, min_tokens=2, logit_bias=((5, 1.0),))
    sent = request(
        sampling=sampling,
        stop_ids=frozenset({9, 4}),
        constraint=Constraint("ebnf", "root ::= x"),
        session="s",
        priority=3,
        cache_salt="salt",
    )
    body = encode_generate_request(
        sent, PromptEncoder(), MODEL, with_priority=True, extra_fields={"stream_interval": 8}
    )
    assert json.loads(body) == {
        "model": MODEL,
        "request_id": "r",
        "token_ids": [1, 2, 3],
        "sampling_params": {
            "max_tokens": 100,
            "detokenize": False,
            "temperature": 0.5,
            "top_k": 3,
            "seed": 7,
            "min_tokens": 2,
            "logit_bias": {"5": 1.0},
            "stream_interval": 8,
            "stop_token_ids": [4, 9],
            "structured_outputs": {"grammar": "root ::= x"},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": -3,
        "cache_salt": "salt",
    }
    assert session_headers(sent) == {"x-session-id": "s"}
    assert session_headers(request(session="a\nb")) == {}


def test_logprobs_have_ids() -> None:
    async def check() -> None:
        best = [{"token_id": 104, "logprob": -0.5}, {"token_id": 105, "logprob": -1.0}]
        content = [{"token_id": 105, "logprob": -1.0, "rank": 2, "top_logprobs": best}]
        last = frame(token_ids=[105], logprobs={"content": content}, finish_reason="length")

        async def respond(path: str, body: bytes) -> list[bytes]:
            return [stream(last, b"[DONE]")]

        async with fake_server(respond) as endpoint:
            (delta,) = await generate(endpoint, request(sampling=Sampling(logprobs=1)))
        (logprob,) = delta.logprobs
        assert logprob.token == TOKENIZER.decode([105])
        assert (logprob.logprob, logprob.top) == (-1.0, ((TOKENIZER.decode([104]), -0.5),))

    run_async(check)


@pytest.mark.parametrize(
    ("response", "offered"),
    [(REJECTED, True), (status(422, b"{}"), True), (status(404, b"{}"), False)],
)
def test_detection(response: bytes, offered: bool) -> None:
    async def check() -> None:
        async def respond(path: str, body: bytes) -> list[bytes]:
            return [MODELS if path == "/v1/models" else response]

        async with fake_server(respond) as endpoint:
            assert await offers_generate(endpoint) is offered
            for api, used in (("auto", offered), ("completions", False), ("generate", True)):
                options = VllmOptions(probe=False, api=api)  # type: ignore[arg-type]
                engine = VllmEngine(endpoint, RemoteModel(MODEL), TOKENIZER, options=options)
                await engine.start()
                facts = (await engine.health()).facts or {}
                assert facts.get("api", "generate" if used else "completions") == (
                    "generate" if used else "completions"
                )

    run_async(check)


def test_a_server_that_was_restarted_without_the_api() -> None:
    async def check() -> None:
        async def respond(path: str, body: bytes) -> list[bytes]:
            if path == GENERATE_PATH:
                return [status(404, b'{"detail":"Not Found"}')]
            return [stream(*PYTHON)]

        async with fake_server(respond) as endpoint:
            deltas = await generate(endpoint, request())
            assert [id for delta in deltas for id in delta.ids] == [7, 8, 9]

    run_async(check)
