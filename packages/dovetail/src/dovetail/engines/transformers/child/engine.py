"""transformers' continuous batching as a token engine.

The library's loop runs in a thread of its own and hands results to ours. What it does not offer is
reached for in few places, each marked: what was found in the prefix cache, how much room there is,
and when the outcome of a step is there. It is asked by the names that its versions from 5.17 on
have for things.
"""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener
from dovetail.engines.packing import highest
from dovetail.engines.sampling import check_logprobs
from dovetail.engines.transformers.child.batch_manager import NO_END, make_manager
from dovetail.engines.transformers.child.delivery import Delivery, postpone
from dovetail.engines.transformers.child.grammar import Constraints, Guide
from dovetail.engines.transformers.child.loader import Loaded, LoadError
from dovetail.engines.transformers.child.prefix_cache import Prefixes
from dovetail.engines.transformers.child.probabilities import hand_out_after_steps
from dovetail.engines.transformers.child.sampling import NAME, Sampler
from dovetail.engines.transformers.options import TransformersOptions
from dovetail_model import EngineError, EngineUnavailable, InvalidRequest, Unsupported

LAST_STEPS = 40  # looks at a loop that may be ending
GLANCE = 0.05  # seconds between two of them
AGAIN = 1.0  # seconds until a cancellation is repeated
SWITCH = 0.0005  # seconds that a thread keeps the interpreter from another


def make_engine(
    folder: Path, loaded: Loaded, options: TransformersOptions, window: int
) -> tuple["BatchingEngine", int]:
    """The engine of a model, not yet started, and the tokens that its cache has room for."""
    manager, capacity = make_manager(loaded, options, window)
    if capacity <= 0:
        raise LoadError("the cache has no room for a prompt beside a page to spare (cache_tokens)")
    constraints = Constraints(folder, loaded.vocabulary, loaded.ends)
    sampler = Sampler(loaded.defaults, loaded.vocabulary)
    return BatchingEngine(manager, sampler, min(window, capacity), constraints), capacity


class BatchingEngine:
    """The engine around a manager."""

    name = "transformers"

    def __init__(
        self, manager: Any, sampler: Sampler, window: int, constraints: Constraints
    ) -> None:
        self._manager = manager
        self._sampler = sampler
        self._constraints = constraints
        self._death: str | None = None
        self._scheduler = manager.batch_processor.scheduler
        self._prefixes = Prefixes(manager.batch_processor.cache)
        postpone(manager)
        self.abilities = Abilities(
            constraints=constraints.syntaxes,
            logprobs=hand_out_after_steps(manager),
            cached_tokens=self._prefixes.known,
            context_length=window,
            local=True,
        )

    async def start(self) -> None:
        sys.setswitchinterval(SWITCH)  # two threads take turns here, the loop's and the server's
        self._manager.start()

    async def stop(self) -> None:
        self._manager.stop(block=False, hard_stop=True)
        self._death = "the engine was stopped"

    async def health(self) -> Health:
        if self._death is None and not self._manager.is_running():
            self._death = "the generation loop has ended"
        scheduler = self._scheduler
        waiting = len(scheduler.waiting_requests) + self._manager.input_queue.qsize()
        facts = {"running": len(scheduler.active_requests), "waiting": waiting}
        return Health(self._death is None, self._death or "", facts)

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """Deltas as they come, those for which there was no room in one."""
        self._check(request)
        guide = await self._guide(request)
        draw = self._sampler.draw(request.sampling, guide)
        name = self._prefixes.name(request.cache_salt)
        ends = guide.ends if guide is not None else sorted(request.stop_ids)
        probable = draw.told if draw.logprobs is not None else None
        delivery = Delivery(listener, ends, partial(self._prefixes.cached, name), probable)
        self._submit(name, request, {"eos_token_id": ends or NO_END, NAME: draw}, delivery.take)
        try:
            reason = await delivery.end()
            if reason is not None:
                raise await self._failure(reason)
        finally:
            delivery.close()
            if not delivery.finished:
                self._cancel(name)
            self._prefixes.forget(name)

    def _check(self, request: EngineRequest) -> None:
        """Refuses what would fail in the loop, and with it everybody's generations."""
        wanted = request.sampling.logprobs
        if wanted is not None and not self.abilities.logprobs:
            raise Unsupported("the engine 'transformers' has no logprobs with this library")
        check_logprobs(wanted)
        if (last := highest(request.prompt)) >= self._sampler.vocabulary:
            raise InvalidRequest(f"token id {last} is out of the model's vocabulary")

    async def _guide(self, request: EngineRequest) -> Guide | None:
        """A grammar may take a while to compile: the others go on."""
        if request.constraint is None:
            return None
        make = self._constraints.guide
        return await asyncio.to_thread(make, request.constraint, request.stop_ids)

    def _submit(
        self, name: str, request: EngineRequest, given: Any, take: Callable[[Any], None]
    ) -> None:
        manager = self._manager
        while manager.get_result(timeout=0) is not None:
            pass  # what came for requests that were cancelled
        manager.register_result_handler(name, take)
        taken = manager.add_request(
            request.prompt.tolist(),
            request_id=name,
            max_new_tokens=request.max_tokens,
            streaming=True,
            **given,
        )
        if taken is None:
            self._forget(name)
            raise EngineUnavailable("the generation loop takes no more requests")

    def _cancel(self, name: str) -> None:
        self._manager.cancel_request(name)
        # A cancellation that overtakes its request in the library's two queues has no effect.
        asyncio.get_running_loop().call_later(AGAIN, self._manager.cancel_request, name)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """The library keeps the handler of a request that never finishes."""
        self._manager.output_router.result_handlers.pop(name, None)
        self._prefixes.forget(name)

    async def _failure(self, reason: str) -> EngineError:
        """Whether a request failed, or the loop with all of them."""
        for _ in range(LAST_STEPS):
            if not self._manager.is_running():
                self._death = reason
                return EngineUnavailable(reason)
            await asyncio.sleep(GLANCE)
        return EngineError(reason)
