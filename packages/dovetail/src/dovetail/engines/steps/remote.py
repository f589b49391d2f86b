"""An engine on another machine, over the step protocol: one connection for all its streams."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

import msgspec

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    RemoteModel,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.served_model import ServedModelCheck
from dovetail.engines.steps.client import StepAddress, StepClient, connect
from dovetail.net.http_client import Endpoint
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

_KEY_PREFIX = "Bearer "

_log = logging.getLogger(__name__)


def to_step_address(endpoint: Endpoint) -> StepAddress:
    """Return the address of an endpoint with a `tcp://` or `tls://` URL, and its key."""
    key = endpoint.headers.get("authorization", "").removeprefix(_KEY_PREFIX)
    tls = _tls_context() if endpoint.tls else None
    return StepAddress(key, endpoint.socket, endpoint.host, endpoint.port, tls)


async def discover_step_engine(endpoint: Endpoint) -> RemoteModel:
    """Return the model that an engine serves. Raise an `EngineError` if it does not respond."""
    client = await connect(to_step_address(endpoint), f"the engine at {endpoint}")
    client.close("the model is known")
    description = client.description
    name = PurePath(description.model).name or description.name
    return RemoteModel(
        name=name,
        names=(name,),
        root=description.model or None,
        context_length=description.context_length,
        version=str(description.facts.get("version", "")),
        adapters=description.adapters,
    )


class RemoteStepEngine:
    """One engine on another machine, which restarts itself.

    `remote`: the model that it is expected to serve, or one of its LoRA adapters.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        remote: RemoteModel,
        tokenizer: Tokenizer | None = None,
        *,
        context_length: int | None = None,
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._address = to_step_address(endpoint)
        self._adapter = remote.name if remote.name in remote.adapters else None
        self._tokenizer = tokenizer
        self._context_length = context_length or remote.context_length
        self._served_model = ServedModelCheck(f"{name} at {endpoint}", name)
        self._served_model.check({name: remote.root or remote.name})
        self._client: StepClient | None = None
        self._connecting = asyncio.Lock()
        self.capabilities = EngineCapabilities(context_length=self._context_length)

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        """The last measurements that the engine reported."""
        return self._client.reported_facts if self._client is not None else {}

    async def start(self) -> None:
        """Connect, or connect again after the connection was lost. Log what the engine reports.

        Requests that find it lost at the same time share the new one.
        """
        async with self._connecting:
            if self._client is None or not self._client.connected:
                await self._connect()

    async def _connect(self) -> None:
        client = await connect(self._address, f"{self.name} at {self._endpoint}", self._tokenizer)
        description = client.description
        problem = self._served_model.check({self.name: description.model})
        if problem:
            client.close(problem)
            raise EngineUnavailable(problem)
        lengths = [one for one in (self._context_length, description.context_length) if one]
        limited = msgspec.structs.replace(description, context_length=min(lengths, default=None))
        self.capabilities = limited.to_capabilities()
        client.watch_silence()
        self._client = client
        fields = {"engine": str(self._endpoint), **description.facts}
        fields |= {"context_length": self.capabilities.context_length}
        _log.info("engine_connected", extra={"fields": fields})

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling aborts the stream."""
        if self._client is None:
            raise EngineUnavailable(f"the engine {self.name!r} is not connected")
        check_prompt_length(request, self.capabilities.context_length)
        if not self._client.connected:
            await self.start()
        if self._adapter is not None and request.adapter is None:
            request = msgspec.structs.replace(request, adapter=self._adapter)
        await self._client.generate(request, sink)

    def retain(self, request: str, seconds: float) -> None:
        """Keep what is cached for a finished request for some time, if the engine supports that."""
        if self._client is not None:
            self._client.retain(request, seconds)

    async def health(self) -> EngineHealth:
        """Return the health that the engine reports. Connect again if it was restarted."""
        if self._client is None:
            return EngineHealth(False, "not connected")
        if not self._client.connected:
            try:
                await self.start()
            except DovetailError as error:
                return EngineHealth(False, error.message)
        return await self._client.health()

    async def stop(self) -> None:
        """Close the connection, which aborts its streams. The engine keeps running."""
        client, self._client = self._client, None
        if client is not None:
            client.close(f"the engine {self.name!r} was stopped")


@cache
def _tls_context() -> ssl.SSLContext:
    """Load the system's CA certificates once."""
    return ssl.create_default_context()
