"""Engine for Dynamo's frontend: token ids over `/v1/completions`."""

from dovetail.engines.dynamo.discovery import DynamoOptions, discover
from dovetail.engines.dynamo.engine import DynamoEngine
from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options

__all__ = ["DynamoEngine", "DynamoOptions", "create", "discover"]


def create(setup: EngineSetup) -> DynamoEngine:
    """Create the engine for a model of a running frontend."""
    if setup.endpoint is None or setup.remote is None:
        raise EngineSetupError(
            "the engine 'dynamo' requires the address of Dynamo's frontend: set --engine-url URL"
        )
    return DynamoEngine(
        setup.endpoint,
        setup.remote,
        setup.tokenizer,
        context_length=setup.context_length,
        options=parse_options(setup.options, DynamoOptions),
    )
