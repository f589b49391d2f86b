"""The server side of the completions protocol over any engine, read by our own client."""

import asyncio
import base64
import json
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_fixture import END, RETURN, TOKENIZER, ids, request

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import (
    Constraint,
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail.net.listener import ListenAddress, open_listener, uvicorn_config
from dovetail.net.response_writer import DirectWriter
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineError,
    EngineUnavailable,
    Overloaded,
    Sampling,
    TokenLogprob,
    Unsupported,
)

KEY = "open sesame"
WINDOW = 64


class PlannedEngine:
    """Gives the deltas that it is told to, then fails if it is told to; or waits for ever."""

    name = "planned"
    capabilities = EngineCapabilities()

    def __init__(self) -> None:
        self.plan: list[TokenDelta] = [TokenDelta([*ids("hi"), END], finish="stop")]
        self.failure: DovetailError | None = None
        self.waits = False
        self.ready = True
        self.asked: list[EngineRequest] = []
        self.speaking = asyncio.Event()
        self.held = asyncio.Event()
        self.closed = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(self.ready, facts={"waiting": 7})

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.asked.append(request)
        try:
            for delta in self.plan:
                if sink.push(delta):
                    continue
                self.held.set()
                if not await sink.drain():
                    return
            self.speaking.set()
            if self.waits:
                await asyncio.Event().wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.closed.set()


class Stage:
    """A server on a unix socket, and our client for it."""

    def __init__(self, engine: PlannedEngine, socket: str, packed: bool) -> None:
        self.engine = engine
        self.deaths = 0
        self.endpoint = Endpoint(socket=socket, headers={"authorization": f"Bearer {KEY}"})
        self.client = CompletionsClient(self.endpoint, "m", server_name="it", binary_prompt=packed)

    async def hear(self, asked: EngineRequest) -> list[TokenDelta]:
        return [delta async for delta in iter_deltas(self.client, asked)]

    async def ask(self, body: dict[str, Any]) -> tuple[int, Any]:
        call = ClientRequest("POST", "/v1/completions", json.dumps(body).encode())
        status, content = await fetch(self.endpoint, call)
        return status, json.loads(content)

    def die(self) -> None:
        self.deaths += 1


@asynccontextmanager
async def staged(packed: bool = False, **config: Any) -> AsyncGenerator[Stage]:
    engine = PlannedEngine()
    model = CompletionModel(("m",), TOKENIZER, (END, RETURN), WINDOW)
    with TemporaryDirectory() as folder:
        stage = Stage(engine, f"{folder}/s", packed)
        app = CompletionsServer(engine, model, api_key=KEY, on_engine_dead=stage.die)
        listener, url = open_listener(ListenAddress(path=Path(folder) / "s"))
        assert url == f"unix://{folder}/s"
        settings = uvicorn_config(app)
        for name, value in config.items():
            setattr(settings, name, value)
        server = uvicorn.Server(settings)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield stage
        finally:
            server.should_exit = True
            await serving


def on_stage(body: Callable[[Stage], Awaitable[None]], **how: Any) -> None:
    async def main() -> None:
        async with staged(**how) as stage, asyncio.timeout(60):
            await body(stage)

    asyncio.run(main())


def heard_ids(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


deltas_of_ids = st.lists(
    st.lists(st.integers(0, TOKENIZER.size - 1).filter(lambda id: id not in (END, RETURN))),
    max_size=8,
)


@settings(max_examples=12)
@given(
    deltas_of_ids,
    st.sampled_from([END, RETURN, None]),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.sampled_from([{}, {"http": "h11"}]),
)
def test_ids_come_through_however_they_are_cut(
    parts: list[list[int]],
    last: int | None,
    cached: int | None,
    packed: bool,
    server: dict[str, str],
) -> None:
    async def body(stage: Stage) -> None:
        end = TokenDelta([] if last is None else [last], finish="stop" if last else "length")
        plan = [TokenDelta(part) for part in parts] + [end]
        stage.engine.plan = [TokenDelta(plan[0].ids, (), plan[0].finish, cached), *plan[1:]]
        heard = await stage.hear(request())
        assert heard_ids(heard) == heard_ids(plan)
        assert [delta.finish for delta in heard if delta.finish] == [end.finish]
        assert [delta.cached for delta in heard if delta.cached is not None] == (
            [] if cached is None else [cached]
        )
        assert stage.client.reports_cached_tokens == (cached is not None)
        assert all(delta.exact for delta in heard)

    on_stage(body, packed=packed, **server)


@pytest.mark.parametrize(
    "constraint",
    [
        None,
        Constraint("json_schema", '{"type": "object"}'),
        Constraint("structural_tag", '{"type": "structural_tag", "format": {}}'),
        Constraint("gbnf", 'root ::= "a"'),
        Constraint("lark", 'start: "a"'),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_is_asked_of_the_client_is_asked_of_the_engine(
    constraint: Constraint | None, packed: bool
) -> None:
    async def body(stage: Stage) -> None:
        asked = request(
            max_tokens=9,
            sampling=Sampling(
                temperature=0.5,
                top_p=0.25,
                top_k=5,
                min_p=0.125,
                seed=3,
                presence_penalty=0.5,
                frequency_penalty=0.25,
                repetition_penalty=1.5,
            ),
            stop_ids=frozenset({END, RETURN, 5}),
            constraint=constraint,
            session="s",
            priority=4,
            cache_salt="salt",
        )
        await stage.hear(asked)
        heard = stage.engine.asked[-1]
        assert heard.sampling.max_tokens == 9
        blank = Sampling()
        for one in (asked, heard):
            assert one.prompt == array("I", ids("hello"))
        known = {name: getattr(asked.sampling, name) for name in blank.__struct_fields__}
        assert {**known, "max_tokens": 9} == {
            name: getattr(heard.sampling, name) for name in blank.__struct_fields__
        }
        for name in ("id", "max_tokens", "stop_ids", "constraint", "session", "priority"):
            assert getattr(heard, name) == getattr(asked, name), name
        assert heard.cache_salt == "salt"

    on_stage(body, packed=packed)


def test_a_limit_beyond_the_window_is_cut_to_it() -> None:
    async def body(stage: Stage) -> None:
        await stage.hear(request("x" * 60, max_tokens=1000))
        assert stage.engine.asked[-1].max_tokens == 4
        status, told = await stage.ask({"prompt": "x" * WINDOW})
        assert status == 400
        assert "maximum context length is 64" in told["error"]["message"]

    on_stage(body)


def test_without_the_key_nothing_is_told() -> None:
    async def body(stage: Stage) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
            stranger = Endpoint(socket=stage.endpoint.socket, headers=headers)
            for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
                status, _ = await fetch(stranger, ClientRequest("GET", path))
                assert status == 401
        assert (await fetch(stage.endpoint, ClientRequest("GET", "/health")))[0] == 200
        assert (await fetch(stage.endpoint, ClientRequest("GET", "/nowhere")))[0] == 404

    on_stage(body)


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (EngineError("no luck"), 500, EngineError),
        (EngineUnavailable("no luck"), 503, EngineUnavailable),
        (Overloaded("no luck"), 429, Overloaded),
        (Unsupported("no luck"), 400, ClientError),
    ],
)
@pytest.mark.parametrize("first", [[], [TokenDelta([97])]])
def test_failures_keep_their_kind(
    first: list[TokenDelta], failure: DovetailError, status: int, kind: type[DovetailError]
) -> None:
    async def body(stage: Stage) -> None:
        stage.engine.plan, stage.engine.failure = first, failure
        with pytest.raises(kind, match="no luck"):
            await stage.hear(request())
        whole, told = await stage.ask({"prompt": "hi"})
        assert (whole, told["error"]["code"]) == (status, status)
        assert stage.deaths == 0

    on_stage(body)


def test_a_dead_engine_breaks_its_streams_off() -> None:
    async def body(stage: Stage) -> None:
        stage.engine.plan, stage.engine.failure = [TokenDelta([97])], EngineUnavailable("dead")
        stage.engine.ready = False
        with pytest.raises(EngineUnavailable, match="broke off"):
            await stage.hear(request())
        assert (await stage.ask({"prompt": "a"}))[0] == 503
        assert stage.deaths == 2
        assert (await fetch(stage.endpoint, ClientRequest("GET", "/health")))[0] == 503

    on_stage(body)


def test_hanging_up_closes_the_generation() -> None:
    async def body(stage: Stage) -> None:
        stage.engine.plan, stage.engine.waits = [TokenDelta([97])], True
        async with aclosing(iter_deltas(stage.client, request())) as deltas:
            assert (await anext(deltas)).ids == [97]
            await stage.engine.speaking.wait()
            assert b"num_requests_running{model_name=" in (await metrics(stage))
            assert gauge(await metrics(stage), "num_requests_running") == 1
        await stage.engine.closed.wait()
        assert gauge(await metrics(stage), "num_requests_running") == 0
        assert gauge(await metrics(stage), "generation_tokens_total") == 1
        assert gauge(await metrics(stage), "num_requests_waiting") == 7

    on_stage(body)


async def metrics(stage: Stage) -> bytes:
    return (await fetch(stage.endpoint, ClientRequest("GET", "/metrics")))[1]


def gauge(text: bytes, name: str) -> int:
    line = next(line for line in text.decode().splitlines() if line.startswith(f"vllm:{name}{{"))
    return int(line.rpartition(" ")[2])


def test_probabilities_come_through() -> None:
    async def body(stage: Stage) -> None:
        told = (
            TokenLogprob("a", -0.5, (("a", -0.5), ("b", -1.5))),
            TokenLogprob("<|end|>", -0.25, (("<|end|>", -0.25), ("x", -4.0))),
        )
        alike = (TokenLogprob("?", -0.5, (("?", -0.5), ("?", -1.5), ("x", -2.0))),)
        stage.engine.plan = [TokenDelta([97, END], told, "stop")]
        heard = await stage.hear(request(sampling=Sampling(logprobs=2)))
        assert [one for delta in heard for one in delta.logprobs] == list(told)
        stage.engine.plan = [TokenDelta([97], alike, "length")]
        (delta,) = await stage.hear(request(sampling=Sampling(logprobs=3)))
        assert delta.logprobs[0].top == (("?", -0.5), ("x", -2.0))

    on_stage(body)


def test_an_answer_of_ids_alone() -> None:
    async def body(stage: Stage) -> None:
        stage.engine.plan = [TokenDelta([104, 105]), TokenDelta([97, END], finish="stop")]
        asked = {"prompt_bytes": packed_ids(ids("hello")), "ids_only": True}
        status, told = await stage.ask(asked)
        choice = told["choices"][0]
        assert (status, choice["token_ids"]) == (200, [104, 105, 97, END])
        assert (choice["text"], choice["prompt_token_ids"]) == ("", None)
        assert stage.engine.asked[-1].prompt == array("I", ids("hello"))
        payloads = await frames(stage, {**asked, "stream": True})
        assert payloads[0] == {"choices": [{"token_ids": [104, 105]}]}
        last = payloads[1]["choices"][0]
        assert (last["token_ids"], last["finish_reason"]) == ([97, END], "stop")

    on_stage(body)


def test_who_does_not_ask_for_ids_alone_is_told_all_that_vllm_tells() -> None:
    async def body(stage: Stage) -> None:
        stage.engine.plan = [TokenDelta([104, 105]), TokenDelta([END], finish="stop")]
        asked = {"prompt": "hello", "stream": True, "return_token_ids": True}
        payloads = await frames(stage, asked)
        assert set(payloads[0]) == {"id", "object", "created", "model", "choices"}
        assert payloads[0]["choices"][0] == {
            "index": 0,
            "text": "hi",
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": ids("hello"),
            "token_ids": [104, 105],
        }
        assert payloads[1]["choices"][0]["prompt_token_ids"] is None

    on_stage(body)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_bytes": "no base64!"}, "cannot be read"),
        ({"prompt_bytes": base64.b64encode(b"12345").decode()}, "whole token ids"),
        ({"prompt_bytes": ""}, "one prompt is wanted"),
        ({"prompt_bytes": base64.b64encode(b"\xff\xff\xff\xff").decode()}, "out of vocabulary"),
        ({"prompt": "a", "prompt_bytes": base64.b64encode(bytes(4)).decode()}, "not two"),
    ],
)
def test_a_packed_prompt_that_is_none_is_refused(fields: dict[str, str], words: str) -> None:
    async def body(stage: Stage) -> None:
        status, told = await stage.ask(fields)
        assert status == 400
        assert words in told["error"]["message"]
        assert stage.engine.asked == []

    on_stage(body)


@pytest.mark.parametrize("server", [{}, {"http": "h11"}])
def test_a_reader_that_is_slow_is_waited_for(server: dict[str, str]) -> None:
    async def body(stage: Stage) -> None:
        said = [97] * 1_000
        stage.engine.plan = [TokenDelta(said)] * 500 + [TokenDelta([END], finish="stop")]
        call = json.dumps({"prompt": "hi", "stream": True, "ids_only": True}).encode()
        reader, writer = await asyncio.open_unix_connection(stage.endpoint.socket, limit=1 << 16)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
            % (KEY.encode(), len(call), call)
        )
        await stage.engine.held.wait()
        for _ in range(2_000):  # turns of the loop, of which each delta would take a few
            await asyncio.sleep(0)
        assert not stage.engine.speaking.is_set()
        answer = await reader.read()
        writer.close()
        assert answer.count(b'"token_ids"') == 501
        assert b"[DONE]" in answer

    on_stage(body, **server)


@pytest.mark.parametrize("state", ["open", "disconnected", "response_complete"])
def test_nothing_is_written_but_parts_of_an_answer_that_goes_on(state: str) -> None:
    written: list[bytes] = []
    cycle: Any = SimpleNamespace(
        disconnected=state == "disconnected",
        response_complete=state == "response_complete",
        flow=SimpleNamespace(write_paused=False),
        transport=SimpleNamespace(write=written.append),
    )
    direct = DirectWriter(cycle)
    assert direct.write(b"")  # as it is, it would end the answer
    assert direct.write(b"0123456789abcdef")
    assert written == ([b"10\r\n0123456789abcdef\r\n"] if state == "open" else [])
    cycle.flow.write_paused = True
    assert not direct.write(b"a")


def packed_ids(given: list[int]) -> str:
    return base64.b64encode(b"".join(id.to_bytes(4, "little") for id in given)).decode()


async def frames(stage: Stage, asked: dict[str, Any]) -> list[Any]:
    """The frames of a stream, less the one that ends it."""
    call = ClientRequest("POST", "/v1/completions", json.dumps(asked).encode())
    _, content = await fetch(stage.endpoint, call)
    *told, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in told]
