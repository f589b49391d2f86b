"""Client of an engine that another process of this server runs."""

import msgspec

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import (
    ConstraintSyntax,
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    OptionalSampling,
    TokenEngine,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.registry import EngineSetup, parse_options
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError, EngineUnavailable

__all__ = ["HostedEngine", "HostedEngineInfo", "HostedOptions", "create", "describe_engine"]

HOSTED_MODEL_NAME = "hosted"  # the only model name that the engine's process accepts


class HostedEngineInfo(msgspec.Struct, frozen=True):
    """The name and the capabilities of an engine, as reported by the process that runs it.

    The encoded field names are an inter-process format.
    """

    name: str
    constraints: tuple[ConstraintSyntax, ...] = ()
    sampling: frozenset[OptionalSampling] = frozenset()
    logprobs: bool = False
    cached_tokens: bool = False
    context_length: int | None = None
    constrains_after_reasoning: bool = msgspec.field(default=False, name="behind_thought")


class HostedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address and the API key of the engine, and a `HostedEngineInfo` as JSON."""

    address: str
    key: str
    traits: str


def describe_engine(engine: TokenEngine) -> HostedEngineInfo:
    """Describe a started engine for other processes."""
    capabilities = engine.capabilities
    return HostedEngineInfo(
        name=engine.name,
        constraints=capabilities.constraints,
        sampling=capabilities.sampling,
        logprobs=capabilities.logprobs,
        cached_tokens=capabilities.cached_tokens,
        context_length=capabilities.context_length,
        constrains_after_reasoning=capabilities.constrains_after_reasoning,
    )


class HostedEngine:
    """An engine that runs in another process, under its own name. That process restarts it."""

    def __init__(self, options: HostedOptions) -> None:
        info = msgspec.json.decode(options.traits, type=HostedEngineInfo)
        self.name = info.name
        self.capabilities = EngineCapabilities(
            constraints=info.constraints,
            sampling=info.sampling,
            logprobs=info.logprobs,
            cached_tokens=info.cached_tokens,
            context_length=info.context_length,
            constrains_after_reasoning=info.constrains_after_reasoning,
            supervised_elsewhere=True,
        )
        self._endpoint = Endpoint.parse(options.address, {"authorization": f"Bearer {options.key}"})
        self._client = CompletionsClient(
            self._endpoint, HOSTED_MODEL_NAME, server_name=info.name, binary_prompt=True
        )

    async def start(self) -> None:
        """Check that the engine accepts requests."""
        state = await self.health()
        if not state.ready:
            raise EngineUnavailable(f"the engine {self.name!r} is not ready: {state.detail}")

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive.

        Cancelling closes the connection and aborts the generation.
        """
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
        """Abort the requests of this process. The engine keeps running for other processes."""
        self._client.abort_all()


def create(setup: EngineSetup) -> HostedEngine:
    """Create a client of the engine at the address in the options."""
    return HostedEngine(parse_options(setup.options, HostedOptions))
