"""Findings of watch mode: each problem with its cause and cost, on a real server's traffic."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zstandard
from agent_clients import MessagesAgent
from http_fixture import CALL, NAME, Stage, head, run, tiny_model
from watch_fixture import endpoint, plain_server

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.models.loader import Model
from dovetail.prompt.turn_order import order_turns
from dovetail.watch.analysis import ExchangeAnalysis, PromptPrefix, TrafficSummary
from dovetail.watch.analyzer import ExchangeAnalyzer
from dovetail.watch.decoder import decode_exchange
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.prompts import BaselinePrompts, strip_reasoning
from dovetail.watch.reference_model import ReferenceModel, ReferenceModels, build_fallback
from dovetail.watch.report import format_exchange, format_summary
from dovetail.watch.watcher import Watcher
from dovetail_protocols import CHAT

REASONING = "<think>\nI should look.\n</think>\n\n"
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions", "responses": "/v1/responses"}


class Notes:
    """A display that collects analyses."""

    def __init__(self) -> None:
        self.verdicts: list[ExchangeAnalysis] = []

    def show(self, verdict: ExchangeAnalysis, summary: TrafficSummary) -> None:
        self.verdicts.append(verdict)

    def close(self) -> None:
        pass


@asynccontextmanager
async def watched(
    stage: Stage, lens: ReferenceModel | None = None
) -> AsyncIterator[tuple[str, Notes]]:
    """Run watch mode in front of a server. All exchanges are analyzed when the block exits."""
    notes = Notes()
    real = ReferenceModel(tiny_model(), True, "", "hermes")
    watcher = Watcher(endpoint(stage.port), ReferenceModels(lens or real), notes)
    address = await watcher.relay.listen("127.0.0.1", 0)
    watcher.start()
    try:
        yield address, notes
        await watcher.relay.stats.idle.wait()
    finally:
        await watcher.relay.close()
        watcher.close()


async def send_request(
    address: str, path: str, body: dict[str, Any] | bytes, **headers: str
) -> bytes:
    """Send a request over a new connection, and return the bytes of the response body."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {
        "host": "localhost",
        "connection": "close",
        "content-length": str(len(sent)),
        **headers,
    }
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    host, _, port = address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + sent)
    raw = await reader.read(-1)
    writer.close()
    head_bytes, _, rest = raw.partition(b"\r\n\r\n")
    assert b" 200 " in head_bytes.splitlines()[0], raw
    return _joined(rest) if b"chunked" in head_bytes else rest


def _joined(chunked: bytes) -> bytes:
    found = b""
    while True:
        size, _, rest = chunked.partition(b"\r\n")
        if not int(size, 16):
            return found
        found += rest[: int(size, 16)]
        chunked = rest[int(size, 16) + 2 :]


async def step(address: str, agent: Any, result: str = "ok") -> None:
    body = {**agent.body(), "model": NAME}
    if agent.codec.name == "chat":
        body["stream_options"] = {"include_usage": True}
    frames = await send_request(address, PATHS[agent.codec.name], body, **agent.headers)
    calls = agent.receive(frames)
    agent.add_results([(call, result) for call in calls])


def session(
    agent: Any,
    outputs: list[str],
    change: Any = None,
    server: Model | None = None,
    lens: ReferenceModel | None = None,
) -> list[ExchangeAnalysis]:
    """Run a tool loop on a server with these outputs; `change` edits before each step."""
    found: list[ExchangeAnalysis] = []

    async def scene() -> None:
        async with plain_server(server) as stage, watched(stage, lens) as (address, notes):
            stage.engine.plan = stage.engine.script(*outputs)
            agent.add_user_message("What is the weather?")
            for at in range(len(outputs)):
                if change is not None:
                    change(agent, at)
                await step(address, agent)
        found.extend(notes.verdicts)

    run(scene)
    return found


CALL_TOOL = CALL.replace("look_up", "run_command").replace("city", "command")
LOOP = [REASONING + CALL_TOOL, REASONING + "And again." + CALL_TOOL, "It is sunny."]


def codes(verdict: ExchangeAnalysis) -> list[str]:
    return [f.code for f in (verdict.broke, *verdict.findings) if f is not None]


class Thoughtless(MessagesAgent):
    """A client that does not send reasoning back."""

    def body(self) -> dict[str, Any]:
        body = super().body()
        body["messages"] = [_without_reasoning(message) for message in self.history]
        return body


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    blocks = [block for block in message["content"] if block["type"] != "thinking"]
    return {**message, "content": blocks}


class Biller(MessagesAgent):
    """A client whose billing line has a different number in each request."""

    turns = 0

    def body(self) -> dict[str, Any]:
        self.turns += 1
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.{self.turns};"}
        body = super().body()
        return {**body, "system": [line, *body["system"]]}


class Counter(MessagesAgent):
    """A client with a running token counter in its system text."""

    turns = 0

    def body(self) -> dict[str, Any]:
        self.turns += 1
        self.system = f"You are careful.\nToken usage: {self.turns}/9000; 8 remaining\nWork."
        return super().body()


class Rewriter(MessagesAgent):
    """A client that rewrites numbers and reorders keys."""

    def receive(self, frames: bytes) -> Any:
        calls = super().receive(frames)
        for block in self.history[-1]["content"]:
            if block["type"] == "tool_use":
                block["input"] = {"timeout": 5, **block["input"]}
        return calls


def test_session_without_problems_has_no_findings() -> None:
    first, second, third = session(MessagesAgent(), LOOP)
    assert [codes(one) for one in (first, second, third)] == [[], [], []]
    assert {one.basis for one in (first, second, third)} == {"confirmed"}
    assert [one.needless for one in (first, second, third)] == [0, 0, 0]
    for before, after in ((first, second), (second, third)):
        assert before.served is not None
        assert after.served is not None
        assert before.prompt_tokens is not None
        assert before.output_tokens is not None
        # All except the stop token; the server's own counts agree.
        assert after.served.reused == before.prompt_tokens + before.output_tokens - 1
        assert after.served.total == after.prompt_tokens
    assert [one.calls for one in (first, second, third)] == [1, 1, 0]
    assert [one.has_reasoning for one in (first, second, third)] == [True, True, False]
    assert second.tool_gap is not None
    assert len(first.dispatch) == 1


def test_changed_billing_line_invalidates_the_prompt() -> None:
    _, second, third = session(Biller(), LOOP)
    for one in (second, third):
        assert codes(one) == ["billing"]
        assert one.broke is not None
        assert one.broke.detail.startswith("line 1: ")
        assert one.served is not None
        assert one.exact is not None
        assert one.served.reused < one.exact.reused
        # Dovetail removes the line; the rest is computed once.
        assert one.needless == one.served.prefill_tokens - one.exact.prefill_tokens > 100


def test_retokenized_turn_is_reported() -> None:
    """This template omits the line break before a call, which the server's count reveals."""
    outputs = [LOOP[0], REASONING + "And again.\n" + CALL_TOOL, "It is sunny."]
    _, second, third = session(MessagesAgent(), outputs)
    assert (codes(second), codes(third)) == ([], ["retokenization"])
    assert third.basis == "confirmed"
    assert third.needless == len(tokens(CALL_TOOL))


def test_running_counter_is_reported_with_its_line() -> None:
    _, second, _ = session(Counter(), LOOP)
    assert codes(second) == ["volatile"]
    assert second.broke is not None
    assert second.broke.detail.startswith("line 2: ")


def test_reasoning_not_returned_by_the_client() -> None:
    first, second, third = session(Thoughtless(), LOOP)
    assert codes(second) == codes(third) == ["thoughts_not_returned"]
    assert first.prompt_tokens is not None
    assert first.output_tokens is not None
    assert second.served is not None
    assert second.exact is not None
    assert second.served.reused == first.prompt_tokens  # up to the reasoning
    assert second.exact.reused == first.prompt_tokens + first.output_tokens - 1
    # Tokens after the missing reasoning are re-prefilled; with the reasoning, none are.
    assert second.exact.total - second.served.total == len(tokens(REASONING))
    assert second.needless == len(tokens(CALL_TOOL))


def tokens(text: str) -> list[int]:
    return tiny_model().tokenizer.encode(text)


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda tools: dict(reversed(tools.items())), "the same tools in another order"),
        (lambda tools: {**tools, "more": {"type": "object"}}, "added: more"),
        (lambda tools: dict(list(tools.items())[:1]), "removed: edit_file"),
        (lambda tools: {**tools, "edit_file": {"type": "object"}}, "changed: edit_file"),
    ],
    ids=["order", "added", "removed", "changed"],
)
def test_changed_tools_are_reported(change: Any, detail: str) -> None:
    def edit(agent: Any, at: int) -> None:
        if at == 1:
            agent.tools = change(agent.tools)

    _, second, third = session(MessagesAgent(), LOOP, edit)
    assert codes(second) == ["tools"]
    assert second.broke is not None
    assert second.broke.detail.startswith(detail)
    assert codes(third) == []


def test_changed_system_text_is_reported() -> None:
    def edit(agent: Any, at: int) -> None:
        agent.set_system(f"You are careful.\nIt is {'five' if at else 'four'} o'clock.")

    _, second, third = session(MessagesAgent(), LOOP, edit)
    assert codes(second) == ["system"]
    assert second.broke is not None
    assert second.broke.detail.startswith('line 2: "It is four')
    assert codes(third) == []


def test_edited_turn_is_reported() -> None:
    def edit(agent: Any, at: int) -> None:
        if at == 2:
            agent.history[2]["content"][0]["content"] = "something else"

    *_, third = session(MessagesAgent(), LOOP, edit)
    assert codes(third) == ["history"]
    assert third.broke is not None
    assert third.broke.detail.startswith("turn 2 (tool): ")
    assert third.needless == 0  # no server could avoid it


def test_rewritten_arguments_are_reported() -> None:
    outputs = [REASONING + CALL_TOOL.replace('"Oslo"', '"Oslo", "timeout": 5.0'), "Fine."]
    _, second = session(Rewriter(), outputs)
    assert codes(second) == ["rewritten"]
    assert second.needless > 0


def without_tool_parser() -> Model:
    model = tiny_model()
    return replace(model, parsers=replace(model.parsers, tool=None))


@pytest.mark.parametrize("lens", [None, build_fallback("Qwen3-8B"), build_fallback("who-knows")])
def test_call_left_in_text_is_reported(lens: ReferenceModel | None) -> None:
    """The server has no tool parser configured; tested with and without a tokenizer."""
    outputs = [REASONING + "I look. " + CALL_TOOL, "Fine."]
    first, second = session(MessagesAgent(), outputs, server=without_tool_parser(), lens=lens)
    assert codes(first) == ["call_as_text"]
    assert first.findings[0].detail == "a call of run_command is in the text"
    assert (first.calls, codes(second)) == (0, [])


def test_quoted_call_is_not_reported() -> None:
    outputs = ["One writes " + CALL_TOOL.replace("run_command", "some_tool") + " for that."]
    (only,) = session(MessagesAgent(), outputs, server=without_tool_parser())
    assert codes(only) == []


def test_reasoning_ignored_by_the_server() -> None:
    """The server's prompt count shows that returned reasoning is not in the prompt."""
    assistant = {"role": "assistant", "content": "Hm.", "reasoning_content": "I should look."}
    body = {"messages": [{"role": "user", "content": "Hi!"}, assistant, FOLLOW_UP]}
    request = order_turns(CHAT.decode(json.dumps({"model": NAME, **body}).encode(), {}))
    counted = len(BaselinePrompts(tiny_model()).render(strip_reasoning(request)))
    response = {
        "choices": [{"index": 0, "message": {"content": "Fine."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": counted, "completion_tokens": 6},
    }
    found = look(chat_exchange(body, response))
    assert (codes(found), found.basis) == (["thoughts_not_read"], "confirmed")
    assert found.served is not None
    assert found.served.total == counted


FOLLOW_UP = {"role": "user", "content": "And now?"}


def look(exchange: CapturedExchange) -> ExchangeAnalysis:
    analyzer = ExchangeAnalyzer(ReferenceModels(ReferenceModel(tiny_model(), True, "", "hermes")))
    try:
        return analyzer.analyze(exchange)
    finally:
        analyzer.close()


def test_token_ids_of_the_server_are_used() -> None:
    model = tiny_model()
    ids = model.tokenizer.encode("It is  sunny.")
    prompt = list(range(40))
    choice = {"index": 0, "message": {"content": "It is  sunny."}, "finish_reason": "stop"}
    response = {
        "prompt_token_ids": prompt,
        "choices": [{**choice, "token_ids": [*ids, *model.stop_ids]}],
        "usage": {"prompt_tokens": 40, "completion_tokens": len(ids) + 1},
    }
    body = {"messages": [{"role": "user", "content": "Hi!"}], "return_token_ids": True}
    exchange = chat_exchange(body, response)
    assert decode_exchange(exchange).response.output_ids == (*ids, *model.stop_ids)
    found = look(exchange)
    assert (found.basis, found.served) == ("confirmed", PromptPrefix(40, 0))


def chat_exchange(body: dict[str, Any], response: dict[str, Any]) -> CapturedExchange:
    fields: dict[str, Any] = {
        "number": 1,
        "method": "POST",
        "target": "/v1/chat/completions",
        "began": 0.0,
        "request_received": 0.0,
        "ended": 1.0,
        "status": 200,
        "request_headers": {},
        "response_headers": {"content-type": "application/json"},
        "request": json.dumps({"model": NAME, **body}).encode(),
        "response": json.dumps(response).encode(),
    }
    return CapturedExchange(**fields)


PICTURE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}


@pytest.mark.parametrize(
    ("body", "more", "expected"),
    [
        ({"messages": 7}, {}, "not decodable: "),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, {}, "prompts cannot be compared"),
        ({"messages": [{"role": "user", "content": "Hi!"}]}, {"status": 500}, ""),
        ({"messages": [{"role": "user", "content": "Hi!"}]}, {"response": b"<html>"}, ""),
        (
            {"messages": [{"role": "user", "content": "Hi!"}]},
            {"response": b"", "truncated": True},
            "",
        ),
    ],
    ids=["no request", "a picture", "an error", "no answer of the API", "hung up"],
)
def test_failed_exchanges_are_reported(
    body: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    found = look(msgspec.structs.replace(chat_exchange(body, {}), **more))
    assert found.unread.startswith(expected)
    assert bool(found.unread) == bool(expected)
    assert format_exchange(found)


@pytest.mark.parametrize("status", [0, 404, 429, 503])
def test_rejected_requests_are_not_counted(status: int) -> None:
    """A rejected client retries: the prompt counts once, when it gets a response."""
    body = {"messages": [{"role": "user", "content": "Hi! " * 100}]}
    assistant = {"role": "assistant", "content": "Hello."}
    exchange = chat_exchange(body, {"choices": [{"message": assistant, "finish_reason": "stop"}]})
    analyzer = ExchangeAnalyzer(ReferenceModels())
    refused = analyzer.analyze(msgspec.structs.replace(exchange, status=status))
    found = analyzer.analyze(exchange)
    analyzer.close()
    assert refused.served is None
    assert found.served is not None
    assert found.served.reused == 0


def test_compressed_requests_are_decoded() -> None:
    body = json.dumps(HELLO).encode()
    notes: list[ExchangeAnalysis] = []

    async def scene() -> None:
        async with plain_server() as stage, watched(stage) as (address, found):
            for coding, sent in (("gzip", gzip.compress(body)), ("zstd", zstandard.compress(body))):
                headers = {"content-encoding": coding}
                await send_request(address, "/v1/chat/completions", sent, **headers)
        notes.extend(found.verdicts)

    run(scene)
    assert [one.basis for one in notes] == ["confirmed", "confirmed"]
    assert {one.session for one in notes} == {"unnamed 1", "unnamed 2"}


def test_interleaved_reasoning_returned_in_another_order() -> None:
    between = "\n<think>\nAnd?\n</think>\nText." + CALL_TOOL
    _, second = session(Grouping(), [REASONING + CALL_TOOL + between, "Fine."])
    assert codes(second) == ["regrouped"]
    assert second.broke is not None
    assert second.broke.detail == (
        "generated as reasoning, call, reasoning, text, call, "
        "returned as reasoning, text, call, call"
    )


class Grouping(MessagesAgent):
    """A client that moves calls to the end of a turn, like Claude Code."""

    def receive(self, frames: bytes) -> Any:
        calls = super().receive(frames)
        self.history[-1]["content"].sort(key=lambda block: block["type"] == "tool_use")
        return calls


def test_all_numbers_are_estimates_without_a_tokenizer() -> None:
    first, second, _ = session(MessagesAgent(), LOOP, lens=build_fallback(NAME))
    assert {first.basis, second.basis} == {"estimated"}
    assert first.served is not None
    assert first.served.total == first.prompt_tokens  # scaled to the server's count
    assert codes(second) == []
    assert "~" in format_exchange(second)
    _, second, _ = session(Biller(), LOOP, lens=build_fallback(NAME))
    assert codes(second) == ["billing"]


def test_unnamed_session_is_matched_by_its_turns() -> None:
    agent = MessagesAgent()
    agent.headers = {"anthropic-version": "2023-06-01"}
    found = session(agent, LOOP)
    assert {one.session for one in found} == {"unnamed 1"}
    assert [codes(one) for one in found] == [[], [], []]


def test_disconnect_stops_the_engine_and_is_reported() -> None:
    found: list[ExchangeAnalysis] = []

    async def hanging(request: EngineRequest) -> AsyncGenerator[TokenDelta]:
        yield TokenDelta(tiny_model().tokenizer.encode("Well, "))
        await asyncio.Event().wait()

    async def scene() -> None:
        async with plain_server() as stage, watched(stage) as (address, notes):
            stage.engine.plan = hanging
            host, _, port = address.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            body = {**HELLO, "stream": True}
            sent = json.dumps(body).encode()
            writer.write(head("POST", "/v1/chat/completions", len(sent)) + sent)
            await reader.readuntil(b"Well")
            writer.close()
            await stage.engine.closed.wait()
        found.extend(notes.verdicts)

    run(scene)
    assert [one.truncated for one in found] == [True]
    assert "truncated" in format_exchange(found[0])


HELLO = {"model": NAME, "messages": [{"role": "user", "content": "Hi!"}]}


def test_summary_has_advice() -> None:
    text = format_summary(TrafficSummary(session(Biller(), LOOP)), {})
    assert "3 requests in 1 session " in text
    assert "2 × the billing line at the start of the system text changed" in text
    assert "`dovetail serve` removes it" in text
    assert "3 × counted with the model's tokenizer and template, confirmed by the server" in text
