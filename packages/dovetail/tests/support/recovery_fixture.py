"""A model with recovery on an engine whose replies are set by the test."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import msgspec
from collecting_sink import RecordingSink

from dovetail.demo.session import build_demo_model
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.sampling import OPTIONAL_SAMPLING
from dovetail.ledger.entry import LedgerEntry, unpack_ids
from dovetail.ledger.export_sample import SampleStep, TrainingSample, build_sample
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.execution import run_request
from dovetail.pipeline.observer import RequestObserver
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.recovery import RecoveryKind, RecoveryPolicy
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.rendering import PromptSettings
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    Event,
    Fold,
    Identity,
    Message,
    ReasoningBlock,
    Request,
    TextBlock,
    TokenLogprob,
    ToolSpec,
    Turn,
)

USER = Turn("user", (TextBlock("Is it so?"),))
CLOSING = "\n</think>\n\n"
CALL = "<tool_call>\n<function=look>\n<parameter=at>\n{}\n</parameter>\n</function>\n</tool_call>"
LOOK = ToolSpec("look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
REQUEST = Request("m", (USER,), tools=(LOOK,), identity=Identity(session="s"))
ALL: tuple[RecoveryKind, ...] = ("reasoning", "empty", "loop")


@dataclass
class Reply:
    """What the engine generates for one request. `stop` is whether it reports the stop token."""

    text: str
    stop: bool = True
    finish: Literal["stop", "length"] = "stop"
    chunk: int = 1


class ReplyEngine:
    """An engine with one reply per request. It records the requests and what it generated."""

    name = "replies"

    def __init__(
        self, model: Model, replies: Iterable[Reply | str], **capabilities: object
    ) -> None:
        features = {"sampling": frozenset(OPTIONAL_SAMPLING), "logprobs": True} | capabilities
        self.capabilities = EngineCapabilities(**features)  # type: ignore[arg-type]
        self._model = model
        self._replies = [Reply(one) if isinstance(one, str) else one for one in replies]
        self.requests: list[EngineRequest] = []
        self.outputs: list[list[int]] = []
        self.pauses_in: int | None = None  # the number of the request that never ends
        self.paused = asyncio.Event()
        self.cancelled = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        reply = self._replies[len(self.requests)]
        self.requests.append(request)
        output: list[int] = []
        self.outputs.append(output)
        await asyncio.sleep(0)  # choices take turns
        ids = self._model.tokenizer.encode(reply.text)
        if reply.stop and reply.finish == "stop":
            ids.append(min(self._model.stop_ids))
        finish = reply.finish if len(ids) <= request.max_tokens else "length"
        ids = ids[: request.max_tokens]
        if self.pauses_in == len(self.requests):
            await self._pause()
        for at in range(0, max(1, len(ids)), reply.chunk):
            chunk = ids[at : at + reply.chunk]
            output += chunk
            last = at + reply.chunk >= len(ids)
            delta = TokenDelta(
                chunk, self._logprobs(request, chunk), finish=finish if last else None
            )
            if not sink.push(delta) and not await sink.drain():
                return

    async def _pause(self) -> None:
        self.paused.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def _logprobs(self, request: EngineRequest, ids: list[int]) -> tuple[TokenLogprob, ...]:
        if request.sampling.logprobs is None:
            return ()
        return tuple(TokenLogprob(self._model.tokenizer.decode([id]), -0.5) for id in ids)


@dataclass
class Run:
    """A model with recovery on an engine with these replies, and what a request gave."""

    replies: list[Reply | str]
    kinds: tuple[RecoveryKind, ...] = ALL
    loop_tokens: int = 300
    identical_calls: int = 3
    capabilities: dict[str, object] = field(default_factory=dict)
    recovered: list[tuple[str, int, int]] = field(default_factory=list)
    batches: list[tuple[int, list[Event]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = build_demo_model()
        self.engine = ReplyEngine(self.model, self.replies, **self.capabilities)
        self.store = MemoryLedgerStore()
        self._calls = count()
        self.restart()

    def restart(self) -> None:
        """Start the server again on the same store."""
        ledger = Ledger(self.store, shared=True)
        settings = PromptSettings(identical_calls=self.identical_calls)
        self.preparer = ChatPreparer(self.model, ledger, Keyring([bytes(32)]), settings)
        policy = RecoveryPolicy(frozenset(self.kinds), self.loop_tokens, self.identical_calls)
        self.entry = TokenModel(
            ("m",), self.model, self.preparer, ReplicaPool([self.engine]), recovery=policy
        )

    async def execute(self, request: Request | None = None, **changes: object) -> Message:
        request = request or REQUEST
        request = msgspec.structs.replace(request, **changes)
        sink = RecordingSink()
        observer = RequestObserver(on_recovered=lambda *one: self.recovered.append(one))
        await run_request(self.entry, request, lambda: f"call_{next(self._calls)}", sink, observer)
        self.batches = sink.batches
        return self.message()

    def message(self, choice: int = 0) -> Message:
        fold = Fold()
        for at, events in self.batches:
            for event in events if at == choice else ():
                fold.add(event)
        return fold.message()

    def events(self) -> list[Event]:
        return [event for _, events in self.batches for event in events]

    async def next_prompt(self, message: Message, turns: tuple[Turn, ...] = (USER,)) -> list[int]:
        """Return the prompt of the next user turn, checked to be spliced from the ledger."""
        later = (*turns, Turn("assistant", message.blocks), Turn("user", (TextBlock("Why?"),)))
        prepared = await self.preparer.prepare(msgspec.structs.replace(REQUEST, turns=later))
        assert prepared.prompt.exact_turns == {1}
        return prepared.prompt.ids.tolist()

    async def stored(self) -> LedgerEntry:
        """Return the only entry of the ledger."""
        (id,) = await self.store.find_by_session("", "s")
        entry = await self.store.get("", id)
        assert entry is not None
        return entry

    async def sample(self) -> TrainingSample:
        """Return the export of the only turn."""
        entry = await self.stored()
        return build_sample([SampleStep(entry, unpack_ids(entry.suffix))])

    def encode(self, text: str) -> list[int]:
        return self.model.tokenizer.encode(text)


def texts(message: Message) -> tuple[str, str]:
    reasoning = "".join(b.text for b in message.blocks if isinstance(b, ReasoningBlock))
    return reasoning, "".join(b.text for b in message.blocks if isinstance(b, TextBlock))
