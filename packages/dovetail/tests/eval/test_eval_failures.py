"""Problems of an endpoint are reported, immediately if it cannot be evaluated."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from http_fixture import run
from upstream_environment import (
    FakeRequest,
    FakeResponse,
    chunks,
    fake_upstream,
    rejection,
    stream,
    user,
)
from watch_fixture import listening

from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.metrics import PassMetrics, PromptStats, sum_prefix_stats
from dovetail.eval.report import build_notes, to_report_json
from dovetail.eval.runner import EvalPlan, run_eval
from dovetail.eval.target import EvalError, EvalOptions, EvalTarget, inspect_target
from dovetail.eval.tasks import TASKS
from dovetail.net.http_client import Endpoint
from dovetail_model import Identity, Sampling, ToolCallBlock

ONE = EvalPlan(TASKS[:1], apis=(), sampling=Sampling(max_tokens=100))
TWO = replace(ONE, tasks=TASKS[:2])
BROKEN = FakeResponse(body=b"no chunk\r\n", headers=(("transfer-encoding", "chunked"),))


def listed(**card: Any) -> FakeResponse:
    return FakeResponse(body=json.dumps({"data": [{"id": "m", **card}]}).encode())


def served(*responses: FakeResponse, models: FakeResponse | None = None) -> Any:
    """Return a server that sends these responses to chat requests, the last one repeatedly."""
    left = list(responses)

    def reply(request: FakeRequest) -> FakeResponse:
        if request.path == "/v1/models":
            return models or listed()
        if request.path != "/v1/chat/completions":
            return rejection(404, "no such path")
        return left.pop(0) if len(left) > 1 else left[0]

    return reply


def examined(reply: Any, **options: Any) -> EvalTarget:
    found: list[EvalTarget] = []

    async def scene() -> None:
        async with fake_upstream(reply) as fake:
            found.append(await inspect_target(EvalOptions(str(fake.endpoint), **options)))

    run(scene)
    return found[0]


def tried(reply: Any, plan: EvalPlan = ONE) -> tuple[EvalTarget, list[PassMetrics], list[Any]]:
    """Run a plan, and return the metrics and the request bodies that the server received."""
    found: list[tuple[EvalTarget, list[PassMetrics], list[Any]]] = []

    async def scene() -> None:
        async with fake_upstream(reply) as fake:
            target = await inspect_target(EvalOptions(str(fake.endpoint)))
            passes = await run_eval(target, plan, lambda name, run: None)
            found.append((target, passes, fake.bodies()))

    run(scene)
    return found[0]


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        (rejection(401, "who are you?"), {}, "(401): pass its key with --api-key"),
        (FakeResponse(body=b'{"data": []}'), {}, "serves no model yet"),
        (rejection(404, "no"), {}, "does not list its models: set --model"),
        (listed(), {"model": "other"}, "does not serve --model 'other', only m"),
        (listed(max_model_len=2048), {}, ">= 6,000 tokens for the tasks, got 2,048"),
        (listed(), {"api_key": "schlüssel"}, "--api-key contains characters"),
    ],
)
def test_unusable_targets_are_reported_at_once(
    models: FakeResponse, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(EvalError) as fault:
        examined(served(stream(), models=models), **options)
    assert words in str(fault.value)


def test_unreachable_server_is_reported_at_once() -> None:
    async def scene() -> None:
        with pytest.raises(EvalError, match="is a server running there"):
            await inspect_target(EvalOptions("http://127.0.0.1:9"))

    run(scene)


@pytest.mark.parametrize(
    ("card", "version", "engine"),
    [
        ({"owned_by": "vllm"}, None, "vllm"),
        ({"owned_by": "sglang"}, None, "sglang"),
        ({"owned_by": "me"}, b'{"version": "0.32.0"}', "vllm"),
        ({"owned_by": "me"}, b"1.0", "openai"),
        ({}, None, "openai"),
    ],
)
def test_server_kind_is_detected(card: dict[str, Any], version: bytes | None, engine: str) -> None:
    """Token ids are requested only from vLLM; without a tokenizer, Dovetail sends messages."""

    def reply(request: FakeRequest) -> FakeResponse:
        if request.path == "/version" and version is not None:
            return FakeResponse(body=version)
        return served(stream(), models=listed(**card))(request)  # type: ignore[no-any-return]

    target = examined(reply)
    assert target.supports_token_ids == (engine == "vllm")
    assert target.engine == "openai"
    assert ("--tokenizer" in target.engine_reason) == (engine != "openai")


def test_server_without_tools_gets_one_request() -> None:
    words = '"auto" tool choice requires --enable-auto-tool-choice'
    target, (off,), bodies = tried(served(rejection(400, words)), TWO)
    assert off.refused == f"status 400: {words}"
    assert off.faults == (f"write, request 1: status 400: {words}",)
    assert len(bodies) == 1
    assert ("Rejected", [f"off: status 400: {words}"]) in build_notes(target, [off])


@pytest.mark.parametrize("status", [401, 403])
def test_key_is_never_shown_even_if_the_server_quotes_it(status: int) -> None:
    words = "Incorrect API key provided: Bearer sk-secret"
    target, (off,), _ = tried(served(rejection(status, words)))
    assert off.refused == f"status {status}: the server rejects the key (--api-key)"
    assert "sk-secret" not in repr(off) + json.dumps(to_report_json(target, [off]))


def test_server_that_aborts_the_first_response_gets_one_request() -> None:
    """Otherwise an unresponsive server would time out in every task."""
    _, (off,), bodies = tried(served(BROKEN), TWO)
    assert len(bodies) == 1
    assert "invalid response" in off.refused
    assert len(off.faults) == 1


@pytest.mark.parametrize("limit", [{"max_response_bytes": 100}, {"max_tool_calls": 1}])
def test_endless_response_is_aborted(limit: dict[str, Any]) -> None:
    many = [
        {"tool_calls": [{"index": at, "id": f"c{at}", **_function("list_files", "{}")}]}
        for at in range(4)
    ]
    endless = FakeResponse(body=chunks(*many, reason=None, done=False), kind="text/event-stream")

    async def scene() -> None:
        async with fake_upstream(served(replace(endless, ends=False))) as fake:
            client = ApiClient(fake.endpoint, APIS["chat"], **limit)
            response = await client.send(user("Go."), lambda call: None)
        assert (
            response.connection_error
            == "the response exceeds every limit: the server ignores max_tokens"
        )

    run(scene)


def test_cache_reports_of_one_endpoint_are_not_expected_of_another() -> None:
    """SGLang reports cached tokens for token prompts, and for chats only if configured."""
    silent = [PromptStats(True, prompt_tokens=100), PromptStats(False, True, 10, prompt_tokens=120)]
    reported = [
        PromptStats(True, prompt_tokens=100),
        PromptStats(False, True, 10, prompt_tokens=120, cached_tokens=110),
    ]
    assert (sum_prefix_stats(silent).computed, sum_prefix_stats(silent).again) == (None, None)
    assert (sum_prefix_stats(reported).computed, sum_prefix_stats(reported).again) == (110, 0)


def test_truncated_response_leaves_other_counts() -> None:
    usage = {"prompt_tokens": 900, "completion_tokens": 5, "total_tokens": 905}
    whole = chunks({"content": "Done."}, done=False)
    whole += f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
    good = FakeResponse(body=whole, kind="text/event-stream")
    _, (off,), _ = tried(served(good, BROKEN), TWO)
    assert len(off.faults) == 1
    assert off.prefixes.prompt == 900


def test_dovetail_startup_failure_is_reported_in_one_line() -> None:
    """The server disappears while Dovetail probes its capabilities."""

    def reply(request: FakeRequest) -> FakeResponse:
        if request.method == "POST":
            return BROKEN
        return served(stream())(request)  # type: ignore[no-any-return]

    with pytest.raises(
        EvalError, match=r"Dovetail cannot start in front of http://.*invalid response"
    ):
        tried(reply, replace(ONE, apis=("chat",)))


def test_context_overflow_is_not_a_protocol_error() -> None:
    words = "This model's maximum context length is 8192 tokens."
    first = stream(_call("list_files", "{}", "c1"), reason="tool_calls")
    _, (off,), _ = tried(served(first, rejection(400, words)))
    assert off.faults == ()
    assert off.done[0].why == "the prompt exceeded the model's context length"


@pytest.mark.parametrize(
    ("responses", "fault"),
    [
        (
            [stream({"content": "x"}, reason=None, done=False)],
            "closed the stream before the end of the response",
        ),
        ([rejection(500, "out of memory")], "status 500: out of memory"),
        (
            [FakeResponse(body=b"data: {oops\n\n" + chunks(), kind="text/event-stream")],
            "a frame of the stream could not be parsed",
        ),
        ([stream({"content": "x"}, reason="tool_calls")], "but the response has none"),
    ],
)
def test_protocol_errors_are_counted(responses: list[FakeResponse], fault: str) -> None:
    _, (off,), _ = tried(served(*responses))
    assert [fault in one for one in off.faults] == [True]
    assert off.done[0].requests == 1


def test_duplicate_call_ids_are_a_protocol_error() -> None:
    same = stream(_call("list_files", "{}", "c1"), reason="tool_calls")
    _, (off,), _ = tried(served(same))
    assert off.faults == ("write, request 2: two tool calls of the session have the same id (c1)",)


def test_calls_and_results_are_sent_back_like_agents_do() -> None:
    """Reasoning is in its field, and invalid arguments become an object that any server accepts."""
    first = stream(
        {"reasoning_content": "Hm."},
        _call("write_file", '{"path": "a", "content": oops', "c1"),
        {"tool_calls": [{"index": 1, "id": "c2", **_function("list_files", "{}")}]},
        {"reasoning_content": " And?"},
        reason="tool_calls",
    )
    _, (off,), bodies = tried(served(first, stream({"content": "Done."})))
    assert (off.calls.made, off.calls.valid_json, off.calls.together) == (2, 1, 2)
    assistant, *results = bodies[1]["messages"][2:]
    assert assistant["reasoning_content"] == "Hm. And?"
    sent = [json.loads(one["function"]["arguments"]) for one in assistant["tool_calls"]]
    assert sent == [{"input": '{"path": "a", "content": oops'}, {}]
    assert [one["tool_call_id"] for one in results] == ["c1", "c2"]
    assert "not JSON" in results[0]["content"]
    assert results[1]["content"] == "(no files)"


def test_calls_left_in_text_are_counted() -> None:
    """vLLM does this without a tool parser: no tool runs, and no error explains it."""
    text = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'
    _, (off,), _ = tried(served(stream({"content": text})))
    assert (off.calls.made, off.calls.left_in_text) == (0, 1)
    assert off.done[0].why == "no tool was called"


def test_unreported_usage_is_unknown() -> None:
    first = stream(_call("list_files", "{}", "c1"), reason="tool_calls")
    target, (off,), _ = tried(served(first, stream({"content": "Done."})))
    assert (off.prefixes.prompt, off.prefixes.computed, off.prefixes.again) == (None, None, None)
    assert off.prefixes.unknown_prompts == off.prefixes.later == 1
    titles = dict(build_notes(target, [off]))
    assert len(titles["Unknown"]) == 2
    prefixes = to_report_json(target, [off])["passes"][0]["prefixes"]
    assert (prefixes["prompt"], prefixes["computed"], prefixes["unknown"]) == (None, None, 1)


DISPATCH = 'event: tool_call_dispatch\ndata: {"choice_index": 0}\n\n'


@pytest.mark.parametrize(
    ("dispatch", "order"), [(DISPATCH, ["tool", "end"]), ("", ["end", "tool"])]
)
def test_tool_starts_when_its_call_is_complete(dispatch: str, order: list[str]) -> None:
    """A plain chat reveals it only at the end; with dispatch events the agent does not wait."""
    happened: list[str] = []

    async def scene() -> None:
        started = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            writer.write(chunks(_call("list_files", "{}", "c1"), reason=None, done=False))
            writer.write(dispatch.encode())
            await writer.drain()
            if dispatch:
                await started.wait()
            happened.append("end")
            writer.write(chunks(reason="tool_calls"))
            await writer.drain()

        def start(call: ToolCallBlock) -> None:
            happened.append("tool")
            started.set()

        async with listening(serve) as port:
            client = ApiClient(Endpoint(port=port), APIS["chat"])
            response = await client.send(user("Go.", identity=Identity(session="s")), start)
        (times,) = response.call_timings
        assert times.received <= times.ready <= response.exchange.ended
        assert response.connection_error == ""

    run(scene)
    assert happened == order


def _function(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _call(name: str, arguments: str, id: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": id, **_function(name, arguments)}]}
