"""Engine for an unmodified remote vLLM server, over its completions API."""

from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.vllm.discovery import discover
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions

__all__ = ["VllmEngine", "VllmOptions", "create", "discover"]


def create(setup: EngineSetup) -> VllmEngine:
    """Create the engine for a model of a running server."""
    if setup.endpoint is None or setup.remote is None:
        raise EngineSetupError(
            "the engine 'vllm' requires the address of a server: set --engine-url"
        )
    return VllmEngine(
        setup.endpoint,
        setup.remote,
        setup.tokenizer,
        context_length=setup.context_length,
        options=parse_options(setup.options, VllmOptions),
    )
