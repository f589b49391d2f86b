"""`dovetail` with small caches, so that they are full after a thousand requests.

Run as a script with the arguments of `dovetail`. With the sizes of production the caches alone
would take hours to fill, and hide a leak until then.
"""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dovetail.cli.main import main
from dovetail.engines.scripted import reply, selection
from dovetail.ledger import ledger
from dovetail.ledger.recognition import TurnRecognizer
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_diagnostics import PrefixDiagnostics
from dovetail.routing import router
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_tokenizers.long_text_cache import LongTextCache

FEW, SMALL = 256, 1 << 20
_BOUNDS: tuple[tuple[Callable[..., Any], str, int], ...] = (
    (ledger.Ledger.__init__, "cache_bytes", SMALL),
    (ledger.Ledger.__init__, "token_cache_bytes", SMALL),
    (TurnRecognizer.__init__, "max_handle_matches", FEW),
    (PrefixDiagnostics.__init__, "max_bytes", SMALL),
    (PromptNormalizer.__init__, "max_chars", SMALL),
    (DecodeCache.__init__, "max_bytes", SMALL),
    (LongTextCache.__init__, "max_bytes", SMALL),
)
_CONSTANTS: tuple[tuple[ModuleType, str], ...] = (
    (ledger, "_MAX_TRACKED_CHAINS"),
    (router, "MAX_SESSION_HOMES"),
    (selection, "MAX_SESSIONS"),
    (selection, "MAX_PROMPTS"),
    (reply, "MAX_REMEMBERED"),
)


def shrink() -> None:
    """Give every bounded cache a small bound. A missing name is an error."""
    for function, name, bound in _BOUNDS:
        keyword_defaults = function.__kwdefaults__ or {}
        if name in keyword_defaults:
            keyword_defaults[name] = bound
            continue
        parameters = inspect.signature(function).parameters.values()
        names = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
        defaults = list(function.__defaults__ or ())
        defaults[names.index(name) - len(names)] = bound
        function.__defaults__ = tuple(defaults)
    for module, name in _CONSTANTS:
        assert hasattr(module, name), name
        setattr(module, name, FEW)


if __name__ == "__main__":
    shrink()
    sys.argv[0] = "dovetail"
    main()
