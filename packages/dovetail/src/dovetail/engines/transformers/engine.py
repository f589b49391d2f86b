"""transformers as a token engine: the model runs in a child process that serves vLLM's protocol."""

import json
import re
from pathlib import Path
from typing import Any

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.engines.transformers.process import TransformersChildReady, TransformersProcess
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

#: The child sends no data while it prefills a long prompt.
GENERATE_TIMEOUTS = Timeouts(connect=10.0, read=600.0)
_METRIC_PATTERN = re.compile(rb"^vllm:num_requests_(running|waiting)\S* (\d+)", re.M)


class TransformersEngine:
    """The engine for one folder of weights.

    The context length is the model's, or the largest that fits into memory. The capabilities are
    known when the model is loaded. Without a `tokenizer`, the tokens of logprobs are identified by
    their ids.
    """

    name = "transformers"

    def __init__(
        self,
        folder: Path,
        tokenizer: Tokenizer | None = None,
        *,
        context_length: int | None = None,
        options: TransformersOptions | None = None,
    ) -> None:
        self._folder = folder
        self._tokenizer = tokenizer
        self._requested_context_length = context_length
        self._options = options or TransformersOptions()
        self._process = TransformersProcess(self._options)
        self._endpoint: Endpoint | None = None
        self._client: CompletionsClient | None = None
        self._ready: TransformersChildReady | None = None
        length = context_length or read_context_length(folder)
        self.capabilities = EngineCapabilities(context_length=length, local=True)

    @property
    def endpoint(self) -> Endpoint | None:
        """The address of the process, with its key; None if it is not running."""
        return self._endpoint

    @property
    def pid(self) -> int | None:
        """The id of the process that runs the model."""
        return self._process.pid

    async def start(self) -> None:
        """Load the model in a child process."""
        if self._endpoint is not None:
            return
        self._process = TransformersProcess(self._options)
        endpoint, ready = await self._process.start(self._folder, self._requested_context_length)
        self.capabilities = EngineCapabilities(
            constraints=ready.constraints,
            sampling=frozenset(ready.sampling),
            logprobs=ready.logprobs,
            cached_tokens=ready.cached_tokens,
            context_length=ready.context_length,
            local=True,
        )
        name = self._folder.resolve().name
        self._client = CompletionsClient(
            endpoint,
            name,
            server_name="transformers",
            timeouts=GENERATE_TIMEOUTS,
            binary_prompt=True,
            tokenizer=self._tokenizer,
        )
        self._endpoint, self._ready = endpoint, ready

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive.

        Cancelling closes the connection, which aborts the generation.
        """
        client, process = self._client, self._process
        if client is None:
            raise EngineUnavailable("the engine 'transformers' is not running")
        check_prompt_length(request, self.capabilities.context_length)
        try:
            await client.generate(request, sink)
        except EngineUnavailable as fault:
            await process.raise_exit_error(fault)

    async def health(self) -> EngineHealth:
        """Return whether the process responds, and how many generations run and wait there."""
        endpoint, ready = self._endpoint, self._ready
        if endpoint is None or ready is None:
            return EngineHealth(False, "not started")
        if not self._process.alive:
            return EngineHealth(False, self._process.describe_exit())
        try:
            status, _ = await fetch(
                endpoint, ClientRequest("GET", "/health", timeouts=HEALTH_TIMEOUTS)
            )
            _, text = await fetch(
                endpoint, ClientRequest("GET", "/metrics", timeouts=HEALTH_TIMEOUTS)
            )
        except DovetailError as error:
            return EngineHealth(False, error.message)
        facts: dict[str, Any] = {**ready.facts}
        facts.update((name.decode(), int(value)) for name, value in _METRIC_PATTERN.findall(text))
        return EngineHealth(status == 200, "" if status == 200 else f"status {status}", facts)

    async def stop(self) -> None:
        """Stop the process, which ends all running generations."""
        self._endpoint = self._client = None
        await self._process.stop()


def read_context_length(folder: Path) -> int | None:
    """Return the context length of a model; None if its folder does not contain it."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    length = (config.get("text_config") or config).get("max_position_embeddings")
    return length if isinstance(length, int) else None
