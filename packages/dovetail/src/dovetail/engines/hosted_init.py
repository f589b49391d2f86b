"""An engine that another process of the same server runs, for all processes that serve its port.

It is asked as vLLM is asked, over a socket that only this user can reach.
"""

from dovetail.engines.hosted import HostedEngine, HostedEngineInfo, HostedOptions, describe_engine
from dovetail.engines.registry import EngineSetup, parse_options

__all__ = ["HostedEngine", "HostedOptions", "HostedEngineInfo", "create", "describe_engine"]


def create(setup: EngineSetup) -> HostedEngine:
    """The engine behind the address among the options."""
    return HostedEngine(parse_options(setup.options, HostedOptions))
