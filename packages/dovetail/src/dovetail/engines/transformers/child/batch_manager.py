"""Configure the library's batch manager: KV cache, kernels, CUDA graphs, sampling."""

import os
from dataclasses import fields
from importlib import import_module
from math import ceil
from typing import Any

from dovetail.engines.transformers.child.batch_sampler import (
    BatchSampler,
    key_graphs_by_steps,
    required_steps,
)
from dovetail.engines.transformers.child.loader import (
    LoadedModel,
    TransformersLoadError,
    describe_error,
)
from dovetail.engines.transformers.child.sampling_params import SamplingDefaults, SamplingParams
from dovetail.engines.transformers.options import TransformersOptions
from dovetail_model import Sampling

CPU_PAGE_TOKENS, DEFAULT_PAGE_TOKENS, OWN_ATTENTION_PAGE_TOKENS = 32, 256, 64
CPU_BATCH_TOKENS, OWN_ATTENTION_BATCH_TOKENS = 512, 8192
CPU_CACHE_MEMORY_FRACTION = 0.5  # of the machine's memory, for a cache on the CPU
DEFAULT_SAMPLING = Sampling()  # of a request that sets no parameters
NO_EOS_ID = -1  # no id ends the generation


def create_batch_manager(
    loaded: LoadedModel, options: TransformersOptions, context_length: int
) -> tuple[Any, int]:
    """Create the library's manager with an allocated cache. Return it and the cache's capacity."""
    generation = import_module("transformers").GenerationConfig(
        do_sample=False, eos_token_id=NO_EOS_ID
    )
    sampler = BatchSampler(
        options.max_batch, loaded.vocab_size, loaded.tokenizer_vocab_size, loaded.model.device
    )
    page = options.page_size or _page_tokens(loaded)
    try:
        manager = loaded.model.init_continuous_batching(
            generation_config=generation,
            continuous_batching_config=_batching_config(loaded, options, context_length, page),
        )
        manager.logit_processor = sampler  # replaces the library's own
        # Done here, where a failure can be reported.
        _create_cache(manager, loaded, ceil(context_length / page))
        _warm_up(manager, loaded, sampler)
    except (RuntimeError, ValueError, MemoryError) as fault:
        raise TransformersLoadError(describe_error(fault)) from fault
    # The library allocates one more page than a sequence needs, and fails if there is none.
    return manager, (manager.batch_processor.cache.num_blocks - 1) * page


def _page_tokens(loaded: LoadedModel) -> int:
    if loaded.device == "cpu":
        return CPU_PAGE_TOKENS
    return OWN_ATTENTION_PAGE_TOKENS if loaded.own_attention else DEFAULT_PAGE_TOKENS


def _create_cache(manager: Any, loaded: LoadedModel, pages: int) -> None:
    if loaded.own_attention:
        # The library creates decode batches only for the flash-attention package.
        manager.continuous_batching_config.max_blocks_per_request = pages
    manager.batch_processor = manager._create_batch_processor()
    _unblock_after_cancel(manager.batch_processor.scheduler)


def _unblock_after_cancel(scheduler: Any) -> None:
    """Accept new requests after a cancellation.

    With a full cache, the library blocks new requests until a running one has finished. A cancelled
    request never finishes.
    """
    clear = scheduler.clear_cancelled_requests

    def cleared() -> list[Any]:
        cancelled: list[Any] = clear()
        if cancelled:
            scheduler.block_new_requests = False
        return cancelled

    scheduler.clear_cancelled_requests = cleared


def _warm_up(manager: Any, loaded: LoadedModel, sampler: BatchSampler) -> None:
    """Compile Dovetail's kernels, and record the CUDA graphs of decode batches.

    The library's own warm-up would also run a batch as long as the complete cache, which takes long
    and is not needed. Graphs are recorded for greedy requests, for the model's defaults and for
    plain sampling. Others are recorded on their first use.
    """
    processor = manager.batch_processor
    runner, cache = processor.model_runner, processor.cache
    key_graphs_by_steps(processor.inputs_and_outputs, sampler)
    if loaded.own_attention:
        attention = import_module("dovetail.engines.transformers.child.attention")
        heads = manager.model.config.get_text_config().num_attention_heads
        attention.compile_kernels(attention.pages_of(cache, 0), heads)
        attention.gather_tables(processor)
    if runner.use_cuda_graph_decode:
        variants = (
            SamplingParams(temperature=0.0),
            SamplingParams(),
            SamplingDefaults(loaded.defaults, loaded.vocab_size).resolve(DEFAULT_SAMPLING),
        )
        with import_module("torch").no_grad():
            runner.run_one_warmup(manager.model, cache.max_batch_tokens, 0)
            for params in {required_steps([params]): params for params in variants}.values():
                sampler.warmup_params = params
                for requests in _graph_batch_sizes(
                    manager.continuous_batching_config.max_requests_per_batch
                ):
                    runner.run_one_warmup(manager.model, requests, None)
    if hasattr(cache, "reset"):
        cache.reset()  # removes the blocks of the warm-up
    manager.warmed_up = True


def _graph_batch_sizes(max_requests: int) -> list[int]:
    """Return the batch sizes for which graphs are recorded: powers of two, and the largest."""
    return [
        *(1 << power for power in range(max_requests.bit_length()) if 1 << power < max_requests),
        max_requests,
    ]


def _batching_config(
    loaded: LoadedModel, options: TransformersOptions, context_length: int, page: int
) -> Any:
    module = import_module("transformers.generation.configuration_utils")
    config_type = module.ContinuousBatchingConfig
    known = {field.name for field in fields(config_type)}
    on_cpu = loaded.device == "cpu"
    tokens = options.cache_tokens or (
        _cpu_cache_tokens(loaded, context_length, page) if on_cpu else None
    )
    values = {
        "page_size" if "page_size" in known else "block_size": page,
        "num_blocks": ceil(tokens / page) if tokens is not None else None,
        "max_batch_tokens": options.max_batch_tokens or _batch_tokens(loaded),
        "max_requests_per_batch": options.max_batch,
        "allow_block_sharing": True,
        "auto_switch_to_flash": False,  # the option `attention` selects the implementation
        "use_cuda_graph": (False, loaded.own_attention and options.cuda_graphs),
        "use_async_batching": False,  # a constraint's mask depends on the previous token
        # A batch that is not replayed needs no padding, but the library requires some.
        "q_padding_interval_size": 16,
        "kv_padding_interval_size": page,
    }
    return config_type(**{name: value for name, value in values.items() if name in known})


def _batch_tokens(loaded: LoadedModel) -> int | None:
    if loaded.device == "cpu":
        return CPU_BATCH_TOKENS
    return OWN_ATTENTION_BATCH_TOKENS if loaded.own_attention else None


def _cpu_cache_tokens(loaded: LoadedModel, context_length: int, page: int) -> int:
    """Return room for two context windows, limited by the available memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(
        min(
            2 * context_length, int(CPU_CACHE_MEMORY_FRACTION * memory / loaded.kv_bytes_per_token)
        ),
        4 * page,
    )
