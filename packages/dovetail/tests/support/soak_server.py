"""`dovetail` with small memories: what is full after a thousand requests shows what else grows.

Run as a script with the arguments of `dovetail`. With the sizes of production the caches alone
would take hours to fill, and hide a leak until then.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dovetail.cli.main import main
from dovetail.engines.scripted import reply as takes
from dovetail.engines.scripted import selection as casting
from dovetail.ledger import ledger
from dovetail.ledger.recognition import TurnRecognizer
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_diagnostics import PrefixDiagnostics
from dovetail.routing import pool
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_tokenizers.long_text_cache import LongTextCache

FEW, SMALL = 256, 1 << 20
_BOUNDS: tuple[tuple[Callable[..., Any], str, int], ...] = (
    (ledger.Ledger.__init__, "cache_bytes", SMALL),
    (ledger.Ledger.__init__, "wholes_bytes", SMALL),
    (TurnRecognizer.__init__, "most", FEW),
    (PrefixDiagnostics.__init__, "max_bytes", SMALL),
    (PromptNormalizer.__init__, "max_chars", SMALL),
    (DecodeCache.__init__, "max_bytes", SMALL),
    (LongTextCache.__init__, "max_bytes", SMALL),
)
_CONSTANTS: tuple[tuple[ModuleType, str], ...] = (
    (ledger, "_REMEMBERED"),
    (pool, "SESSIONS"),
    (casting, "MOST_SESSIONS"),
    (casting, "MOST_PROMPTS"),
    (takes, "MOST_REMEMBERED"),
)


def shrink() -> None:
    """Gives every memory that has a bound a small one. A name that is gone is an error."""
    for function, name, bound in _BOUNDS:
        by_name = function.__kwdefaults__ or {}
        if name in by_name:
            by_name[name] = bound
            continue
        named = list(inspect.signature(function).parameters)
        usual = list(function.__defaults__ or ())
        usual[named.index(name) - len(named)] = bound
        function.__defaults__ = tuple(usual)
    for module, name in _CONSTANTS:
        assert hasattr(module, name), name
        setattr(module, name, FEW)


if __name__ == "__main__":
    shrink()
    sys.argv[0] = "dovetail"
    main()
