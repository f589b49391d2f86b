"""Engine for an unmodified remote SGLang server: token ids over its native `/generate`."""

from dovetail.engines.registry import EngineSetup, EngineSetupError, parse_options
from dovetail.engines.sglang.discovery import SglangOptions, discover
from dovetail.engines.sglang.engine import SglangEngine

__all__ = ["SglangEngine", "SglangOptions", "create", "discover"]


def create(setup: EngineSetup) -> SglangEngine:
    """Create the engine for a running server."""
    if setup.endpoint is None:
        raise EngineSetupError(
            "the engine 'sglang' requires the address of a server: set --engine-url URL"
        )
    reported_length = setup.remote.context_length if setup.remote is not None else None
    return SglangEngine(
        setup.endpoint,
        setup.tokenizer,
        context_length=setup.context_length or reported_length,
        options=parse_options(setup.options, SglangOptions),
    )
