"""transformers' continuous batching as a token engine.

The library's loop runs in its own thread and passes results to the server's thread. Features that
the library does not offer are implemented by hooks in a few places, each of them marked: prefix
cache hits, the capacity, and the end of a step. The hooked names are those of transformers 5.17 and
later.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.engines.engine import EngineCapabilities, EngineHealth, EngineRequest, TokenSink
from dovetail.engines.sampling import check_top_logprobs
from dovetail.engines.token_ids import max_token_id
from dovetail.engines.transformers.child.batch_manager import NO_EOS_ID, create_batch_manager
from dovetail.engines.transformers.child.delivery import (
    OutputDelivery,
    defer_delivery,
    install_logprob_hook,
)
from dovetail.engines.transformers.child.grammar import (
    GrammarCompiler,
    GrammarGuide,
    MinTokensMask,
)
from dovetail.engines.transformers.child.loader import LoadedModel, TransformersLoadError
from dovetail.engines.transformers.child.page_retention import PageRetention
from dovetail.engines.transformers.child.prefix_cache import PrefixCacheHook
from dovetail.engines.transformers.child.sampling_params import (
    PARAMS_KEY,
    SamplingDefaults,
    TokenMask,
)
from dovetail.engines.transformers.options import TransformersOptions
from dovetail_model import EngineError, EngineUnavailable, InvalidRequest, Unsupported

MAX_LIVENESS_CHECKS = 40  # of a loop that may be ending
LIVENESS_CHECK_SECONDS = 0.05
CANCEL_RETRY_SECONDS = 1.0
SWITCH_INTERVAL_SECONDS = 0.0005  # the loop's and the server's threads alternate


def create_batching_engine(
    folder: Path, loaded: LoadedModel, options: TransformersOptions, context_length: int
) -> tuple["BatchingEngine", int]:
    """Create the engine of a model without starting it. Return it and its cache's capacity."""
    manager, capacity = create_batch_manager(loaded, options, context_length)
    if capacity <= 0:
        raise TransformersLoadError(
            "the KV cache is too small for a prompt and one spare page: increase cache_tokens"
        )
    constraints = GrammarCompiler(folder, loaded.vocab_size, loaded.eos_ids)
    sampler = SamplingDefaults(loaded.defaults, loaded.vocab_size)
    return BatchingEngine(manager, sampler, min(context_length, capacity), constraints), capacity


class BatchingEngine:
    """A token engine on the library's batch manager."""

    name = "transformers"

    def __init__(
        self,
        manager: Any,
        sampling_defaults: SamplingDefaults,
        context_length: int,
        grammars: GrammarCompiler,
        *,
        liveness_check_seconds: float = LIVENESS_CHECK_SECONDS,
    ) -> None:
        self._manager = manager
        self._liveness_check_seconds = liveness_check_seconds
        self._sampling_defaults = sampling_defaults
        self._grammars = grammars
        self._failure_reason: str | None = None
        self._scheduler = manager.batch_processor.scheduler
        self._prefix_cache = PrefixCacheHook(manager.batch_processor.cache)
        self._retention = PageRetention(manager.batch_processor.cache)
        defer_delivery(manager)
        self.capabilities = EngineCapabilities(
            constraints=grammars.syntaxes,
            sampling=frozenset(("min_tokens", "ignore_eos")),
            logprobs=install_logprob_hook(manager),
            cached_tokens=self._prefix_cache.is_supported,
            context_length=context_length,
            local=True,
        )

    async def start(self) -> None:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        self._manager.start()

    async def stop(self) -> None:
        self._manager.stop(block=False, hard_stop=True)
        self._failure_reason = "the engine was stopped"

    async def health(self) -> EngineHealth:
        if self._failure_reason is None and not self._manager.is_running():
            self._failure_reason = "the generation loop has ended"
        scheduler = self._scheduler
        waiting = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        facts = {"running": len(scheduler.active_requests), "waiting": waiting}
        return EngineHealth(self._failure_reason is None, self._failure_reason or "", facts)

    @property
    def retains_pages(self) -> bool:
        """Whether `retain` has an effect with this version of the library."""
        return self._retention.is_supported

    def retain(self, request: str, seconds: float) -> None:
        """Evict the pages of a finished request after all others, for some time."""
        self._retention.retain(request, seconds)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Deltas that arrive while the sink is full are merged."""
        self._check(request)
        guide = await self._create_guide(request)
        eos_ids = guide.eos_ids if guide is not None else sorted(request.stop_ids)
        mask: TokenMask | None = guide
        if guide is None and request.sampling.min_tokens and eos_ids:
            mask = MinTokensMask(eos_ids, request.sampling.min_tokens)
        params = self._sampling_defaults.resolve(request.sampling, mask)
        name = self._prefix_cache.create_request_id(request.cache_salt)
        self._retention.track(request.id, name)
        logprobs = params.recorded_logprobs if params.logprobs is not None else None
        delivery = OutputDelivery(
            sink, eos_ids, partial(self._prefix_cache.cached_tokens, name), logprobs
        )
        self._submit(
            name,
            request,
            {"eos_token_id": eos_ids or NO_EOS_ID, PARAMS_KEY: params},
            delivery.deliver,
        )
        try:
            reason = await delivery.wait()
            if reason is not None:
                raise await self._classify_failure(reason)
        finally:
            delivery.close()
            if not delivery.finished:
                self._cancel(name)
            self._prefix_cache.forget(name)

    def _check(self, request: EngineRequest) -> None:
        """Reject requests that would fail in the loop, and end all other generations with it."""
        wanted = request.sampling.logprobs
        if wanted is not None and not self.capabilities.logprobs:
            raise Unsupported(
                "the engine 'transformers' does not support logprobs with this transformers version"
            )
        check_top_logprobs(wanted)
        if request.sampling.min_tokens and request.constraint is not None:
            raise Unsupported(
                "min_tokens: the engine 'transformers' does not support it with a constraint",
                param="min_tokens",
            )
        if (last := max_token_id(request.prompt)) >= self._sampling_defaults.vocab_size:
            raise InvalidRequest(f"token id {last} is not in the model's vocabulary")

    async def _create_guide(self, request: EngineRequest) -> GrammarGuide | None:
        """Compile the grammar in a thread, because it may take long."""
        if request.constraint is None:
            return None
        create_guide = self._grammars.create_guide
        return await asyncio.to_thread(create_guide, request.constraint, request.stop_ids)

    def _submit(
        self, name: str, request: EngineRequest, arguments: Any, on_output: Callable[[Any], None]
    ) -> None:
        manager = self._manager
        while manager.get_result(timeout=0) is not None:
            pass  # results of cancelled requests
        manager.register_result_handler(name, on_output)
        request_id = manager.add_request(
            request.prompt.tolist(),
            request_id=name,
            max_new_tokens=min(request.max_tokens, self._room(request)),
            streaming=True,
            **arguments,
        )
        if request_id is None:
            self._forget(name)
            raise EngineUnavailable("the generation loop does not accept requests")

    def _room(self, request: EngineRequest) -> int:
        """Return the tokens that the context window leaves for the output."""
        return max(1, (self.capabilities.context_length or 0) - len(request.prompt))

    def _cancel(self, name: str) -> None:
        self._manager.cancel_request(name)
        # A cancellation that overtakes its request in the library's two queues has no effect.
        asyncio.get_running_loop().call_later(
            CANCEL_RETRY_SECONDS, self._manager.cancel_request, name
        )
        self._forget(name)

    def _forget(self, name: str) -> None:
        """Remove the handler, which the library retains for requests that never finish."""
        self._manager.output_router.result_handlers.pop(name, None)
        self._prefix_cache.forget(name)

    async def _classify_failure(self, reason: str) -> EngineError:
        """Determine whether only this request failed, or the loop with all requests."""
        for _ in range(MAX_LIVENESS_CHECKS):
            if not self._manager.is_running():
                self._failure_reason = reason
                return EngineUnavailable(reason)
            await asyncio.sleep(self._liveness_check_seconds)
        return EngineError(reason)
