"""Engine for a server that renders and parses itself, over Chat Completions or Responses."""

from dovetail.engines.openai.discovery import discover
from dovetail.engines.openai.options import OpenAIOptions
from dovetail.engines.openai.upstream import OpenAIUpstream
from dovetail.engines.registry import EngineSetupError, UpstreamSetup, parse_options

__all__ = ["OpenAIOptions", "OpenAIUpstream", "create", "discover"]


def create(setup: UpstreamSetup) -> OpenAIUpstream:
    """Create the upstream engine for one model of a server."""
    if not setup.remote.name:
        raise EngineSetupError(
            f"the server at {setup.endpoint} lists no models: specify the model name"
        )
    options = parse_options(setup.options, OpenAIOptions)
    if options.raw and options.api == "responses":
        raise EngineSetupError(
            "the option raw requires Chat Completions: it cannot be combined with api=responses"
        )
    return OpenAIUpstream(setup.endpoint, setup.remote, options)
