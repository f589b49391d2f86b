"""vLLM as a token engine: ids in, ids out, over its completions API."""

import logging
from dataclasses import replace
from typing import Any

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.discovery import RemoteModel
from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener
from dovetail.engines.vllm.discovery import PROBES, enforced
from dovetail.engines.vllm.models import models
from dovetail.engines.vllm.options import VllmOptions
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer

CONNECT = 10.0
HEALTH_PATIENCE = Timeouts(connect=2.0, read=5.0)
PROBE_PATIENCE = Timeouts(connect=CONNECT, read=60.0)

_log = logging.getLogger(__name__)


class VllmEngine:
    """One model of one server. What the server can do is known once it has been started."""

    name = "vllm"

    def __init__(
        self,
        endpoint: Endpoint,
        remote: RemoteModel,
        tokenizer: Tokenizer,
        *,
        context_length: int | None = None,
        options: VllmOptions | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._remote = remote
        self._tokenizer = tokenizer
        self._options = options or VllmOptions()
        self._started = False
        self._window = context_length or remote.context_length
        self.abilities = Abilities(logprobs=True, context_length=self._window)
        self._client = self._make_client(Timeouts(CONNECT, self._options.silence))

    async def start(self) -> None:
        """Looks whether the server is there and has the model, and what it keeps to."""
        cards = await models(self._endpoint)
        names = [card.id for card in cards]
        if self._remote.name not in names:
            raise EngineUnavailable(
                f"vLLM at {self._endpoint} does not serve {self._remote.name!r} (any more): "
                f"it serves {', '.join(names)}"
            )
        # Its own, which may be shorter than that of the replica that was asked first.
        windows = [card.max_model_len for card in cards if card.id == self._remote.name]
        told = [length for length in (self._window, *windows) if length]
        self.abilities = replace(self.abilities, context_length=min(told, default=None))
        if self._options.probe:
            await self._probe()
        else:
            self.abilities = replace(self.abilities, constraints=tuple(PROBES))
        self._started = True

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come. Leaving it drops the connection, at which vLLM stops."""
        if not self._started:
            raise EngineUnavailable("the engine 'vllm' is not running")
        await self._client.generate(request, listener)

    async def health(self) -> Health:
        """Whether the server says that it is well, and what was found out about it."""
        if not self._started:
            return Health(False, "not started")
        if self._client.tells_cached:  # before 0.32 a server is silent when nothing was cached
            self.abilities = replace(self.abilities, cached_tokens=True)
        try:
            call = ClientRequest("GET", "/health", timeouts=HEALTH_PATIENCE)
            status, _ = await fetch(self._endpoint, call)
        except DovetailError as error:
            return Health(False, error.message)
        return Health(status == 200, "" if status == 200 else f"status {status}", self._facts())

    async def stop(self) -> None:
        """The server runs on; what it still does for us is broken off."""
        self._started = False
        self._client.drop()

    def _make_client(self, patience: Timeouts) -> CompletionsClient:
        interval = self._options.stream_interval
        return CompletionsClient(
            self._endpoint,
            self._remote.name,
            patience=patience,
            tokenizer=self._tokenizer,
            extra={} if interval is None else {"stream_interval": interval},
        )

    async def _probe(self) -> None:
        client = self._make_client(PROBE_PATIENCE)
        kept = await enforced(client, self._tokenizer)
        self.abilities = replace(
            self.abilities,
            constraints=kept.constraints,
            behind_thought=kept.behind_thought,
            cached_tokens=bool(client.tells_cached),
        )
        if not client.tells_cached:
            self._warn("cached tokens are not told", "--enable-prompt-tokens-details")
        if kept.behind_thought:
            self._warn("constraints hold only behind thoughts", "no --reasoning-parser")
        elif not kept.constraints:
            self._warn("constraints are not enforced", "another structured-outputs backend")

    def _warn(self, what: str, remedy: str) -> None:
        told = {"engine": str(self._endpoint), "what": what, "start_vllm_with": remedy}
        _log.warning("vllm_lacks", extra={"fields": told})

    def _facts(self) -> dict[str, Any]:
        return {
            "version": self._remote.version,
            "model": self._remote.name,
            "constraints": list(self.abilities.constraints),
            "cached_tokens_told": self.abilities.cached_tokens,
        }
