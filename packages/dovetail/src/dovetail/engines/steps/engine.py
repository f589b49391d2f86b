"""A token engine in a child process of this server, over the step protocol."""

from collections.abc import Callable, Mapping
from typing import Any

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.steps.client import StepClient, connect
from dovetail.engines.steps.process import StepProcess
from dovetail_model import EngineUnavailable
from dovetail_tokenizers import Tokenizer


class ChildEngine:
    """An engine that runs in a child process. Its capabilities are known when it has started.

    `create_process`: creates the process, which can be started only once.
    `config`: passed to the function `load` in the child.
    `tcp`: use a loopback port instead of a unix socket.
    """

    def __init__(
        self,
        name: str,
        create_process: Callable[[], StepProcess],
        config: Mapping[str, Any],
        tokenizer: Tokenizer | None = None,
        *,
        context_length: int | None = None,
        tcp: bool = False,
    ) -> None:
        self.name = name
        self._create_process = create_process
        self._config = config
        self._tokenizer = tokenizer
        self._tcp = tcp
        self._process = create_process()
        self._client: StepClient | None = None
        self.capabilities = EngineCapabilities(context_length=context_length, local=True)

    @property
    def pid(self) -> int | None:
        """The id of the child process."""
        return self._process.pid

    @property
    def steps(self) -> int:
        """The number of messages that the child has sent, for measurements."""
        return self._client.steps if self._client is not None else 0

    @property
    def reported_facts(self) -> Mapping[str, Any]:
        """The last measurements that the engine reported."""
        return self._client.reported_facts if self._client is not None else {}

    async def start(self) -> None:
        """Load the model in the child process and connect to it."""
        if self._client is not None:
            return
        self._process = process = self._create_process()
        address = await process.start(self._config, tcp=self._tcp)
        try:
            client = await connect(address, self.name, self._tokenizer)
        except BaseException:
            await process.stop()
            raise
        self._client = client
        self.capabilities = client.description.to_capabilities(local=True)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling aborts the stream in the child."""
        client, process = self._client, self._process
        if client is None:
            raise EngineUnavailable(f"the engine {self.name!r} is not running")
        check_prompt_length(request, self.capabilities.context_length)
        try:
            await client.generate(request, sink)
        except EngineUnavailable as fault:
            await process.raise_exit_error(fault)

    def retain(self, request: str, seconds: float) -> None:
        """Keep what is cached for a finished request for some time, if the engine supports that."""
        if self._client is not None:
            self._client.retain(request, seconds)

    async def health(self) -> EngineHealth:
        """Return whether the process responds, and its own measurements."""
        if self._client is None:
            return EngineHealth(False, "not started")
        if not self._process.alive:
            return EngineHealth(False, self._process.describe_exit())
        return await self._client.health()

    async def stop(self) -> None:
        """Stop the process, which ends all running generations."""
        client, self._client = self._client, None
        if client is not None:
            client.close(f"the engine {self.name!r} was stopped")
        await self._process.stop()
