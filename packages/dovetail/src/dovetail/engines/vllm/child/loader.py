"""Load a model with vLLM."""

from collections.abc import Mapping
from typing import Any

import msgspec
from vllm.v1.engine.async_llm import AsyncLLM

from dovetail.engines.vllm.child.arguments import parse_engine_args
from dovetail.engines.vllm.child.engine import AsyncLlmEngine


class VllmChildConfig(msgspec.Struct, frozen=True):
    """The model, vLLM's engine arguments by name, and the folders of LoRA adapters by name."""

    model: str
    arguments: dict[str, str] = {}
    adapters: dict[str, str] = {}


def load(config: Mapping[str, Any]) -> AsyncLlmEngine:
    """Load the model, which takes seconds to minutes. Raise an error with vLLM's reason."""
    child = msgspec.convert(config, VllmChildConfig)
    arguments = dict(child.arguments)
    if child.adapters:
        arguments.setdefault("enable_lora", "true")
        arguments.setdefault("max_loras", str(len(child.adapters)))
    llm = AsyncLLM.from_engine_args(parse_engine_args(child.model, arguments))
    return AsyncLlmEngine(llm, child.model, child.adapters)
