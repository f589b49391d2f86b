"""Describe transformers' continuous batching, in an interpreter that has transformers.

Prints, as JSON, the parameters of each method and the type of each attribute that the lines on
stdin name, by object.
"""

import inspect
import json
import sys
from dataclasses import fields
from importlib import import_module
from typing import Any

for name in ("torchaudio", "torchcodec", "torchvision"):
    sys.modules[name] = None  # type: ignore[assignment]

_BATCHING = "transformers.generation.continuous_batching"
_SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}


def create_manager() -> Any:
    """Create the library's manager over a tiny model, with an allocated cache."""
    transformers = import_module("transformers")
    form = import_module("transformers.generation.configuration_utils").ContinuousBatchingConfig
    page = "page_size" if "page_size" in {field.name for field in fields(form)} else "block_size"
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_SHAPE)).eval()
    manager = model.init_continuous_batching(
        generation_config=transformers.GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=form(**{page: 32}, num_blocks=8, max_batch_tokens=64),
    )
    manager.batch_processor = manager._create_batch_processor()
    return manager


def find_objects() -> dict[str, Any]:
    manager, requests = create_manager(), import_module(f"{_BATCHING}.requests")
    processor = manager.batch_processor
    allocators = getattr(processor.cache, "layer_to_allocator", None)
    state = requests.RequestState("r", [1, 2])
    return {
        "manager": manager,
        "processor": processor,
        "cache": processor.cache,
        "allocator": processor.cache if allocators is None else allocators[0],
        "scheduler": processor.scheduler,
        "batch": processor.inputs_and_outputs,
        "runner": processor.model_runner,
        "router": manager.output_router,
        "config": manager.continuous_batching_config,
        "state": state,
        "output": state.to_generation_output(),
        "future": requests.FutureRequestState,
        "attention": import_module("transformers").AttentionInterface,
    }


def describe(found: Any, name: str) -> str | None:
    """Return the parameters of a method or the type of an attribute; None if it does not exist."""
    if inspect.isclass(found) and name in getattr(found, "__annotations__", {}):
        return "attribute"
    value = getattr(found, name, describe)
    if value is describe:
        return None
    return str(inspect.signature(value)) if inspect.isroutine(value) else type(value).__name__


if __name__ == "__main__":
    objects = find_objects()
    wanted: dict[str, list[str]] = json.load(sys.stdin)
    described = {
        place: {name: describe(objects[place], name) for name in names}
        for place, names in wanted.items()
    }
    print(json.dumps({"version": import_module("transformers").__version__, "found": described}))
