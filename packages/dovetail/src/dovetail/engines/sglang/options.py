"""What can be said about an SGLang server that it does not say itself."""

from typing import Literal

import msgspec


class SglangOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of the engine `sglang`. Unset, the server is asked.

    `priority` is which number its scheduler takes first. `grammar_backend` is its flag of that
    name. `silence` is how many seconds it may be silent while it reads a long prompt.
    """

    priority: Literal["higher", "lower", "off"] | None = None
    grammar_backend: Literal["xgrammar", "llguidance", "outlines", "none"] | None = None
    silence: float = 600.0
