"""The line to an engine that a process beside this one runs."""

import msgspec

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import (
    Abilities,
    EngineRequest,
    Health,
    Listener,
    Syntax,
    TokenEngine,
    check_length,
)
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineUnavailable

MODEL = "hosted"  # the one name of what is served on such a socket
HEALTH_PATIENCE = Timeouts(connect=2.0, read=5.0)


class Trait(msgspec.Struct, frozen=True):
    """What the engine is and can do, as its own process has found out."""

    name: str
    constraints: tuple[Syntax, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    behind_thought: bool = False


class HostedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it listens, the key that it asks for, and a `Trait` as JSON."""

    address: str
    key: str
    traits: str


def traits_of(engine: TokenEngine) -> Trait:
    """What is to be known elsewhere of an engine that has been started."""
    can = engine.abilities
    return Trait(
        name=engine.name,
        constraints=can.constraints,
        logprobs=can.logprobs,
        cached_tokens=can.cached_tokens,
        context_length=can.context_length,
        behind_thought=can.behind_thought,
    )


class HostedEngine:
    """The engine, under its own name. The process that runs it sees to it that it lives."""

    def __init__(self, options: HostedOptions) -> None:
        trait = msgspec.json.decode(options.traits, type=Trait)
        self.name = trait.name
        self.abilities = Abilities(
            constraints=trait.constraints,
            logprobs=trait.logprobs,
            cached_tokens=trait.cached_tokens,
            context_length=trait.context_length,
            behind_thought=trait.behind_thought,
            beside=True,
        )
        self._endpoint = Endpoint.parse(options.address, {"authorization": f"Bearer {options.key}"})
        self._client = CompletionsClient(self._endpoint, MODEL, who=trait.name, packed=True)

    async def start(self) -> None:
        """Looks whether it can be asked."""
        state = await self.health()
        if not state.ready:
            raise EngineUnavailable(f"the engine {self.name!r}: {state.detail}")

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come. Leaving it drops the connection, at which the engine stops."""
        check_length(request, self.abilities.context_length)
        await self._client.generate(request, listener)

    async def health(self) -> Health:
        try:
            call = ClientRequest("GET", "/health", timeouts=HEALTH_PATIENCE)
            status, _ = await fetch(self._endpoint, call)
        except DovetailError as error:
            return Health(False, error.message)
        return Health(status == 200, "" if status == 200 else f"status {status}")

    async def stop(self) -> None:
        """It runs on for others; what it still does for us is broken off."""
        self._client.drop()
