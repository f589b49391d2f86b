"""An engine that another process of the same server runs, for all processes that serve its port.

It is asked as vLLM is asked, over a socket that only this user can reach.
"""

from dovetail.engines.hosted import HostedEngine, HostedOptions, Trait, traits_of
from dovetail.engines.registry import EngineSetup, read_options

__all__ = ["HostedEngine", "HostedOptions", "Trait", "create", "traits_of"]


def create(setup: EngineSetup) -> HostedEngine:
    """The engine behind the address among the options."""
    return HostedEngine(read_options(setup.options, HostedOptions))
