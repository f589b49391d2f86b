"""Tenants of one server are isolated in the cache of the engine and in sealed reasoning."""

import asyncio
from collections.abc import AsyncGenerator

from collecting_sink import run_and_collect
from http_fixture import tiny_model

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.seal import Sealer
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelEntry, TokenModel, UpstreamModel
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    Event,
    Finish,
    Hints,
    Identity,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextBlock,
    Turn,
    Usage,
)

USER_TURN = Turn("user", (TextBlock("Is it so?"),))


class RecordingEngines:
    """A token engine and an upstream engine that record their requests."""

    name = "both"
    capabilities = EngineCapabilities()

    def __init__(self) -> None:
        self.salts: list[str | None] = []
        self.requests: list[Request] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        self.salts.append(request.cache_salt)
        sink.push(TokenDelta([40], finish="length"))

    async def stream(self, request: Request) -> AsyncGenerator[list[Event]]:
        self.requests.append(request)
        yield [ReasoningDelta("A secret."), SpanEnd("reasoning", seal="theirs")]
        yield [Usage(1, 1), Finish("stop")]


def _run(entry: ModelEntry, *requests: Request) -> list[Event]:
    async def main() -> list[Event]:
        events: list[Event] = []
        for request in requests:
            events += await run_and_collect(entry, request)
        return events

    return asyncio.run(main())


def _of(tenant: str, *turns: Turn, salt: str | None = None) -> Request:
    return Request(
        "m", turns or (USER_TURN,), identity=Identity(tenant=tenant), hints=Hints(cache_salt=salt)
    )


def test_each_tenant_has_a_separate_engine_cache() -> None:
    model, engine = tiny_model(), RecordingEngines()
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([b"k" * 32]))
    entry = TokenModel(("m",), model, preparer, ReplicaPool([engine]))
    _run(entry, _of("one"), _of("two"), _of("one", salt="x"), _of("one"), _of(""))
    one, two, salted, again, anonymous = engine.salts
    assert one == again
    assert anonymous is None
    assert len({one, two, salted, anonymous}) == 4


def test_sealed_reasoning_opens_for_its_tenant_only() -> None:
    upstream = RecordingEngines()
    sealer = Sealer(Keyring([b"k" * 32]))
    entry = UpstreamModel(("m",), upstream, PromptNormalizer(NormalizationOptions()), sealer)
    (end,) = [event for event in _run(entry, _of("one")) if isinstance(event, SpanEnd)]
    carried = Turn("assistant", (ReasoningBlock("", end.seal), TextBlock("It is.")))
    _run(entry, *(_of(tenant, USER_TURN, carried, USER_TURN) for tenant in ("one", "two")))
    opened = [request.turns[1].blocks[0] for request in upstream.requests[1:]]
    assert opened == [ReasoningBlock("A secret.", "theirs"), ReasoningBlock("")]
