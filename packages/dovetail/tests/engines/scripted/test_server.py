"""The scripted engine over real sockets, read by the official SDK as vLLM's clients read it."""

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


class Stage:
    """A running server and the SDK's client for it."""

    def __init__(self, playing: ScriptedEngine, port: int, client: AsyncOpenAI) -> None:
        self.engine = playing
        self.port = port
        self.client = client

    async def stream(self, prompt: Any = "hi", **fields: Any) -> list[Any]:
        """All chunks of an answer. Fields that the SDK does not know go into the body as well."""
        extra = {"return_token_ids": True, **fields.pop("extra_body", {})}
        limit = fields.pop("max_tokens", 100)
        chunks = await self.client.completions.create(
            model=MODEL, prompt=prompt, stream=True, max_tokens=limit, extra_body=extra, **fields
        )
        return [chunk async for chunk in chunks]

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self.ask(b"GET", path)

    async def ask(self, method: bytes, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """A request without a client library: its status and its body."""
        async with self.connection() as (reader, writer):
            head = b"%b %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" % (method, path.encode())
            writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
            answer = await reader.read()
        head, _, body = answer.partition(b"\r\n\r\n")
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
async def staged(
    script: str, max_model_len: int = 1000, **options: Any
) -> AsyncGenerator[Stage, None]:
    playing = engine(script, (END, RETURN), **options)
    model = CompletionModel((MODEL, "alias"), TOKENIZER, (END, RETURN), max_model_len)
    app = CompletionsServer(playing, model, stream_batches=playing.generate_batches)
    server = uvicorn.Server(uvicorn_config(app))
    listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
    port = listener.getsockname()[1]
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        url = f"http://127.0.0.1:{port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            yield Stage(playing, port, client)
    finally:
        server.should_exit = True
        await playing.stop()
        await serving


def on_stage(script: str, body: Callable[[Stage], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with staged(script, **options) as stage, asyncio.timeout(60):
            await body(stage)

    asyncio.run(main())


def test_a_stream_has_ids_text_and_reasons_where_vllm_has_them() -> None:
    async def body(stage: Stage) -> None:
        chunks = await stage.stream(ids("hi"), stream_options={"include_usage": True})
        *chunks, usage = chunks
        choices = [chunk.choices[0].model_dump() for chunk in chunks]
        assert [choice["text"] for choice in choices] == ["h", "", "", "é", "", "!", ""]
        told = [id for choice in choices for id in choice["token_ids"]]
        assert told == [*ids("h<think>é</think>!"), END]
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

    on_stage(HELLO, body)


def test_an_answer_in_one_piece_is_the_sum_of_its_stream() -> None:
    async def body(stage: Stage) -> None:
        whole = await stage.client.completions.create(
            model="alias", prompt="hi", max_tokens=100, extra_body={"return_token_ids": True}
        )
        choice = whole.choices[0].model_dump()
        chunks = await stage.stream("hi")
        assert choice["text"] == "".join(chunk.choices[0].text for chunk in chunks) == "hé!"
        assert choice["token_ids"] == [*ids("h<think>é</think>!"), END]
        assert choice["prompt_token_ids"] == ids("hi")
        assert choice["finish_reason"] == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == 9
        assert whole.model == MODEL

    on_stage(HELLO, body)


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
def test_how_an_answer_ends(
    fields: dict[str, Any], text: str, finish: str, stop_reason: int | None
) -> None:
    async def body(stage: Stage) -> None:
        chunks = await stage.stream(**fields)
        assert "".join(chunk.choices[0].text for chunk in chunks) == text
        last = chunks[-1].choices[0].model_dump()
        assert (last["finish_reason"], last["stop_reason"]) == (finish, stop_reason)

    on_stage(HELLO, body)


def test_a_character_that_stays_incomplete() -> None:
    async def body(stage: Stage) -> None:
        chunks = await stage.stream()
        assert [chunk.choices[0].text for chunk in chunks] == ["a", "", "\ufffd"]

    on_stage("[{tokens: [97, 195]}]", body)


def test_what_the_engine_is_asked() -> None:
    async def body(stage: Stage) -> None:
        extra = {
            "priority": -3,  # sooner, in vLLM's numbers
            "cache_salt": "salt",
            "session_id": "s1",
            "request_id": "r1",
            "top_k": 5,
            "structured_outputs": {"json": {"type": "object"}},
        }
        await stage.stream(extra_body=extra, temperature=0.5, stop=["x"])
        asked = stage.engine.requests[-1]
        assert (asked.id, asked.session, asked.priority) == ("r1", "s1", 3)
        assert asked.cache_salt == "salt"
        assert asked.constraint == Constraint("json_schema", '{"type": "object"}')
        assert (asked.sampling.temperature, asked.sampling.top_k) == (0.5, 5)
        assert asked.sampling.stop == ("x",)
        assert asked.stop_ids == {END, RETURN}
        extra = {"ignore_eos": True, "structured_outputs": {"grammar": "root ::= [a-z]"}}
        await stage.stream(extra_body=extra, extra_headers={"x-session-id": "s2"})
        asked = stage.engine.requests[-1]
        assert asked.session == "s2"
        assert asked.stop_ids == frozenset()
        assert asked.constraint == Constraint("gbnf", "root ::= [a-z]")
        extra = {"response_format": {"type": "structural_tag", "format": {}}}
        await stage.stream(extra_body=extra)
        asked = stage.engine.requests[-1]
        assert asked.constraint is not None
        assert asked.constraint.syntax == "structural_tag"

    on_stage(HELLO, body)


def test_cached_tokens_and_usage_as_it_grows() -> None:
    async def body(stage: Stage) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        prompt = "p" * 40
        await stage.stream(prompt)
        chunks = await stage.stream(prompt, stream_options=options)
        counts = [chunk.usage.completion_tokens for chunk in chunks]
        assert counts == [1, 2, 3, 4, 4]
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 32

    on_stage("[{text: abc}]", body)


def test_probabilities() -> None:
    async def body(stage: Stage) -> None:
        whole = await stage.client.completions.create(model=MODEL, prompt="hi", logprobs=1)
        told = whole.choices[0].logprobs
        assert told is not None
        assert told.tokens == ["a", "b", "<|end|>"]
        assert told.token_logprobs == [-1.0, -2.0, -2.0]
        assert told.text_offset == [0, 1, 2]
        assert told.top_logprobs is not None
        assert told.top_logprobs[0] == {"a": -1.0}

    on_stage("[{text: ab, logprobs: [-1, -2]}]", body)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"prompt": "p" * 1000}, 400, "maximum context length is 1000"),
        ({"prompt": [5, 99999]}, 400, "99999 is out of vocabulary"),
        ({"prompt": [-1]}, 400, "one prompt"),
        ({"prompt": ["a", "b"]}, 400, "one prompt"),
        ({"prompt": ""}, 400, "one prompt"),
        ({"n": 2}, 400, "one choice"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
    ],
)
def test_refusals(fields: dict[str, Any], status: int, message: str) -> None:
    async def body(stage: Stage) -> None:
        with pytest.raises(openai.APIStatusError) as error:
            await stage.client.completions.create(**{"model": MODEL, "prompt": "hi", **fields})
        assert error.value.status_code == status
        assert isinstance(error.value.body, dict)
        assert message in error.value.body["message"]
        assert error.value.body["code"] == status

    on_stage(HELLO, body)


def test_failures_are_events_in_a_stream_and_a_status_otherwise() -> None:
    async def body(stage: Stage) -> None:
        with pytest.raises(openai.APIError, match="no luck"):
            await stage.stream()
        with pytest.raises(openai.InternalServerError, match="no luck"):
            await stage.client.completions.create(model=MODEL, prompt="hi")
        body = json.dumps({"prompt": "hi", "stream": True}).encode()
        status, told = await stage.ask(b"POST", "/v1/completions", body)
        assert status == 200
        assert told.count(b'"text":') == 2
        assert told.index(b'"error":') < told.index(b"data: [DONE]")

    on_stage("[{text: abc, fail: {after: 2, message: no luck}}]", body)


def test_a_dying_engine_breaks_the_connection_off() -> None:
    async def body(stage: Stage) -> None:
        with pytest.raises(openai.APIError):
            await stage.stream()
        assert (await stage.get("/health"))[0] == 503

    on_stage("[{text: abc, die: 2}]", body)


def test_the_other_routes() -> None:
    async def body(stage: Stage) -> None:
        models = await stage.client.models.list()
        assert [model.id for model in models.data] == [MODEL, "alias"]
        assert models.data[0].model_dump()["max_model_len"] == 1000
        assert await stage.get("/health") == (200, b"")
        assert (await stage.get("/nowhere"))[0] == 404
        assert b"version" in (await stage.get("/version"))[1]
        _, told = await stage.ask(b"POST", "/tokenize", b'{"prompt": "a<think>"}')
        assert json.loads(told)["tokens"] == ids("a<think>")
        assert json.loads(told)["count"] == 2
        _, told = await stage.ask(b"POST", "/detokenize", b'{"tokens": [97, 98]}')
        assert json.loads(told) == {"prompt": "ab"}
        assert (await stage.ask(b"POST", "/tokenize", b"{"))[0] == 400
        await stage.stream("hi")
        _, told = await stage.get("/metrics")
        assert b'vllm:generation_tokens_total{model_name="org/model"} 7\n' in told
        assert b'vllm:num_requests_running{model_name="org/model"} 0\n' in told

    on_stage(HELLO, body)


async def settled(playing: ScriptedEngine, running: int) -> None:
    """Lets the loop run until so many generations do."""
    while playing.counters.running != running:  # noqa: ASYNC110 (nothing tells the end of one)
        await asyncio.sleep(0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_ends_its_generation(stream: bool) -> None:
    async def body(stage: Stage) -> None:
        asked = json.dumps({"prompt": "hi", "stream": stream}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        async with stage.connection() as (_, writer):
            writer.write(head % len(asked) + asked)
            await settled(stage.engine, 1)
        await settled(stage.engine, 0)

    on_stage("[{text: abc, hang: 2}]", body)


def test_five_hundred_streams_at_once() -> None:
    async def body(stage: Stage) -> None:
        asked = json.dumps({"prompt": "hi", "stream": True, "max_tokens": 1000}).encode()
        coroutines = [stage.ask(b"POST", "/v1/completions", asked) for _ in range(500)]
        answers = await asyncio.gather(*coroutines)
        assert {status for status, _ in answers} == {200}
        assert {body.count(b'"text":"a"') for _, body in answers} == {100}
        assert all(body.count(b"[DONE]") == 1 for _, body in answers)
        assert stage.engine.counters.running == 0

    on_stage(f"[{{text: '{'a' * 100}'}}]", body)


def started(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """The engine as a process of its own, and its address."""
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().rpartition(" ")[2].strip()


def test_as_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "answer.txt"
    script.write_text("<think>hm</think>hello\n", "utf-8")
    process, address = started("--script", str(script), "--served-model-name", "a/b", "c")
    with process, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        try:
            whole = client.completions.create(model="c", prompt="hi")
        finally:
            process.send_signal(signal.SIGINT)
        assert whole.choices[0].text == "hmhello"  # control tokens are left out
    assert process.returncode in (0, 130, -signal.SIGINT)


def test_a_process_dies_where_its_script_says_so(tmp_path: Path) -> None:
    script = tmp_path / "deadly.yaml"
    script.write_text("- {text: hello, die: 2}\n", "utf-8")
    process, address = started("--script", str(script))
    with process, openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(model="scripted", prompt="hi")
        assert process.wait() == 1


def test_a_bad_script_is_told_in_one_line(tmp_path: Path) -> None:
    script = tmp_path / "bad.yaml"
    script.write_text("- txet: hello\n", "utf-8")
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"{script}, line 1, [0]: Object contains unknown field `txet`\n"


def test_a_folder_says_what_the_model_is(tmp_path: Path) -> None:
    for file in folder("qwen3").glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [151645, 151643]}')
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40960}')
    model = load_served_model(ScriptedServerOptions(Path("unused"), tmp_path))
    assert model.eos_ids == (151645, 151643)
    assert model.max_model_len == 40960
    assert model.names == (tmp_path.name,)
    assert model.tokenizer.encode("<think>") == [151667]
