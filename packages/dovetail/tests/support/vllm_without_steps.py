"""A child process with a vLLM that lacks an attribute of the step output.

It takes the place of `dovetail.engines.vllm.child.loader`: the model, the requests and
`AsyncLLM.generate` are vLLM's own.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

MISSING = "get_supported_tasks"


class OtherAsyncLlm:
    """An `AsyncLLM` of another version, without the attribute."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def __getattr__(self, name: str) -> Any:
        if name == MISSING:
            raise AttributeError(name)
        return getattr(self._llm, name)


def load(config: Mapping[str, Any]) -> Any:
    loader: Any = import_module("dovetail.engines.vllm.child.loader")
    create = loader.AsyncLlmEngine
    loader.AsyncLlmEngine = lambda llm, *more: create(OtherAsyncLlm(llm), *more)
    return loader.load(config)
