"""vLLM as a token engine, over its completions API or its token API."""

import logging
from dataclasses import replace
from typing import Any, Literal

import msgspec

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.constraint_probe import PROBES, probe_constraints
from dovetail.engines.completions.generate import offers_generate
from dovetail.engines.completions.model_list import CompletionModelCard, list_models
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    RemoteModel,
    TokenSink,
)
from dovetail.engines.sampling import OPTIONAL_SAMPLING
from dovetail.engines.served_model import ServedModelCheck
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.engines.vllm.discovery import PROGRAM, fetch_kv_tokens
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineUnavailable
from dovetail_tokenizers import Tokenizer


class VllmOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the engine (`--engine-option NAME=VALUE`).

    `stream_interval`: the number of tokens per stream frame. A larger value reduces the work of
    both sides when many streams are active.
    `silence`: the read timeout in seconds. It must be longer than the longest prefill, during which
    the server sends no data.
    `probe`: whether to probe at startup, with requests of a few tokens, which constraints the
    server enforces. Without the probe, it is assumed to enforce all of them.
    `api`: the API of the server: `/v1/completions`, or `/inference/v1/generate`, which costs the
    server less. `auto` uses the latter if the server has it.
    """

    stream_interval: int | None = None
    silence: float = 600.0
    probe: bool = True
    api: Literal["auto", "completions", "generate"] = "auto"


CONNECT_TIMEOUT_SECONDS = 10.0
PROBE_TIMEOUTS = Timeouts(connect=CONNECT_TIMEOUT_SECONDS, read=60.0)

_log = logging.getLogger(__name__)


class VllmEngine:
    """One model of one server. Its capabilities are known after `start`."""

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
        self._served_model = ServedModelCheck(f"vLLM at {endpoint}", remote.name)
        self._context_length = context_length or remote.context_length
        self.capabilities = EngineCapabilities(
            sampling=frozenset(OPTIONAL_SAMPLING),
            logprobs=True,
            context_length=self._context_length,
        )
        self._client = self._create_client(Timeouts(CONNECT_TIMEOUT_SECONDS, self._options.silence))

    async def start(self) -> None:
        """Check that the server has the model, and probe which constraints it enforces."""
        cards = await list_models(self._endpoint, PROGRAM)
        if problem := self._check_model(cards):
            raise EngineUnavailable(problem)
        # `remote` describes the first replica; the context length of this one may be shorter.
        own = [card.max_model_len for card in cards if card.id == self._remote.name]
        lengths = [length for length in (self._context_length, *own) if length]
        self.capabilities = replace(
            self.capabilities,
            context_length=min(lengths, default=None),
            kv_tokens=await fetch_kv_tokens(self._endpoint),
        )
        self._client.uses_generate = await self._detect_generate()
        if self._options.probe:
            await self._probe()
        else:
            self.capabilities = replace(self.capabilities, constraints=tuple(PROBES))
        self._started = True

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive.

        Cancelling closes the connection, which aborts the generation.
        """
        if not self._started:
            raise EngineUnavailable("the engine 'vllm' is not running")
        if self._served_model.problem:
            raise EngineUnavailable("vLLM serves another model than at startup")
        await self._client.generate(request, sink)

    async def health(self) -> EngineHealth:
        """Return whether the server is healthy and has the model, and its version and features."""
        if not self._started:
            return EngineHealth(False, "not started")
        # Before 0.32, vLLM reports cached tokens only if there are any: the probe may see none.
        if self._client.reports_cached_tokens:
            self.capabilities = replace(self.capabilities, cached_tokens=True)
        try:
            client_request = ClientRequest("GET", "/health", timeouts=HEALTH_TIMEOUTS)
            status, _ = await fetch(self._endpoint, client_request)
            problem = f"status {status}"
            if status == 200:
                problem = self._check_model(await list_models(self._endpoint, PROGRAM))
        except DovetailError as error:
            return EngineHealth(False, error.message)
        return EngineHealth(not problem, problem, self._health_facts())

    async def stop(self) -> None:
        """Abort this engine's requests. The server keeps running."""
        self._started = False
        self._client.abort_all()

    def _check_model(self, cards: list[CompletionModelCard]) -> str:
        return self._served_model.check({card.id: card.root or card.id for card in cards})

    def _create_client(self, timeouts: Timeouts) -> CompletionsClient:
        interval = self._options.stream_interval
        return CompletionsClient(
            self._endpoint,
            self._remote.name,
            timeouts=timeouts,
            tokenizer=self._tokenizer,
            extra_fields={} if interval is None else {"stream_interval": interval},
        )

    async def _detect_generate(self) -> bool:
        """Return whether to use the server's token API."""
        if self._options.api != "auto":
            return self._options.api == "generate"
        found = await offers_generate(self._endpoint)
        fields = {"engine": str(self._endpoint), "api": "generate" if found else "completions"}
        _log.info("vllm_api_detected", extra={"fields": fields})
        return found

    async def _probe(self) -> None:
        client = self._create_client(PROBE_TIMEOUTS)
        client.uses_generate = self._client.uses_generate
        try:
            enforced = await probe_constraints(client, self._tokenizer)
        finally:
            client.abort_all()  # its connections are not used again
        self.capabilities = replace(
            self.capabilities,
            constraints=enforced.constraints,
            constrains_after_reasoning=enforced.after_reasoning,
            cached_tokens=bool(client.reports_cached_tokens),
        )
        if not client.reports_cached_tokens:
            self._warn_missing_feature(
                "the server does not report cached tokens",
                "start vLLM with --enable-prompt-tokens-details",
            )
        if enforced.after_reasoning:
            self._warn_missing_feature(
                "constraints apply only after the reasoning",
                "start vLLM without --reasoning-parser",
            )
        elif not enforced.constraints:
            self._warn_missing_feature(
                "constraints are not enforced",
                "start vLLM with another structured-outputs backend",
            )

    def _warn_missing_feature(self, problem: str, remedy: str) -> None:
        fields = {"engine": str(self._endpoint), "problem": problem, "remedy": remedy}
        _log.warning("vllm_feature_missing", extra={"fields": fields})

    def _health_facts(self) -> dict[str, Any]:
        return {
            "version": self._remote.version,
            "model": self._remote.name,
            "api": "generate" if self._client.uses_generate else "completions",
            "constraints": list(self.capabilities.constraints),
            "cached_tokens_told": self.capabilities.cached_tokens,
        }
