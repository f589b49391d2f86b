"""Client of an engine that another process of this server runs, over the step protocol."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.engine import (
    EngineHealth,
    EngineRequest,
    TokenEngine,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.registry import EngineSetup, parse_options
from dovetail.engines.steps.client import StepAddress, StepClient, connect
from dovetail.engines.steps.messages import EngineDescription, describe_engine
from dovetail_model import DovetailError, EngineUnavailable

__all__ = ["HostedEngine", "HostedOptions", "create", "describe_hosted", "hosted_adapters"]

_SOCKET_PREFIX = "unix://"


class HostedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address and the key of the engine, and an `EngineDescription` as JSON."""

    address: str
    key: str
    traits: str


def describe_hosted(engine: TokenEngine, adapters: tuple[str, ...] = ()) -> str:
    """Describe a started engine for other processes, as JSON."""
    description = describe_engine(engine.name, engine.capabilities, adapters=adapters)
    return msgspec.json.encode(description).decode()


def hosted_adapters(traits: str) -> tuple[str, ...]:
    """Return the LoRA adapters of an engine that was described for this process."""
    return msgspec.json.decode(traits, type=EngineDescription).adapters


class HostedEngine:
    """An engine that runs in another process, under its own name. That process restarts it."""

    def __init__(self, options: HostedOptions) -> None:
        description = msgspec.json.decode(options.traits, type=EngineDescription)
        self.name = description.name
        self.capabilities = description.to_capabilities(supervised_elsewhere=True)
        self._address = StepAddress(options.key, options.address.removeprefix(_SOCKET_PREFIX))
        self._client: StepClient | None = None

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        """The last measurements that the engine reported."""
        return self._client.reported_facts if self._client is not None else {}

    async def start(self) -> None:
        """Connect, and check that the engine accepts requests."""
        if self._client is None or not self._client.connected:
            self._client = await connect(self._address, self.name)
        state = await self._client.health()
        if not state.ready:
            raise EngineUnavailable(f"the engine {self.name!r} is not ready: {state.detail}")

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling aborts the generation."""
        if self._client is None:
            raise EngineUnavailable(f"the engine {self.name!r} is not connected")
        check_prompt_length(request, self.capabilities.context_length)
        if not self._client.connected:
            await self.start()
        await self._client.generate(request, sink)

    async def health(self) -> EngineHealth:
        """Return the health of the engine. Connect again if its process was restarted."""
        if self._client is None:
            return EngineHealth(False, "not connected")
        if not self._client.connected:
            try:
                await self.start()
            except DovetailError as error:
                return EngineHealth(False, error.message)
        return await self._client.health()

    async def stop(self) -> None:
        """Abort the requests of this process. The engine keeps running for other processes."""
        client, self._client = self._client, None
        if client is not None:
            client.close(f"the engine {self.name!r} was stopped")


def create(setup: EngineSetup) -> HostedEngine:
    """Create a client of the engine at the address in the options."""
    return HostedEngine(parse_options(setup.options, HostedOptions))
