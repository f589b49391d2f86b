"""Sessions and engines in virtual time, for tests of session scheduling."""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.routing.pool import ReplicaPool
from dovetail.routing.replica import HealthCheckOptions
from dovetail.routing.session_admission import SessionTurn
from dovetail.routing.session_turns import TurnEnd, TurnProfile
from dovetail_model import EngineUnavailable

FAST_RECOVERY = HealthCheckOptions(recovery_delays_seconds=(1.0,))
OUTPUT_TOKENS = 10


class TimedEngine:
    """An engine that needs a second per turn, and can fail. It records what it receives."""

    name = "timed"

    def __init__(self, kv_tokens: int | None) -> None:
        self.capabilities = EngineCapabilities(kv_tokens=kv_tokens)
        self.received: list[str] = []
        self.running: dict[str, int] = {}  # tokens by request
        self.overcommitted: list[dict[str, int]] = []
        self.failure = asyncio.Event()
        self.is_up = True

    async def start(self) -> None:
        if not self.is_up:
            raise EngineUnavailable("still down")

    async def stop(self) -> None:
        self.running.clear()

    async def health(self) -> EngineHealth:
        return EngineHealth(self.is_up)

    def fail(self) -> None:
        self.is_up = False
        self.failure.set()

    def recover(self) -> None:
        self.is_up = True
        self.failure = asyncio.Event()

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        if not self.is_up:
            raise EngineUnavailable("down")
        self.received.append(request.id)
        self.running[request.id] = len(request.prompt) + OUTPUT_TOKENS
        limit = self.capabilities.kv_tokens
        if limit is not None and len(self.running) > 1 and sum(self.running.values()) > limit:
            self.overcommitted.append(dict(self.running))
        try:
            async with asyncio.timeout(1.0):
                await self.failure.wait()
            raise EngineUnavailable("failed")
        except TimeoutError:
            sink.push(TokenDelta([1] * OUTPUT_TOKENS, finish="stop", cached=0))
        finally:
            self.running.pop(request.id, None)


class Sink:
    def push(self, delta: TokenDelta) -> bool:
        return True

    async def drain(self) -> bool:
        return True


@dataclass
class Agent:
    """A session: the tokens that each turn adds, and the gaps after the turns in seconds."""

    name: str
    growth: Sequence[int] = (50, 50, 50)
    gaps: Sequence[float] = (0.5, 0.5)
    tenant: str = ""
    urgency: int = 0
    background: bool = False
    starts_at: float = 0.0
    expected_tokens: int | None = OUTPUT_TOKENS
    ended: list[float] = field(default_factory=list)
    failures: int = 0

    async def run(self, pool: ReplicaPool) -> None:
        await asyncio.sleep(self.starts_at)
        tokens = 0
        for number, added in enumerate(self.growth):
            tokens += added
            await self._send(pool, number, tokens)
            tokens += OUTPUT_TOKENS
            self.ended.append(asyncio.get_running_loop().time())
            if number < len(self.gaps):
                await asyncio.sleep(self.gaps[number])

    async def _send(self, pool: ReplicaPool, number: int, tokens: int) -> None:
        while True:  # as clients do, retry what failed
            turn = self.begin(pool)
            try:
                await pool.generate(self.request(number, tokens), Sink(), turn=turn)
            except EngineUnavailable:
                self.failures += 1
                if turn is not None:
                    turn.cancel(release=True)
                await asyncio.sleep(0.3)
                continue
            if turn is not None:
                turn.finish(TurnEnd(tokens + OUTPUT_TOKENS, tool_keys=(("bash", "ls"),)))
            return

    def begin(self, pool: ReplicaPool) -> SessionTurn | None:
        if pool.sessions is None:
            return None
        profile = TurnProfile(
            self.name, f"{self.name}#0", self.tenant, self.name, self.urgency, self.background
        )
        return pool.sessions.begin_turn(profile)

    def request(self, number: int, tokens: int) -> EngineRequest:
        prompt = array("I", [hash(self.name) & 0xFFFF] * tokens)
        id, expected = f"{self.name}-{number}", self.expected_tokens
        return EngineRequest(id, prompt, 100, session=self.name, expected_tokens=expected)
