"""Dynamo's frontend as a token engine.

Discovery of workers, KV routing, disaggregation and migration between workers are Dynamo's. This
engine passes on the hints that Dynamo's router uses, and reports a frontend without workers as not
ready.
"""

import asyncio
import logging
from array import array
from dataclasses import replace
from typing import Any

from dovetail.engines.completions.constraint_probe import PROBES, probe_constraints
from dovetail.engines.completions.model_list import CompletionModelCard, list_models
from dovetail.engines.dynamo.client import CONSTRAINT_FIELDS, DynamoClient, WorkerUnavailable
from dovetail.engines.dynamo.discovery import PROGRAM, DynamoOptions, fetch_health
from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    OptionalSampling,
    RemoteModel,
    TokenSink,
    check_prompt_length,
)
from dovetail.engines.served_model import ServedModelCheck
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import Endpoint, Timeouts
from dovetail_model import (
    ClientError,
    DovetailError,
    EngineError,
    EngineUnavailable,
    Sampling,
)
from dovetail_tokenizers import Tokenizer

CONNECT_TIMEOUT_SECONDS = 10.0
PROBE_TIMEOUTS = Timeouts(connect=CONNECT_TIMEOUT_SECONDS, read=60.0)
#: The pauses after which a request is sent again if the frontend selects workers that are gone,
#: which it notices after about 12 seconds.
RETRY_DELAYS_SECONDS = (0.2, 0.5, 1.0, 2.0, 4.0, 5.0)
#: The frontend accepts `logit_bias`, but does not pass it to its workers.
SUPPORTED_SAMPLING: frozenset[OptionalSampling] = frozenset({"min_tokens", "ignore_eos"})

_log = logging.getLogger(__name__)


class DynamoEngine:
    """One model of one frontend. Its capabilities are known after `start`."""

    name = "dynamo"

    def __init__(
        self,
        endpoint: Endpoint,
        remote: RemoteModel,
        tokenizer: Tokenizer,
        *,
        context_length: int | None = None,
        options: DynamoOptions | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._server_name = f"{PROGRAM} at {endpoint}"
        self._model = remote.name
        self._tokenizer = tokenizer
        self._options = options or DynamoOptions()
        self._started = False
        self._checked = False
        self._served_model = ServedModelCheck(self._server_name, remote.name)
        self._context_length = context_length or remote.context_length
        self.capabilities = EngineCapabilities(
            sampling=SUPPORTED_SAMPLING, context_length=self._context_length
        )
        self._client = self._create_client(Timeouts(CONNECT_TIMEOUT_SECONDS, self._options.silence))

    async def start(self) -> None:
        """Check that the frontend has the model and returns token ids, and probe its workers.

        The workers are probed only once: after a failure, the model list shows the recovery.
        """
        cards = await list_models(self._endpoint, PROGRAM)
        if problem := self._check_model(cards):
            raise EngineUnavailable(problem)
        own = [card.context_window for card in cards if card.id == self._model]
        lengths = [length for length in (self._context_length, *own) if length]
        self.capabilities = replace(self.capabilities, context_length=min(lengths, default=None))
        if not self._checked:
            await self._check_workers()
            self._checked = True
        self._started = True

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling closes the connection, which ends the request.

        Until the frontend has noticed that a worker is gone, it rejects the requests for which it
        selects that worker. Other workers can serve them, or one that appears in the meantime.
        """
        if not self._started:
            raise EngineUnavailable("the engine 'dynamo' is not running")
        check_prompt_length(request, self.capabilities.context_length)
        for delay in RETRY_DELAYS_SECONDS:
            try:
                await self._client.generate(request, sink)
                return
            except WorkerUnavailable:
                await asyncio.sleep(delay)
        await self._client.generate(request, sink)

    async def health(self) -> EngineHealth:
        """Return whether the frontend has workers of the model, and the number of its workers."""
        if not self._started:
            return EngineHealth(False, "not started")
        try:
            report = await fetch_health(self._endpoint)
            problem = self._check_model(await list_models(self._endpoint, PROGRAM))
        except DovetailError as error:
            return EngineHealth(False, error.message)
        workers = report.count_workers() if report is not None else {}
        return EngineHealth(not problem, problem, self._health_facts(workers))

    async def stop(self) -> None:
        """Abort this engine's requests. The frontend keeps running."""
        self._started = False
        self._client.abort_all()

    def _check_model(self, cards: list[CompletionModelCard]) -> str:
        return self._served_model.check({card.id: card.id for card in cards})

    def _create_client(self, timeouts: Timeouts) -> DynamoClient:
        return DynamoClient(
            self._endpoint,
            self._model,
            server_name=PROGRAM,
            timeouts=timeouts,
            tokenizer=self._tokenizer,
        )

    async def _check_workers(self) -> None:
        client = self._create_client(PROBE_TIMEOUTS)
        try:
            logprobs = await self._check_request(client)
            if self._options.probe:
                enforced = await probe_constraints(client, self._tokenizer)
                self.capabilities = replace(
                    self.capabilities,
                    constraints=enforced.constraints,
                    constrains_after_reasoning=enforced.after_reasoning,
                    logprobs=logprobs,
                )
            else:
                supported = tuple(one for one in PROBES if one in CONSTRAINT_FIELDS)
                self.capabilities = replace(self.capabilities, constraints=supported, logprobs=True)
        finally:
            client.abort_all()  # its connections are not used again
        cached_tokens = bool(client.reports_cached_tokens)
        self.capabilities = replace(self.capabilities, cached_tokens=cached_tokens)
        fields = {"engine": str(self._endpoint), "model": self._model, **self._features()}
        _log.info("dynamo_workers_probed", extra={"fields": fields})

    async def _check_request(self, client: DynamoClient) -> bool:
        """Send a request with all hints and return whether logprobs were returned.

        Another version of Dynamo may reject a field with 400. Without this check, each request of
        each client would fail.
        """
        request = EngineRequest(
            id="dovetail-probe",
            prompt=array("I", self._tokenizer.encode("Hello")),
            max_tokens=1,
            sampling=Sampling(temperature=0.0, logprobs=1),
            session="dovetail-probe",
            parent_session="dovetail-probe-parent",
            ends_session=True,
            priority=1,
            strict_priority=1,
            expected_tokens=1,
            cache_salt="dovetail-probe",
        )
        try:
            deltas = [delta async for delta in iter_deltas(client, request)]
        except ClientError as error:
            raise EngineError(
                f"{self._server_name} rejects Dovetail's requests; Dynamo 1.6 or later is "
                f"required: {error.message}"
            ) from error
        return any(delta.logprobs for delta in deltas)

    def _health_facts(self, workers: dict[str, int]) -> dict[str, Any]:
        return {"model": self._model, "workers": workers, **self._features()}

    def _features(self) -> dict[str, Any]:
        supported = self.capabilities
        return {
            "constraints": list(supported.constraints),
            "logprobs": supported.logprobs,
            "cached_tokens_told": supported.cached_tokens,
        }
