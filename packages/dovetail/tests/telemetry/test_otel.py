"""Spans as received by a collector: parents, attributes, and no text."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_fixture import CALL, NAME, Stage, run, serving
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from otel_collector import Collector, Span, collecting
from raw_http_server import read_request, server
from server_process import dovetail, qwen_folder, served

from dovetail.net.http_client import ClientRequest, fetch
from dovetail.net.trace_context import (
    SpanRef,
    current_trace,
    parse_traceparent,
    propagation_headers,
    trace_scope,
)
from dovetail.telemetry.otel import TelemetryError, open_telemetry
from dovetail.telemetry.otel.recorder import MAX_CHILD_SPANS, child_spans, span_attributes
from dovetail.telemetry.record import OutputSpan, RequestRecord
from dovetail.telemetry.record import ToolCallRecord as ToolCall
from dovetail_model import Usage

SERVER = 2  # the span kind in the protocol
ERROR = 2
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"
SECRET = "Oslo-and-nothing-else"
BODY = {"model": NAME, "max_tokens": 999, "messages": [{"role": "user", "content": SECRET}]}
TOOL = {"name": "look_up", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with collecting() as running:
        yield running


def _play(collector: Collector, *bodies: dict[str, Any], plan: str, **headers: str) -> list[Span]:
    """Send requests to a server that exports spans, and stop it to flush them."""

    async def scene() -> None:
        async with serving(recorders=[open_telemetry(collector.url)]) as stage:
            stage.engine.plan = stage.engine.script(plan)
            for body in bodies:
                reply = await stage.request("POST", "/v1/messages", body, **headers)
                assert reply.status < 500, reply.body

    run(scene)
    return collector.wait(len(bodies), "chat")


REASONING_AND_CALL = f"<think>\nHm, {SECRET}.\n</think>\n\n{CALL}"


@pytest.mark.parametrize("stream", [True, False])
def test_a_span_follows_the_semantic_conventions(collector: Collector, stream: bool) -> None:
    body = {**BODY, "stream": stream, "tools": [TOOL]}
    (span,) = _play(
        collector,
        body,
        plan=REASONING_AND_CALL,
        x_claude_code_session_id="s-1",
        x_claude_code_agent_id="a-1",
    )
    assert (span.name, span.kind, span.parent) == (f"chat {NAME}", SERVER, "")
    assert set(collector.paths) == {"/v1/traces"}
    attributes = span.attributes
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == attributes["gen_ai.response.model"] == NAME
    assert attributes["gen_ai.request.stream"] is stream
    assert attributes["gen_ai.conversation.id"] == "s-1"
    assert attributes["gen_ai.agent.id"] == "a-1"
    assert attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert attributes["gen_ai.usage.input_tokens"] > len(SECRET)
    assert (
        attributes["gen_ai.usage.output_tokens"]
        > attributes["gen_ai.usage.reasoning.output_tokens"]
        > 0
    )
    assert attributes["http.response.status_code"] == 200
    assert 0 < attributes["gen_ai.response.time_to_first_chunk"] <= (span.end - span.begin) / 1e9
    assert span.events == ("first_token",)
    assert span.resource["service.name"] == "dovetail"
    known = {v for k, v in vars(gen_ai_attributes).items() if k.startswith("GEN_AI_")}
    assert {name for name in attributes if name.startswith("gen_ai.")} <= known


def test_parts_of_a_request_are_child_spans(collector: Collector) -> None:
    (span,) = _play(collector, {**BODY, "stream": True, "tools": [TOOL]}, plan=REASONING_AND_CALL)
    children = {child.name: child for child in collector.children(span)}
    assert set(children) == {"queue", "prepare", "prefill", "generate", "reasoning", "call"}
    for child in children.values():
        assert child.trace == span.trace
        assert span.begin <= child.begin <= child.end <= span.end
    assert children["call"].attributes["gen_ai.tool.name"] == "look_up"
    assert children["call"].attributes["gen_ai.tool.call.id"].startswith("toolu_")


def test_spans_contain_no_text(collector: Collector) -> None:
    _play(collector, {**BODY, "stream": True, "tools": [TOOL]}, plan=REASONING_AND_CALL)
    assert len(collector.raw) > 500
    for text in (SECRET, "Hm,", "city", "Oslo"):
        assert text.encode() not in collector.raw


def test_a_span_continues_the_trace_of_the_client(collector: Collector) -> None:
    spans = _play(collector, BODY, BODY, plan="Hello.", traceparent=HEADER, tracestate="a=1,b=2")
    assert {(span.trace, span.parent, span.state) for span in spans} == {(TRACE, PARENT, "a=1,b=2")}
    assert len({span.id for span in spans} | {PARENT}) == 3


def test_unsampled_client_traces_are_not_recorded(collector: Collector) -> None:
    async def scene() -> None:
        async with serving(recorders=[open_telemetry(collector.url)]) as stage:
            quiet = HEADER[:-1] + "0"
            await stage.request("POST", "/v1/messages", {**BODY}, traceparent=quiet)
            await stage.request("POST", "/v1/messages", {**BODY}, traceparent="nonsense")

    run(scene)
    (span,) = collector.wait(1, "chat")
    assert span.trace != TRACE
    assert span.parent == ""
    assert {one.trace for one in collector.spans} == {span.trace}


def test_a_sampler_can_be_chosen(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-models")
    (span,) = _play(collector, BODY, plan="Hello.", traceparent=HEADER)
    assert span.resource["service.name"] == "my-models"

    async def scene() -> None:
        async with serving(recorders=[open_telemetry(collector.url)]) as stage:
            await stage.request("POST", "/v1/messages", BODY)

    run(scene)
    assert {one.trace for one in collector.spans} == {TRACE}


def test_failure_sets_the_error_type(collector: Collector) -> None:
    async def scene() -> None:
        async with serving(recorders=[open_telemetry(collector.url)]) as stage:
            stage.engine.plan = _broken(stage)
            assert (await stage.request("POST", "/v1/messages", BODY)).status >= 500
            unknown = {**BODY, "model": "nobody"}
            assert (await stage.request("POST", "/v1/messages", unknown)).status == 404

    run(scene)
    broken, refused = collector.wait(2, "chat")
    assert broken.status == ERROR
    assert broken.attributes["error.type"]
    assert refused.status != ERROR
    assert refused.attributes["http.response.status_code"] == 404


def _broken(stage: Stage) -> Any:
    async def play(request: Any) -> Any:
        if request.prompt:
            raise RuntimeError(SECRET)
        yield

    return play


@pytest.mark.long
def test_an_unreachable_collector_affects_no_request() -> None:
    async def scene() -> None:
        async with serving(recorders=[open_telemetry("http://127.0.0.1:9")]) as stage:
            for _ in range(20):
                assert (await stage.request("POST", "/v1/messages", BODY)).status == 200

    run(scene)


@pytest.mark.parametrize("given", ["nowhere", "ftp://x", "http://", "127.0.0.1:4318"])
def test_invalid_endpoints_are_reported(given: str) -> None:
    with pytest.raises(TelemetryError, match="must be an http:// or https:// URL"):
        open_telemetry(given)


def test_missing_extra_is_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in [m for m in sys.modules if m.startswith("dovetail.telemetry.otel.")]:
        if module.endswith(("recorder", "decided")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "opentelemetry.context", None)
    with pytest.raises(TelemetryError, match=r"pip install 'dovetail\[otel\]'"):
        open_telemetry("http://127.0.0.1:4318")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (HEADER, SpanRef(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-00", SpanRef(TRACE, PARENT, False)),
        (f"00-{TRACE}-{PARENT}-fe", SpanRef(TRACE, PARENT, False)),
        (f"cc-{TRACE}-{PARENT}-01-and-more", SpanRef(TRACE, PARENT, True)),
        (f"00-{TRACE}-{PARENT}-01-and-more", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (HEADER.upper(), None),
        (f"{HEADER}\n", None),
        (f"{HEADER}, {HEADER}", None),
        ("", None),
        (None, None),
    ],
)
def test_traceparent_follows_the_w3c_specification(given: str | None, read: SpanRef | None) -> None:
    assert parse_traceparent(given) == read


def test_trace_context_is_sent_to_the_engine() -> None:
    heads: list[str] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await read_request(reader))[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def scene() -> None:
        own = SpanRef(TRACE, "1" * 16, True)
        async with server(respond) as endpoint:
            await fetch(endpoint, ClientRequest("GET", "/"))
            with trace_scope({"traceparent": HEADER, "tracestate": "a=1"}):
                await fetch(endpoint, ClientRequest("GET", "/"))
            with trace_scope({"traceparent": HEADER, "tracestate": "\x7f"}, lambda parent: own):
                await asyncio.create_task(fetch(endpoint, ClientRequest("GET", "/")))
            with trace_scope({"tracestate": "a=1"}):
                await fetch(endpoint, ClientRequest("GET", "/"))

    asyncio.run(scene())
    assert ["traceparent" in head for head in heads] == [False, True, True, False]
    assert f"traceparent: {HEADER}" in heads[1]
    assert "tracestate: a=1" in heads[1]
    assert f"traceparent: 00-{TRACE}-{'1' * 16}-01" in heads[2]
    assert "tracestate" not in heads[2]
    assert (propagation_headers(), current_trace().parent) == ({}, None)


def test_the_number_of_child_spans_is_limited() -> None:
    calls = tuple(ToolCall(id=f"c{at}", name="", begin=1.0) for at in range(1000))
    end = RequestRecord(
        id="r",
        endpoint="messages",
        status=200,
        duration=9.0,
        calls=calls,
        reasoning_spans=(OutputSpan(0.5, 0.75),),
        usage=Usage(input_tokens=1),
    )
    found = list(child_spans(end))
    assert len(found) == MAX_CHILD_SPANS
    assert found[0].name == "reasoning"
    assert (found[1].end, found[1].attributes) == (9.0, {"gen_ai.tool.call.id": "c0"})
    assert all(value is not None for value in span_attributes(end).values())


def test_two_chained_servers_share_one_trace(collector: Collector, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps([{"text": "Hello."}]))
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    spans = ("--otlp-endpoint", collector.url)
    model = qwen_folder(tmp_path / "model")
    engine = (model, "--engine", "scripted", "--script", script, "--served-model-name", "m")
    with (
        served(*engine, *spans, environment=quick | {"OTEL_SERVICE_NAME": "behind"}) as behind,
        served(
            *("--engine", "openai", "--engine-url", f"{behind.url}/v1", *spans),
            environment=quick | {"OTEL_SERVICE_NAME": "front"},
        ) as front,
    ):
        front.post("/v1/messages", {**BODY, "model": "m"}, traceparent=HEADER)
        ours = collector.wait(2, "chat", TRACE)  # without discovery of the upstream
    found = {span.resource["service.name"]: span for span in ours}
    assert found["front"].parent == PARENT
    assert found["behind"].parent == found["front"].id


def test_invalid_endpoint_is_reported_before_the_model_loads(tmp_path: Path) -> None:
    ended = dovetail("serve", "--otlp-endpoint", "nowhere", "--http-port", "0", home=tmp_path)
    assert ended.status == 1
    assert "--otlp-endpoint must be an http:// or https:// URL, got nowhere" in ended.err
