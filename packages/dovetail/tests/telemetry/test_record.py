"""Records of finished requests: times, calls and prefix, but no text."""

import asyncio
import json
from collections.abc import AsyncGenerator
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from http_fixture import CALL, NAME, Stage, StageEngine, run, serving, tiny_model

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.http.options import HttpOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.telemetry.trace.writer import PREFIX_BLOCK_TOKENS, encode_trace_line
from dovetail_model import EngineUnavailable

REASONING = "<think>\nA zither, perhaps.\n</think>\n\n"
SECRETS = ("xylophone", "zither", "Oslo")
PATHS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")


class QueueRecorder:
    """Collects the records of requests in a queue."""

    def __init__(self) -> None:
        self.ends: asyncio.Queue[tuple[RequestRecord, RequestContents]] = asyncio.Queue()
        self.closed = False

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        self.ends.put_nowait((record, contents))

    def close(self) -> None:
        self.closed = True

    async def next(self) -> RequestRecord:
        return (await self.ends.get())[0]


def attach_recorder(stage: Stage) -> QueueRecorder:
    recorder = QueueRecorder()
    stage.app.recorders = [recorder]
    return recorder


def body(path: str, text: str = "The xylophone is hidden.", **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool: dict[str, Any] = {"name": "look_up"}
    request: dict[str, Any] = {"messages": [{"role": "user", "content": text}]}
    match path:
        case "/v1/messages":
            tool["input_schema"] = schema
            request["max_tokens"] = 500
        case "/v1/responses":
            tool |= {"type": "function", "parameters": schema}
            request = {"input": [{"role": "user", "content": text}]}
        case _:
            tool = {"type": "function", "function": {**tool, "parameters": schema}}
    return {"model": NAME, "tools": [tool], **request, **more}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", PATHS)
def test_times_of_a_response_are_in_order(path: str, stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            stage.engine.plan = stage.engine.script(f"{REASONING}I look.{CALL}")
            reply = await stage.request("POST", path, body(path, stream=stream), x_session_id="s-1")
            assert reply.status == 200
            end = await recorder.next()
            (span,), (call,) = end.reasoning_spans, end.calls
            moments = [0.0, end.decoded, end.admitted, end.prepared, end.first_token]
            moments += [span.begin, span.end, call.begin, call.dispatched, end.last_event]
            moments.append(end.duration)
            assert all(a is not None and b is not None and a <= b for a, b in pairwise(moments))
            assert (call.name, end.finish, end.session) == ("look_up", "tool_calls", "s-1")
            assert call.id.encode() in reply.body
            assert end.began > 1_700_000_000

    run(scene)


def test_results_name_their_calls() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            stage.engine.plan = stage.engine.script(f"{REASONING}{CALL}{CALL}", "Rain.")
            path, request = "/v1/messages", body("/v1/messages")
            first = (await stage.request("POST", path, request)).json
            called = [block["id"] for block in first["content"] if block["type"] == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": id, "content": ""} for id in called]
            request["messages"] += [
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": results},
            ]
            await stage.request("POST", path, request)
            made, later = await recorder.next(), await recorder.next()
            assert [call.id for call in made.calls] == called
            assert (len(called), later.results) == (2, tuple(called))
            assert made.results == ()
            # Results before a final message are old.
            request["messages"] += [
                {"role": "assistant", "content": "Rain."},
                {"role": "user", "content": "Thanks."},
            ]
            await stage.request("POST", path, request)
            assert (await recorder.next()).results == ()

    run(scene)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_output_before_a_disconnect_is_counted(stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            generated = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                yield TokenDelta(stage.engine.tokenizer.encode("abc"), cached=7)
                yield TokenDelta(stage.engine.tokenizer.encode("de"))
                generated.set()
                await asyncio.Event().wait()

            stage.engine.plan = play
            _, writer = await stage.connect()
            sent = json.dumps(body("/v1/chat/completions", stream=stream)).encode()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(sent)}"
            )
            writer.write(head.encode() + b"\r\n\r\n" + sent)
            await generated.wait()
            writer.close()
            end, line = await recorder.next(), await stage.ended.get()
            assert (end.status, end.disconnected, end.last_event) == (499, True, None)
            assert end.usage is not None
            assert (end.usage.output_tokens, end.usage.cached_tokens) == (5, 7)
            assert (line["output"], line["input"]) == (5, len(stage.engine.requests[0].prompt))

    run(scene)


def test_reasoning_span_ends_at_a_disconnect() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                for text in ("<think>", "\nHm", ", so"):
                    yield TokenDelta(stage.engine.tokenizer.encode(text))
                await asyncio.Event().wait()

            stage.engine.plan = play
            reader, writer = await stage.connect()
            sent = json.dumps(body("/v1/messages", stream=True)).encode()
            head = (
                f"POST /v1/messages HTTP/1.1\r\nhost: [::1]\r\ncontent-length: {len(sent)}\r\n\r\n"
            )
            writer.write(head.encode() + sent)
            await reader.readuntil(b", so")
            writer.close()
            end = await recorder.next()
            (span,) = end.reasoning_spans
            assert span.begin <= span.end <= end.duration
            assert end.first_token is not None
            assert end.first_token <= span.begin

    run(scene)


def test_truncated_call_is_not_dispatched_and_unknown_name_is_omitted() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            strange = CALL.replace("look_up", "zither")
            truncated = CALL.removesuffix("\n</tool_call>")[:-8]
            stage.engine.plan = stage.engine.script(f"{strange}{truncated}")
            await stage.request("POST", "/v1/chat/completions", body("/v1/chat/completions"))
            end = await recorder.next()
            assert [(call.name, call.dispatched is None) for call in end.calls] == [
                ("", False),
                ("look_up", True),
            ]
            assert sum(end.diagnostics.values()) > 0
            code = next(iter(end.diagnostics))
            name = "dovetail_parser_diagnostics_total"
            assert stage.metric(name, model=NAME, code=code) == end.diagnostics[code]

    run(scene)


@pytest.mark.parametrize("path", PATHS)
def test_line_contains_no_content(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            stage.engine.plan = stage.engine.script(f"{REASONING}A zither.{CALL}")
            await stage.request("POST", path, body(path, stream=True), x_session_id="s-1")
            end, inside = await recorder.ends.get()
            line = encode_trace_line(end, inside).decode()
            assert json.loads(line)["calls"][0]["name"] == "look_up"
            assert not [word for word in SECRETS if word in line]

    run(scene)


def test_client_names_are_truncated() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            path = "/v1/chat/completions"
            request = body(path) | {"model": "m" * 100_000}
            await stage.request("POST", path, request)
            assert (await recorder.next()).status == 404
            long = {"x_session_id": "s" * 5000, "x_openai_subagent": "a" * 5000}
            await stage.request("POST", path, body(path), **long)
            end, inside = await recorder.ends.get()
            assert (len(end.session or ""), len(end.agent or "")) == (256, 256)
            assert len(encode_trace_line(end, inside)) < 4000

    run(scene)


def test_valid_client_span_is_recorded() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            sound = f"00-{'a1' * 16}-{'b2' * 8}-01"
            for given, expected in ((sound, sound), (f"{sound}-x", None), ("nonsense", None)):
                await stage.request("GET", "/v1/models", traceparent=given)
                assert (await recorder.next()).traceparent == expected

    run(scene)


def test_prompt_digests_are_private_to_the_tenant() -> None:
    keys = [ApiKey(name, sha256(name.encode()).digest()) for name in ("a", "b")]

    async def scene() -> None:
        async with serving(HttpOptions(keys=ApiKeys([], keys))) as stage:
            recorder = attach_recorder(stage)
            path, found = "/v1/chat/completions", []
            text = "x" * (2 * PREFIX_BLOCK_TOKENS)
            for key, prompt in (("a", text), ("b", text), ("a", text + "y"), ("a", "z" + text)):
                reply = await stage.request("POST", path, body(path, prompt), x_api_key=key)
                assert reply.status == 200
                end, inside = await recorder.ends.get()
                found.append(json.loads(encode_trace_line(end, inside))["prefix_blocks"])
            own, others, grown, shifted = found
            assert len(own) == len(stage.engine.requests[0].prompt) // PREFIX_BLOCK_TOKENS >= 2
            assert own[:2] == grown[:2]
            assert not set(own) & set(others)
            assert not set(own) & set(shifted)
            assert len(set(own)) == len(own)

    run(scene)


def test_reprefilled_tokens_are_counted() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            path = "/v1/chat/completions"
            cached_tokens: list[int | None] = [0, 10, None]

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                ids = [*stage.engine.tokenizer.encode("Yes."), stage.engine.stop_id]
                yield TokenDelta(
                    ids, finish="stop", cached=cached_tokens[len(stage.engine.requests) - 1]
                )

            stage.engine.plan = play
            request = body(path)
            ends = []
            for _ in cached_tokens:
                await stage.request("POST", path, request, x_session_id="s-1")
                ends.append(await recorder.next())
                request["messages"] += [
                    {"role": "assistant", "content": "Yes."},
                    {"role": "user", "content": "Go on."},
                ]
            first, second, third = ends
            assert first.prefix is not None
            assert second.prefix is not None
            assert (first.prefix.reason, first.reprefilled) == ("first", 0)
            assert second.prefix.turns["exact"] == 1
            assert second.prefix.common == len(stage.engine.requests[0].prompt) + len("Yes.")
            assert second.reprefilled == second.prefix.common - 10
            assert third.reprefilled is None
            of = {"model": NAME}
            assert stage.metric("dovetail_reprefilled_tokens_total", **of) == second.reprefilled
            prefixes = [end.prefix for end in ends if end.prefix is not None]
            shared, lost, new = (
                stage.metric("dovetail_prefix_tokens_total", kind=kind, **of)
                for kind in ("kept", "lost", "new")
            )
            assert shared == sum(one.common for one in prefixes)
            assert shared + new == sum(map(len, (one.prompt for one in stage.engine.requests)))
            assert lost == 0

    run(scene)


def test_times_are_counted_by_model() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            path = "/v1/chat/completions"
            stage.engine.plan = stage.engine.script(CALL)
            for stream in (True, False):
                await stage.request("POST", path, body(path, stream=stream))
                await recorder.next()
            await stage.request("POST", path, {"model": "nobody", "messages": []})
            refused = await recorder.next()
            assert (refused.decoded, refused.admitted, refused.prefix) == (None, None, None)
            of = {"model": NAME}
            # Calls of a non-streaming response are not dispatched before its end.
            assert stage.metric("dovetail_dispatch_lead_seconds_count", **of) == 1
            assert stage.metric("dovetail_queue_wait_seconds_count", **of) == 2
            assert stage.metric("dovetail_prepare_seconds_count", **of) == 2

    run(scene)


def test_a_rejected_request_was_not_admitted() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(max_concurrent=1, max_queued=0)) as stage:
            recorder = attach_recorder(stage)
            go_on = asyncio.Event()

            async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
                await go_on.wait()
                yield TokenDelta([stage.engine.stop_id], finish="stop")

            stage.engine.plan = play
            path = "/v1/chat/completions"
            first = asyncio.create_task(stage.request("POST", path, body(path)))
            await stage.engine.began.wait()
            assert (await stage.request("POST", path, body(path))).status == 429
            refused = await recorder.next()
            assert refused.decoded is not None
            assert (refused.admitted, refused.error) == (None, "rate_limited")
            go_on.set()
            await first
            assert (await recorder.next()).admitted is not None

    run(scene)


def test_first_choice_is_recorded_with_the_tokens_of_all() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
            stage.engine.plan = stage.engine.script(
                f"{REASONING}{CALL}", f"{REASONING}{REASONING}Yes."
            )
            path = "/v1/chat/completions"
            await stage.request("POST", path, body(path, n=2, stream=True))
            end = await recorder.next()
            assert (len(end.reasoning_spans), len(end.calls)) == (1, 1)
            assert end.usage is not None
            texts = (f"{REASONING}{CALL}", f"{REASONING}{REASONING}Yes.")
            generated = sum(len(stage.engine.tokenizer.encode(text)) + 1 for text in texts)
            assert end.usage.output_tokens == generated

    run(scene)


def test_migrations_and_carried_tokens_are_recorded() -> None:
    model = tiny_model()
    engine = StageEngine(model)

    async def play(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        if len(engine.requests) == 1:
            yield TokenDelta(engine.tokenizer.encode("abc"))
            raise EngineUnavailable("gone")
        yield TokenDelta([*engine.tokenizer.encode("def"), engine.stop_id], finish="stop")

    async def scene() -> None:
        engine.plan = play
        preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
        moving = TokenModel(
            (NAME,), model, preparer, ReplicaPool([engine, engine]), migration_limit=1
        )
        async with serving(registry=ModelRegistry([moving])) as stage:
            recorder = attach_recorder(stage)
            path = "/v1/chat/completions"
            reply = await stage.request("POST", path, body(path))
            assert reply.json["choices"][0]["message"]["content"] == "abcdef"
            end = await recorder.next()
            assert (end.migrations, end.carried) == (1, 3)
            assert end.replica in (0, 1)
            of = {"model": NAME}
            assert stage.metric("dovetail_migrations_total", **of) == 1
            assert stage.metric("dovetail_migrated_tokens_total", **of) == 3

    run(scene)


def test_a_failing_recorder_affects_no_request() -> None:
    class Broken(QueueRecorder):
        def ended(self, end: RequestRecord, inside: RequestContents) -> None:
            raise RuntimeError("broken")

    async def scene() -> None:
        async with serving() as stage:
            recorder = QueueRecorder()
            stage.app.recorders = [Broken(), recorder]
            path = "/v1/chat/completions"
            assert (await stage.request("POST", path, body(path))).status == 200
            assert (await recorder.next()).status == 200

    run(scene)


def test_recorders_are_closed_when_the_server_stops() -> None:
    async def scene() -> None:
        async with serving() as stage:
            recorder = attach_recorder(stage)
        assert recorder.closed

    run(scene)
