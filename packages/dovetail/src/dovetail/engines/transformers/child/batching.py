"""transformers' continuous batching as a token engine.

The library's loop runs in a thread of its own and hands results to ours. What it does not offer is
reached for in few places, each marked: what was found in the prefix cache, and how much room there
is. It is asked by the names that its versions from 5.17 on have for things.
"""

import asyncio
import os
from dataclasses import fields
from importlib import import_module
from math import ceil
from typing import Any
from uuid import uuid4

from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener, TokenDelta
from dovetail.engines.transformers.child.loading import Loaded, LoadError, tell
from dovetail.engines.transformers.child.sampling import PLACEHOLDERS, Sampler
from dovetail.engines.transformers.options import TransformersOptions
from dovetail_model import EngineError, EngineUnavailable, InvalidRequest, Unsupported

CPU_PAGE, PAGE, OWN_PAGE = 32, 256, 64  # tokens
CPU_BATCH_TOKENS, OWN_BATCH_TOKENS = 512, 8192
SHARE = 0.5  # of this machine's memory, for a cache on the CPU
LAST_STEPS = 40  # looks at a loop that may be ending
GLANCE = 0.05  # seconds between two of them
AGAIN = 1.0  # seconds until a cancellation is repeated
NO_END = -1  # stands for "no id ends it"


def make_manager(loaded: Loaded, options: TransformersOptions, window: int) -> tuple[Any, int]:
    """The library's manager with its cache allocated, and the tokens that this has room for."""
    generation = import_module("transformers").GenerationConfig(
        do_sample=True, eos_token_id=NO_END, **PLACEHOLDERS
    )
    page = options.page_size or _page(loaded)
    try:
        manager = loaded.model.init_continuous_batching(
            generation_config=generation,
            continuous_batching_config=_config(loaded, options, window, page),
        )
        _warm_up(manager, loaded, ceil(window / page))  # here, where a failure can be told
    except (RuntimeError, ValueError, MemoryError) as fault:
        raise LoadError(tell(fault)) from fault
    return manager, manager.batch_processor.cache.num_blocks * page


def _page(loaded: Loaded) -> int:
    if loaded.device == "cpu":
        return CPU_PAGE
    return OWN_PAGE if loaded.own_attention else PAGE


def _warm_up(manager: Any, loaded: Loaded, pages: int) -> None:
    """Makes the cache, and the graphs of batches of single tokens.

    The library would also run a batch as long as the whole cache, which takes long and tells
    nothing.
    """
    if not loaded.own_attention:
        manager.warmup()
        return
    # It knows this way of single tokens only of the flash-attention package.
    manager.continuous_batching_config.max_blocks_per_request = pages
    manager.batch_processor = processor = manager._create_batch_processor()
    runner, cache = processor.model_runner, processor.cache
    attention = import_module("dovetail.engines.transformers.child.attention")
    heads = manager.model.config.get_text_config().num_attention_heads
    attention.compile_kernels(attention.pages_of(cache, 0), heads)
    with import_module("torch").no_grad():
        runner.run_one_warmup(manager.model, cache.max_batch_tokens, 0)
        if runner.use_cuda_graph_decode:
            most, requests = manager.continuous_batching_config.max_requests_per_batch, 1
            while requests < 2 * most:
                runner.run_one_warmup(manager.model, min(requests, most), None)
                requests *= 2
    if hasattr(cache, "reset"):
        cache.reset()  # what the warm-up took of it
    manager.warmed_up = True


def _config(loaded: Loaded, options: TransformersOptions, window: int, page: int) -> Any:
    module = import_module("transformers.generation.configuration_utils")
    form = module.ContinuousBatchingConfig
    known = {field.name for field in fields(form)}
    on_cpu = loaded.device == "cpu"
    tokens = options.cache_tokens or (_cpu_tokens(loaded, window, page) if on_cpu else None)
    wanted = {
        "page_size" if "page_size" in known else "block_size": page,
        "num_blocks": ceil(tokens / page) if tokens is not None else None,
        "max_batch_tokens": options.max_batch_tokens or _batch_tokens(loaded),
        "max_requests_per_batch": options.max_batch,
        "allow_block_sharing": True,
        "per_request_processors": True,
        "auto_switch_to_flash": False,  # `attention` says what is wanted
        "use_cuda_graph": (False, loaded.own_attention and options.cuda_graphs),
        "use_async_batching": False,  # what a constraint allows depends on the token before
        # A batch that is not replayed needs no padding, and cannot be without any.
        "q_padding_interval_size": 16,
        "kv_padding_interval_size": page,
    }
    return form(**{name: value for name, value in wanted.items() if name in known})


def _batch_tokens(loaded: Loaded) -> int | None:
    if loaded.device == "cpu":
        return CPU_BATCH_TOKENS
    return OWN_BATCH_TOKENS if loaded.own_attention else None


def _cpu_tokens(loaded: Loaded, window: int, page: int) -> int:
    """Room for two whole windows, as far as memory allows."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(min(2 * window, int(SHARE * memory / loaded.cache_bytes)), 4 * page)


class BatchingEngine:
    """The engine around a manager."""

    name = "transformers"

    def __init__(self, manager: Any, sampler: Sampler, window: int) -> None:
        self._manager = manager
        self._sampler = sampler
        self._cached: dict[str, int] = {}
        self._death: str | None = None
        self._scheduler = manager.batch_processor.scheduler
        cache = manager.batch_processor.cache
        knows = hasattr(cache, "search_prefix_match")
        if knows:
            self._note_prefixes(cache)
        self.abilities = Abilities(cached_tokens=knows, context_length=window, local=True)

    async def start(self) -> None:
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
        """Deltas as they come, those that came together in one."""
        self._check(request)
        name, told, finished = uuid4().hex, 0, False
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._submit(name, request, outputs)
        try:
            while not finished:
                output = await outputs.get()
                while not outputs.empty():  # each tells all tokens so far
                    output = outputs.get_nowait()
                finished = output.is_finished()
                if output.error is not None:
                    raise await self._failure(str(output.error))
                ids = output.generated_tokens[told:]
                cached = None if told else self._cached.pop(name, 0)
                told += len(ids)
                reason = _finish(ids, request) if finished else None
                more = listener.hear(TokenDelta(ids, finish=reason, cached=cached))
                if not (more or finished or await listener.wait()):
                    return
        finally:
            if not finished:
                self._cancel(name)
            self._cached.pop(name, None)

    def _check(self, request: EngineRequest) -> None:
        """Refuses what would fail in the loop, and with it everybody's generations."""
        if request.sampling.logprobs is not None or request.constraint is not None:
            raise Unsupported("the engine 'transformers' has no logprobs and no constraints")
        if max(request.prompt) >= self._sampler.vocabulary:
            raise InvalidRequest(f"token id {max(request.prompt)} is out of the model's vocabulary")

    def _submit(self, name: str, request: EngineRequest, outputs: "asyncio.Queue[Any]") -> None:
        manager = self._manager
        while manager.get_result(timeout=0) is not None:
            pass  # what came for requests that were cancelled
        manager.register_result_handler(name, outputs.put_nowait)
        taken = manager.add_request(
            request.prompt.tolist(),
            request_id=name,
            max_new_tokens=request.max_tokens,
            streaming=True,
            eos_token_id=sorted(request.stop_ids) or NO_END,
            **self._sampler.arguments(request.sampling),
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

    async def _failure(self, reason: str) -> EngineError:
        """Whether a request failed, or the loop with all of them."""
        for _ in range(LAST_STEPS):
            if not self._manager.is_running():
                self._death = reason
                return EngineUnavailable(reason)
            await asyncio.sleep(GLANCE)
        return EngineError(reason)

    def _note_prefixes(self, cache: Any) -> None:
        """The library knows how much of a prompt it found in its cache, and tells only itself."""
        search = cache.search_prefix_match

        def noting(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            self._cached.setdefault(request_id, found)
            return found

        cache.search_prefix_match = noting


def _finish(ids: list[int], request: EngineRequest) -> Any:
    return "stop" if ids and ids[-1] in request.stop_ids else "length"
