"""Create the engine `vllm`: in a child process, or for a running server."""

from dovetail.engines.engine import TokenEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.vllm.embedded import create_embedded
from dovetail.engines.vllm.engine import VllmEngine, VllmOptions


def create(setup: EngineSetup) -> TokenEngine:
    """Create the engine for a model of a running server, or for a model on this machine."""
    if setup.endpoint is None:
        return create_embedded(setup)
    if setup.remote is None:
        raise EngineSetupError(f"the model of the server at {setup.endpoint} is not known")
    return VllmEngine(
        setup.endpoint,
        setup.remote,
        setup.tokenizer,
        context_length=setup.context_length,
        options=parse_options(setup.options, VllmOptions),
    )
