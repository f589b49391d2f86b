"""One choice on a scripted engine: reasoning budgets, choices, engine requests."""

import asyncio
import secrets

import pytest
from collecting_sink import RecordingSink

from dovetail.demo.session import build_demo_model
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, parse_script
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.execution import run_request
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    EngineError,
    EngineUnavailable,
    Event,
    Failure,
    Finish,
    Fold,
    InvalidEngineResponse,
    InvalidRequest,
    Message,
    OutputFormat,
    Overloaded,
    ReasoningBlock,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    Turn,
)

LONG = "<think>" + "I wonder. " * 30 + "</think>It is so."


def _scripted_model(text: str = LONG) -> tuple[TokenModel, ScriptedEngine]:
    model = build_demo_model()
    script = parse_script(f"- text: {text!r}\n")
    engine = ScriptedEngine(model.tokenizer, script, options=ScriptedOptions())
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
    return TokenModel(("m",), model, preparer, ReplicaPool([engine])), engine


def _run_request(entry: TokenModel, **changes: object) -> list[Message]:
    """Run a request; returns one message per choice."""
    request = Request("m", (Turn("user", (TextBlock("Is it so?"),)),), **changes)  # type: ignore[arg-type]

    async def main() -> list[Message]:
        await entry.engine.start()
        folds: dict[int, Fold] = {}
        sink = RecordingSink()
        await run_request(entry, request, lambda: f"call_{secrets.token_hex(12)}", sink)
        for choice, events in sink.batches:
            for event in events:
                folds.setdefault(choice, Fold()).add(event)
        return [folds[at].message() for at in sorted(folds)]

    return asyncio.run(main())


def test_reasoning_beyond_its_budget_is_closed() -> None:
    entry, engine = _scripted_model()
    (message,) = _run_request(entry, thinking=Thinking(budget=40))
    reasoning, text = message.blocks
    assert isinstance(reasoning, ReasoningBlock)
    assert 30 <= len(reasoning.text) <= 45
    assert text.type == "text"
    first, second = engine.requests
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert message.usage.cached_tokens <= message.usage.input_tokens
    assert message.usage.input_tokens == len(first.prompt)


@pytest.mark.parametrize("max_tokens", [5, 41, 43, 60])
def test_closed_reasoning_does_not_exceed_the_limit(max_tokens: int) -> None:
    entry, engine = _scripted_model()
    (message,) = _run_request(
        entry, thinking=Thinking(budget=40), sampling=Sampling(max_tokens=max_tokens)
    )
    assert message.usage.output_tokens <= max_tokens
    assert all(request.max_tokens > 0 for request in engine.requests)


def test_output_format_applies_after_closed_reasoning() -> None:
    entry, engine = _scripted_model()
    form = OutputFormat("json_schema", {"type": "object", "properties": {}}, strict=True)
    _run_request(entry, thinking=Thinking(budget=40), output=form)
    first, second = engine.requests
    assert first.constraint is not None
    assert second.constraint is not None
    assert "think" not in second.constraint.text


def test_choices_have_different_seeds() -> None:
    entry, engine = _scripted_model("<think></think>Yes.")
    messages = _run_request(entry, sampling=Sampling(n=3, seed=7))
    assert len(messages) == 3
    assert sorted(request.sampling.seed or 0 for request in engine.requests) == [7, 8, 9]


def test_too_many_choices_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="at most 16"):
        _run_request(_scripted_model()[0], sampling=Sampling(n=17))


class FailingEngine:
    """An engine that fails after some tokens, or reports its cached tokens at the end."""

    name = "mortal"
    capabilities = EngineCapabilities()

    def __init__(self, text: str, dies_after: int | None = None, cached: int = 0) -> None:
        self._ids = build_demo_model().tokenizer.encode(text)
        self._dies_after = dies_after
        self._cached = cached
        self.requests: list[EngineRequest] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        begun = len(request.prompt) - len(self.requests[0].prompt)
        left = self._ids[begun:][: request.max_tokens]
        for at, id in enumerate(left):
            if self._dies_after is not None and at == self._dies_after:
                raise EngineUnavailable("killed")
            if not sink.push(TokenDelta([id])) and not await sink.drain():
                return
        if self._dies_after is not None and self._dies_after >= len(left):
            raise EngineUnavailable("killed")
        sink.push(TokenDelta([], finish="length", cached=self._cached))


def _model_with(*engines: FailingEngine) -> TokenModel:
    model = build_demo_model()
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
    return TokenModel(("m",), model, preparer, ReplicaPool(engines), migration_limit=3)


def test_output_without_a_finish_is_complete() -> None:
    """The engine fails after the last token, before its finish: no other replica is needed."""
    (message,) = _run_request(
        _model_with(FailingEngine("Hello world", 5)), sampling=Sampling(max_tokens=5)
    )
    assert (message.blocks[0].text, message.finish) == ("Hello", "length")  # type: ignore[union-attr]


def test_a_character_split_by_a_replica_failure_is_complete() -> None:
    text = "é漢🦜 done"
    for dies_after in range(1, len(text.encode())):
        entry = _model_with(FailingEngine(text, dies_after), FailingEngine(text))
        second = entry.engine.replicas[1].engine
        first = entry.engine.replicas[0].engine
        assert isinstance(first, FailingEngine)
        assert isinstance(second, FailingEngine)
        second.requests = first.requests  # both record into one list
        (message,) = _run_request(entry, sampling=Sampling(max_tokens=len(text.encode())))
        assert message.blocks[0].text == text  # type: ignore[union-attr]
        assert message.usage.output_tokens == len(text.encode())


def test_cached_tokens_of_a_second_engine_request_are_ignored() -> None:
    """The budget ends the first request before it could report its cached tokens."""
    entry = _model_with(FailingEngine(LONG, cached=10_000))
    (message,) = _run_request(entry, thinking=Thinking(budget=40), sampling=Sampling(max_tokens=80))
    assert message.usage.cached_tokens == 0


class UnfinishedEngine(FailingEngine):
    """An engine that returns without a finish."""

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        for id in self._ids:
            sink.push(TokenDelta([id]))


def _run_to_the_end(entry: TokenModel) -> list[Event]:
    async def main() -> list[Event]:
        await entry.engine.start()
        sink = RecordingSink()
        request = Request("m", (Turn("user", (TextBlock("Is it so?"),)),))
        await run_request(entry, request, lambda: "call_1", sink)
        return [event for _, events in sink.batches for event in events]

    return asyncio.run(main())


@pytest.mark.parametrize("text", ["It is", "<think>Is it", "<think></think>"])
def test_output_of_an_engine_that_returns_without_a_finish_is_a_failure(text: str) -> None:
    """It may be incomplete, so it must not look like a normal finish."""
    events = _run_to_the_end(_model_with(UnfinishedEngine(text)))
    assert isinstance(events[-1], Failure)
    assert events[-1].kind == "engine_response"
    assert "finish reason" in events[-1].message
    assert not any(isinstance(event, Finish) for event in events)


def test_an_engine_that_returns_without_output_is_an_error() -> None:
    with pytest.raises(InvalidEngineResponse, match="finish reason"):
        _run_to_the_end(_model_with(UnfinishedEngine("")))


def test_output_without_a_finish_up_to_the_limit_is_complete() -> None:
    (message,) = _run_request(
        _model_with(UnfinishedEngine("Hello")), sampling=Sampling(max_tokens=5)
    )
    assert (message.blocks[0].text, message.finish) == ("Hello", "length")  # type: ignore[union-attr]


class RejectingEngine(FailingEngine):
    """An engine that rejects every request with an error and stays available."""

    def __init__(self, error: EngineError) -> None:
        super().__init__("")
        self._error = error

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.requests.append(request)
        raise self._error


@pytest.mark.parametrize("error", [Overloaded("no room"), EngineError("500: out of order")])
def test_a_request_rejected_by_one_replica_is_migrated(error: EngineError) -> None:
    entry = _model_with(RejectingEngine(error), FailingEngine("Hello"))
    (message,) = _run_request(entry, sampling=Sampling(max_tokens=5))
    assert message.blocks[0].text == "Hello"  # type: ignore[union-attr]
    with pytest.raises(type(error)):
        _run_request(_model_with(RejectingEngine(error)), sampling=Sampling(max_tokens=5))
