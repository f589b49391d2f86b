"""The line to an engine that a process beside this one runs."""

import msgspec

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import (
    ConstraintSyntax,
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenEngine,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.registry import EngineSetup, parse_options
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineUnavailable

__all__ = ["HostedEngine", "HostedEngineInfo", "HostedOptions", "create", "describe_engine"]

HOSTED_MODEL_NAME = "hosted"  # the one name of what is served on such a socket
HEALTH_TIMEOUTS = Timeouts(connect=2.0, read=5.0)


class HostedEngineInfo(msgspec.Struct, frozen=True):
    """What the engine is and can do, as its own process has found out."""

    name: str
    constraints: tuple[ConstraintSyntax, ...] = ()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    behind_thought: bool = False


class HostedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it listens, the key that it asks for, and a `Trait` as JSON."""

    address: str
    key: str
    traits: str


def describe_engine(engine: TokenEngine) -> HostedEngineInfo:
    """What is to be known elsewhere of an engine that has been started."""
    can = engine.capabilities
    return HostedEngineInfo(
        name=engine.name,
        constraints=can.constraints,
        logprobs=can.logprobs,
        cached_tokens=can.cached_tokens,
        context_length=can.context_length,
        behind_thought=can.constrains_after_reasoning,
    )


class HostedEngine:
    """The engine, under its own name. The process that runs it sees to it that it lives."""

    def __init__(self, options: HostedOptions) -> None:
        trait = msgspec.json.decode(options.traits, type=HostedEngineInfo)
        self.name = trait.name
        self.capabilities = EngineCapabilities(
            constraints=trait.constraints,
            logprobs=trait.logprobs,
            cached_tokens=trait.cached_tokens,
            context_length=trait.context_length,
            constrains_after_reasoning=trait.behind_thought,
            supervised_elsewhere=True,
        )
        self._endpoint = Endpoint.parse(options.address, {"authorization": f"Bearer {options.key}"})
        self._client = CompletionsClient(
            self._endpoint, HOSTED_MODEL_NAME, server_name=trait.name, binary_prompt=True
        )

    async def start(self) -> None:
        """Looks whether it can be asked."""
        state = await self.health()
        if not state.ready:
            raise EngineUnavailable(f"the engine {self.name!r}: {state.detail}")

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Deltas as they come. Leaving it drops the connection, at which the engine stops."""
        check_prompt_length(request, self.capabilities.context_length)
        await self._client.generate(request, sink)

    async def health(self) -> EngineHealth:
        try:
            call = ClientRequest("GET", "/health", timeouts=HEALTH_TIMEOUTS)
            status, _ = await fetch(self._endpoint, call)
        except DovetailError as error:
            return EngineHealth(False, error.message)
        return EngineHealth(status == 200, "" if status == 200 else f"status {status}")

    async def stop(self) -> None:
        """It runs on for others; what it still does for us is broken off."""
        self._client.abort_all()


def create(setup: EngineSetup) -> HostedEngine:
    """The engine behind the address among the options."""
    return HostedEngine(parse_options(setup.options, HostedOptions))
