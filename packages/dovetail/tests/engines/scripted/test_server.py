"""The scripted engine over real sockets, read by the official SDK as clients of vLLM do."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI
from real_tokenizers import folder
from scripted_fixture import END, RETURN, TOKENIZER, engine, ids

from dovetail.engines.completion_server.app import CompletionsServer
from dovetail.engines.completion_server.model import CompletionModel
from dovetail.engines.engine import Constraint
from dovetail.engines.scripted import ScriptedEngine
from dovetail.engines.scripted.__main__ import ScriptedServerOptions, load_served_model
from dovetail.net.listener import uvicorn_config

MODEL = "org/model"
HELLO = "[{text: 'h<think>é</think>!'}]"


class RunningServer:
    """A running server and the SDK's client for it."""

    def __init__(self, scripted: ScriptedEngine, port: int, client: AsyncOpenAI) -> None:
        self.engine = scripted
        self.port = port
        self.client = client

    async def stream(self, prompt: Any = "hi", **fields: Any) -> list[Any]:
        """Return all chunks of a response.

        Fields that the SDK does not have are added to the body.
        """
        extra = {"return_token_ids": True, **fields.pop("extra_body", {})}
        limit = fields.pop("max_tokens", 100)
        chunks = await self.client.completions.create(
            model=MODEL, prompt=prompt, stream=True, max_tokens=limit, extra_body=extra, **fields
        )
        return [chunk async for chunk in chunks]

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self.send(b"GET", path)

    async def send(self, method: bytes, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request without a client library. Return the status and the body."""
        async with self.connection() as (reader, writer):
            head = b"%b %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" % (method, path.encode())
            writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            response = await reader.read()
        head, _, body = response.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    @asynccontextmanager
    async def connection(
        self,
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter], None]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()


@asynccontextmanager
async def running_server(
    script: str, max_model_len: int = 1000, **options: Any
) -> AsyncGenerator[RunningServer, None]:
    scripted = engine(script, (END, RETURN), **options)
    model = CompletionModel((MODEL, "alias"), TOKENIZER, (END, RETURN), max_model_len)
    app = CompletionsServer(scripted, model, stream_batches=scripted.generate_batches)
    server = uvicorn.Server(uvicorn_config(app))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    port = listener.getsockname()[1]
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield RunningServer(scripted, port, client)
    finally:
        server.should_exit = True
        await scripted.stop()
        await serving


def with_server(
    script: str, body: Callable[[RunningServer], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        async with running_server(script, **options) as server, asyncio.timeout(60):
            await body(server)

    asyncio.run(main())


def test_stream_has_the_fields_of_vllm() -> None:
    async def body(server: RunningServer) -> None:
        chunks = await server.stream(ids("hi"), stream_options={"include_usage": True})
        *chunks, usage = chunks
        choices = [chunk.choices[0].model_dump() for chunk in chunks]
        assert [choice["text"] for choice in choices] == ["h", "", "", "é", "", "!", ""]
        token_ids = [id for choice in choices for id in choice["token_ids"]]
        assert token_ids == [*ids("h<think>é</think>!"), END]
        assert [choice["finish_reason"] for choice in choices] == [None] * 6 + ["stop"]
        assert choices[0]["prompt_token_ids"] == ids("hi")
        assert not any(choice["prompt_token_ids"] for choice in choices[1:])
        assert set(choices[3]) == {
            "index",
            "text",
            "logprobs",
            "finish_reason",
            "stop_reason",
            "prompt_token_ids",
            "token_ids",
        }
        assert len({chunk.id for chunk in chunks}) == 1
        assert {chunk.object for chunk in chunks} == {"text_completion"}
        assert usage.choices == []
        assert usage.usage.model_dump(exclude_none=True) == {
            "prompt_tokens": 2,
            "total_tokens": 9,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    with_server(HELLO, body)


def test_non_streaming_response_equals_the_merged_stream() -> None:
    async def body(server: RunningServer) -> None:
        whole = await server.client.completions.create(
            model="alias", prompt="hi", max_tokens=100, extra_body={"return_token_ids": True}
        )
        choice = whole.choices[0].model_dump()
        chunks = await server.stream("hi")
        assert choice["text"] == "".join(chunk.choices[0].text for chunk in chunks) == "hé!"
        assert choice["token_ids"] == [*ids("h<think>é</think>!"), END]
        assert choice["prompt_token_ids"] == ids("hi")
        assert choice["finish_reason"] == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == 9
        assert whole.model == MODEL

    with_server(HELLO, body)


@pytest.mark.parametrize(
    ("fields", "text", "finish", "stop_reason"),
    [
        ({}, "hé!", "stop", None),
        ({"max_tokens": 2}, "h", "length", None),
        ({"extra_body": {"stop_token_ids": ids("!")}}, "hé", "stop", ids("!")[0]),
        ({"extra_body": {"skip_special_tokens": False}}, "h<think>é</think>!", "stop", None),
        (
            {"extra_body": {"include_stop_str_in_output": True, "skip_special_tokens": False}},
            "h<think>é</think>!<|end|>",
            "stop",
            None,
        ),
        ({"prompt": ["hi"]}, "hé!", "stop", None),
        ({"prompt": [ids("hi")]}, "hé!", "stop", None),
    ],
)
def test_finish_and_stop_reasons(
    fields: dict[str, Any], text: str, finish: str, stop_reason: int | None
) -> None:
    async def body(server: RunningServer) -> None:
        chunks = await server.stream(**fields)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text
        last = chunks[-1].choices[0].model_dump()
        assert (last["finish_reason"], last["stop_reason"]) == (finish, stop_reason)

    with_server(HELLO, body)


def test_incomplete_character() -> None:
    async def body(server: RunningServer) -> None:
        chunks = await server.stream()
        assert [chunk.choices[0].text for chunk in chunks] == ["a", "", "\ufffd"]

    with_server("[{tokens: [97, 195]}]", body)


def test_request_as_the_engine_receives_it() -> None:
    async def body(server: RunningServer) -> None:
        extra = {
            "priority": -3,  # runs earlier, by vLLM's convention
            "cache_salt": "salt",
            "session_id": "s1",
            "request_id": "r1",
            "top_k": 5,
            "structured_outputs": {"json": {"type": "object"}},
        }
        await server.stream(extra_body=extra, temperature=0.5, stop=["x"])
        received = server.engine.requests[-1]
        assert (received.id, received.session, received.priority) == ("r1", "s1", 3)
        assert received.cache_salt == "salt"
        assert received.constraint == Constraint("json_schema", '{"type": "object"}')
        assert (received.sampling.temperature, received.sampling.top_k) == (0.5, 5)
        assert received.sampling.stop == ("x",)
        assert received.stop_ids == {END, RETURN}
        extra = {"ignore_eos": True, "structured_outputs": {"grammar": "root ::= [a-z]"}}
        await server.stream(extra_body=extra, extra_headers={"x-session-id": "s2"})
        received = server.engine.requests[-1]
        assert received.session == "s2"
        assert received.stop_ids == frozenset()
        assert received.constraint == Constraint("gbnf", "root ::= [a-z]")
        extra = {"response_format": {"type": "structural_tag", "format": {}}}
        await server.stream(extra_body=extra)
        received = server.engine.requests[-1]
        assert received.constraint is not None
        assert received.constraint.syntax == "structural_tag"

    with_server(HELLO, body)


def test_cached_tokens_and_continuous_usage() -> None:
    async def body(server: RunningServer) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        prompt = "p" * 40
        await server.stream(prompt)
        chunks = await server.stream(prompt, stream_options=options)
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == [1, 2, 3, 4, 4]
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 32

    with_server("[{text: abc}]", body)


def test_logprobs() -> None:
    async def body(server: RunningServer) -> None:
        whole = await server.client.completions.create(model=MODEL, prompt="hi", logprobs=1)
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens == ["a", "b", "<|end|>"]
        assert logprobs.token_logprobs == [-1.0, -2.0, -2.0]
        assert logprobs.text_offset == [0, 1, 2]
        assert logprobs.top_logprobs is not None
        assert logprobs.top_logprobs[0] == {"a": -1.0}

    with_server("[{text: ab, logprobs: [-1, -2]}]", body)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"prompt": "p" * 1000}, 400, "maximum context length is 1000"),
        ({"prompt": [5, 99999]}, 400, "99999 is out of vocabulary"),
        ({"prompt": [-1]}, 400, "one prompt"),
        ({"prompt": ["a", "b"]}, 400, "one prompt"),
        ({"prompt": ""}, 400, "one prompt"),
        ({"n": 2}, 400, "`n` must be 1"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
    ],
)
def test_rejections(fields: dict[str, Any], status: int, message: str) -> None:
    async def body(server: RunningServer) -> None:
        with pytest.raises(openai.APIStatusError) as error:
            await server.client.completions.create(**{"model": MODEL, "prompt": "hi", **fields})
        assert error.value.status_code == status
        assert isinstance(error.value.body, dict)
        assert message in error.value.body["message"]
        assert error.value.body["code"] == status

    with_server(HELLO, body)


def test_failures_are_events_in_a_stream_and_a_status_otherwise() -> None:
    async def body(server: RunningServer) -> None:
        with pytest.raises(openai.APIError, match="no luck"):
            await server.stream()
        with pytest.raises(openai.InternalServerError, match="no luck"):
            await server.client.completions.create(model=MODEL, prompt="hi")
        body = json.dumps({"prompt": "hi", "stream": True}).encode()
        status, content = await server.send(b"POST", "/v1/completions", body)
        assert status == 200
        assert content.count(b'"text":') == 2
        assert content.index(b'"error":') < content.index(b"data: [DONE]")

    with_server("[{text: abc, fail: {after: 2, message: no luck}}]", body)


def test_dying_engine_aborts_the_connection() -> None:
    async def body(server: RunningServer) -> None:
        with pytest.raises(openai.APIError):
            await server.stream()
        assert (await server.get("/health"))[0] == 503

    with_server("[{text: abc, die: 2}]", body)


def test_other_routes() -> None:
    async def body(server: RunningServer) -> None:
        models = await server.client.models.list()
        assert [model.id for model in models.data] == [MODEL, "alias"]
        assert models.data[0].model_dump()["max_model_len"] == 1000
        assert await server.get("/health") == (200, b"")
        assert (await server.get("/nowhere"))[0] == 404
        assert b"version" in (await server.get("/version"))[1]
        _, content = await server.send(b"POST", "/tokenize", b'{"prompt": "a<think>"}')
        assert json.loads(content)["tokens"] == ids("a<think>")
        assert json.loads(content)["count"] == 2
        _, content = await server.send(b"POST", "/detokenize", b'{"tokens": [97, 98]}')
        assert json.loads(content) == {"prompt": "ab"}
        assert (await server.send(b"POST", "/tokenize", b"{"))[0] == 400
        await server.stream("hi")
        _, content = await server.get("/metrics")
        assert b'vllm:generation_tokens_total{model_name="org/model"} 7\n' in content
        assert b'vllm:num_requests_running{model_name="org/model"} 0\n' in content

    with_server(HELLO, body)


async def wait_for_running(scripted: ScriptedEngine, running: int) -> None:
    """Run the event loop until this many generations are running."""
    while scripted.counters.running != running:  # noqa: ASYNC110 (there is no event to wait for)
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_the_generation(stream: bool) -> None:
    async def body(server: RunningServer) -> None:
        request = json.dumps({"prompt": "hi", "stream": stream}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        async with server.connection() as (_, writer):
            writer.write(head % len(request) + request)
            await wait_for_running(server.engine, 1)
        await wait_for_running(server.engine, 0)

    with_server("[{text: abc, hang: 2}]", body)


def test_five_hundred_streams_at_once() -> None:
    async def body(server: RunningServer) -> None:
        request = json.dumps({"prompt": "hi", "stream": True, "max_tokens": 1000}).encode()
        coroutines = [server.send(b"POST", "/v1/completions", request) for _ in range(500)]
        responses = await asyncio.gather(*coroutines)
        assert {status for status, _ in responses} == {200}
        assert {body.count(b'"text":"a"') for _, body in responses} == {100}
        assert all(body.count(b"[DONE]") == 1 for _, body in responses)
        assert server.engine.counters.running == 0

    with_server(f"[{{text: '{'a' * 100}'}}]", body)


def started(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """Start the engine as a separate process. Return the process and its address."""
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().rpartition(" ")[2].strip()


def test_separate_process(tmp_path: Path) -> None:
    script = tmp_path / "answer.txt"
    script.write_text("<think>hm</think>hello\n", "utf-8")
    process, address = started("--script", str(script), "--served-model-name", "a/b", "c")
    with process, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        try:
            whole = client.completions.create(model="c", prompt="hi")
        finally:
            process.send_signal(signal.SIGINT)
        assert whole.choices[0].text == "hmhello"  # control tokens are omitted
    assert process.returncode in (0, 130, -signal.SIGINT)


def test_process_exits_when_its_script_dies(tmp_path: Path) -> None:
    script = tmp_path / "deadly.yaml"
    script.write_text("- {text: hello, die: 2}\n", "utf-8")
    process, address = started("--script", str(script))
    with process, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(model="scripted", prompt="hi")
        assert process.wait() == 1


def test_invalid_script_is_reported_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "bad.yaml"
    script.write_text("- txet: hello\n", "utf-8")
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{script}, line 1, [0]: Object contains unknown field `txet`\n"


def test_model_is_read_from_its_folder(tmp_path: Path) -> None:
    for file in folder("qwen3").glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40960}')
    model = load_served_model(ScriptedServerOptions(Path("unused"), tmp_path))
    assert model.eos_ids == (151645, 151643)
    assert model.max_model_len == 40960
    assert model.names == (tmp_path.name,)
    assert model.tokenizer.encode("<think>") == [151667]
