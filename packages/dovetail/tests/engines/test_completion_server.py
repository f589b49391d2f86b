"""The server of the completions protocol over any engine, tested with Dovetail's own client."""

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
    """Pushes the deltas of its plan, then fails or waits forever if configured so."""

    name = "planned"
    capabilities = EngineCapabilities()

    def __init__(self) -> None:
        self.plan: list[TokenDelta] = [TokenDelta([*ids("hi"), END], finish="stop")]
        self.failure: DovetailError | None = None
        self.waits = False
        self.ready = True
        self.requests: list[EngineRequest] = []
        self.emitted = asyncio.Event()
        self.held = asyncio.Event()
        self.closed = asyncio.Event()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(self.ready, facts={"waiting": 7})

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        try:
            for delta in self.plan:
                if sink.push(delta):
                    continue
                self.held.set()
                if not await sink.drain():
                    return
            self.emitted.set()
            if self.waits:
                await asyncio.Event().wait()
            if self.failure is not None:
                raise self.failure
        finally:
            self.closed.set()


class RunningServer:
    """A server on a unix socket, and a client for it."""

    def __init__(self, engine: PlannedEngine, socket: str, packed: bool) -> None:
        self.engine = engine
        self.deaths = 0
        self.endpoint = Endpoint(socket=socket, headers={"authorization": f"Bearer {KEY}"})
        self.client = CompletionsClient(self.endpoint, "m", server_name="it", binary_prompt=packed)

    async def generate(self, request: EngineRequest) -> list[TokenDelta]:
        return [delta async for delta in iter_deltas(self.client, request)]

    async def post(self, body: dict[str, Any]) -> tuple[int, Any]:
        call = ClientRequest("POST", "/v1/completions", json.dumps(body).encode())
        status, content = await fetch(self.endpoint, call)
        return status, json.loads(content)

    def die(self) -> None:
        self.deaths += 1


@asynccontextmanager
async def running_server(packed: bool = False, **config: Any) -> AsyncGenerator[RunningServer]:
    engine = PlannedEngine()
    model = CompletionModel(("m",), TOKENIZER, (END, RETURN), WINDOW)
    with TemporaryDirectory() as folder:
        running = RunningServer(engine, f"{folder}/s", packed)
        app = CompletionsServer(engine, model, api_key=KEY, on_engine_dead=running.die)
        listener, url = open_listener(ListenAddress(path=Path(folder) / "s"))
        assert url == f"unix://{folder}/s"
        settings = uvicorn_config(app)
        for name, value in config.items():
            setattr(settings, name, value)
        server = uvicorn.Server(settings)
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        try:
            yield running
        finally:
            server.should_exit = True
            await serving


def with_server(body: Callable[[RunningServer], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with running_server(**options) as running, asyncio.timeout(60):
            await body(running)

    asyncio.run(main())


def ids_of(deltas: list[TokenDelta]) -> list[int]:
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
def test_ids_survive_any_split_into_deltas(
    parts: list[list[int]],
    last: int | None,
    cached: int | None,
    packed: bool,
    server: dict[str, str],
) -> None:
    async def body(running: RunningServer) -> None:
        end = TokenDelta([] if last is None else [last], finish="stop" if last else "length")
        plan = [TokenDelta(part) for part in parts] + [end]
        running.engine.plan = [TokenDelta(plan[0].ids, (), plan[0].finish, cached), *plan[1:]]
        deltas = await running.generate(request())
        assert ids_of(deltas) == ids_of(plan)
        assert [delta.finish for delta in deltas if delta.finish] == [end.finish]
        assert [delta.cached for delta in deltas if delta.cached is not None] == (
            [] if cached is None else [cached]
        )
        assert running.client.reports_cached_tokens == (cached is not None)
        assert all(delta.exact for delta in deltas)

    with_server(body, packed=packed, **server)


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
def test_request_arrives_at_the_engine_unchanged(
    constraint: Constraint | None, packed: bool
) -> None:
    async def body(running: RunningServer) -> None:
        sent = request(
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
        await running.generate(sent)
        received = running.engine.requests[-1]
        assert received.sampling.max_tokens == 9
        blank = Sampling()
        for one in (sent, received):
            assert one.prompt == array("I", ids("hello"))
        known = {name: getattr(sent.sampling, name) for name in blank.__struct_fields__}
        assert {**known, "max_tokens": 9} == {
            name: getattr(received.sampling, name) for name in blank.__struct_fields__
        }
        for name in ("id", "max_tokens", "stop_ids", "constraint", "session", "priority"):
            assert getattr(received, name) == getattr(sent, name), name
        assert received.cache_salt == "salt"

    with_server(body, packed=packed)


def test_max_tokens_is_limited_to_the_context_window() -> None:
    async def body(running: RunningServer) -> None:
        await running.generate(request("x" * 60, max_tokens=1000))
        assert running.engine.requests[-1].max_tokens == 4
        status, response = await running.post({"prompt": "x" * WINDOW})
        assert status == 400
        assert "maximum context length is 64" in response["error"]["message"]

    with_server(body)


def test_requests_without_the_key_are_rejected() -> None:
    async def body(running: RunningServer) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
            other = Endpoint(socket=running.endpoint.socket, headers=headers)
            for path in ("/v1/models", "/health", "/metrics", "/nowhere"):
                status, _ = await fetch(other, ClientRequest("GET", path))
                assert status == 401
        assert (await fetch(running.endpoint, ClientRequest("GET", "/health")))[0] == 200
        assert (await fetch(running.endpoint, ClientRequest("GET", "/nowhere")))[0] == 404

    with_server(body)


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
    async def body(running: RunningServer) -> None:
        running.engine.plan, running.engine.failure = first, failure
        with pytest.raises(kind, match="no luck"):
            await running.generate(request())
        whole, response = await running.post({"prompt": "hi"})
        assert (whole, response["error"]["code"]) == (status, status)
        assert running.deaths == 0

    with_server(body)


@pytest.mark.parametrize("stream", [False, True])
def test_output_without_a_finish_is_an_error(stream: bool) -> None:
    async def body(running: RunningServer) -> None:
        running.engine.plan = [TokenDelta([97]), TokenDelta([98])]
        if stream:
            with pytest.raises(EngineError, match="no finish reason"):
                await running.generate(request())
        else:
            status, response = await running.post({"prompt": "hi"})
            assert (status, response["error"]["code"]) == (500, 500)

    with_server(body)


def test_dead_engine_aborts_its_streams() -> None:
    async def body(running: RunningServer) -> None:
        running.engine.plan, running.engine.failure = [TokenDelta([97])], EngineUnavailable("dead")
        running.engine.ready = False
        with pytest.raises(EngineUnavailable, match="incomplete response"):
            await running.generate(request())
        assert (await running.post({"prompt": "a"}))[0] == 503
        assert running.deaths == 2
        assert (await fetch(running.endpoint, ClientRequest("GET", "/health")))[0] == 503

    with_server(body)


def test_disconnect_cancels_the_generation() -> None:
    async def body(running: RunningServer) -> None:
        running.engine.plan, running.engine.waits = [TokenDelta([97])], True
        async with aclosing(iter_deltas(running.client, request())) as deltas:
            assert (await anext(deltas)).ids == [97]
            await running.engine.emitted.wait()
            assert b"num_requests_running{model_name=" in (await metrics(running))
            assert gauge(await metrics(running), "num_requests_running") == 1
        await running.engine.closed.wait()
        assert gauge(await metrics(running), "num_requests_running") == 0
        assert gauge(await metrics(running), "generation_tokens_total") == 1
        assert gauge(await metrics(running), "num_requests_waiting") == 7

    with_server(body)


async def metrics(running: RunningServer) -> bytes:
    return (await fetch(running.endpoint, ClientRequest("GET", "/metrics")))[1]


def gauge(text: bytes, name: str) -> int:
    line = next(line for line in text.decode().splitlines() if line.startswith(f"vllm:{name}{{"))
    return int(line.rpartition(" ")[2])


def test_logprobs_are_forwarded() -> None:
    async def body(running: RunningServer) -> None:
        logprobs = (
            TokenLogprob("a", -0.5, (("a", -0.5), ("b", -1.5))),
            TokenLogprob("<|end|>", -0.25, (("<|end|>", -0.25), ("x", -4.0))),
        )
        alike = (TokenLogprob("?", -0.5, (("?", -0.5), ("?", -1.5), ("x", -2.0))),)
        running.engine.plan = [TokenDelta([97, END], logprobs, "stop")]
        deltas = await running.generate(request(sampling=Sampling(logprobs=2)))
        assert [one for delta in deltas for one in delta.logprobs] == list(logprobs)
        running.engine.plan = [TokenDelta([97], alike, "length")]
        (delta,) = await running.generate(request(sampling=Sampling(logprobs=3)))
        assert delta.logprobs[0].top == (("?", -0.5), ("x", -2.0))

    with_server(body)


def test_ids_only_response() -> None:
    async def body(running: RunningServer) -> None:
        running.engine.plan = [TokenDelta([104, 105]), TokenDelta([97, END], finish="stop")]
        body = {"prompt_bytes": packed_ids(ids("hello")), "ids_only": True}
        status, response = await running.post(body)
        choice = response["choices"][0]
        assert (status, choice["token_ids"]) == (200, [104, 105, 97, END])
        assert (choice["text"], choice["prompt_token_ids"]) == ("", None)
        assert running.engine.requests[-1].prompt == array("I", ids("hello"))
        payloads = await frames(running, {**body, "stream": True})
        assert payloads[0] == {"choices": [{"token_ids": [104, 105]}]}
        last = payloads[1]["choices"][0]
        assert (last["token_ids"], last["finish_reason"]) == ([97, END], "stop")

    with_server(body)


def test_response_has_all_fields_of_vllm() -> None:
    async def body(running: RunningServer) -> None:
        running.engine.plan = [TokenDelta([104, 105]), TokenDelta([END], finish="stop")]
        body = {"prompt": "hello", "stream": True, "return_token_ids": True}
        payloads = await frames(running, body)
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

    with_server(body)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_bytes": "no base64!"}, "invalid request body"),
        ({"prompt_bytes": base64.b64encode(b"12345").decode()}, "4 bytes per id"),
        ({"prompt_bytes": ""}, "must be one prompt"),
        ({"prompt_bytes": base64.b64encode(b"\xff\xff\xff\xff").decode()}, "out of vocabulary"),
        (
            {"prompt": "a", "prompt_bytes": base64.b64encode(bytes(4)).decode()},
            "cannot be combined",
        ),
    ],
)
def test_invalid_prompt_bytes_are_rejected(fields: dict[str, str], words: str) -> None:
    async def body(running: RunningServer) -> None:
        status, response = await running.post(fields)
        assert status == 400
        assert words in response["error"]["message"]
        assert running.engine.requests == []

    with_server(body)


@pytest.mark.parametrize("server", [{}, {"http": "h11"}])
def test_slow_reader_pauses_the_engine(server: dict[str, str]) -> None:
    async def body(running: RunningServer) -> None:
        token_ids = [97] * 1_000
        running.engine.plan = [TokenDelta(token_ids)] * 500 + [TokenDelta([END], finish="stop")]
        call = json.dumps({"prompt": "hi", "stream": True, "ids_only": True}).encode()
        reader, writer = await asyncio.open_unix_connection(running.endpoint.socket, limit=1 << 16)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
            % (KEY.encode(), len(call), call)
        )
        await running.engine.held.wait()
        for _ in range(2_000):  # iterations of the event loop; each delta would take a few
            await asyncio.sleep(0)
        assert not running.engine.emitted.is_set()
        response = await reader.read()
        writer.close()
        assert response.count(b'"token_ids"') == 501
        assert b"[DONE]" in response

    with_server(body, **server)


@pytest.mark.parametrize("state", ["open", "disconnected", "response_complete"])
def test_direct_writer_writes_only_to_an_open_response(state: str) -> None:
    written: list[bytes] = []
    cycle: Any = SimpleNamespace(
        disconnected=state == "disconnected",
        response_complete=state == "response_complete",
        flow=SimpleNamespace(write_paused=False),
        transport=SimpleNamespace(write=written.append),
    )
    direct = DirectWriter(cycle)
    assert direct.write(b"")  # written as it is, an empty chunk would end the response
    assert direct.write(b"0123456789abcdef")
    assert written == ([b"10\r\n0123456789abcdef\r\n"] if state == "open" else [])
    cycle.flow.write_paused = True
    assert not direct.write(b"a")


def packed_ids(given: list[int]) -> str:
    return base64.b64encode(b"".join(id.to_bytes(4, "little") for id in given)).decode()


async def frames(running: RunningServer, body: dict[str, Any]) -> list[Any]:
    """Return the frames of a stream without the final one."""
    call = ClientRequest("POST", "/v1/completions", json.dumps(body).encode())
    _, content = await fetch(running.endpoint, call)
    *payloads, done, rest = content.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in payloads]
