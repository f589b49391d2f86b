"""Options of the engine `sglang`."""

from typing import Literal

import msgspec


class SglangOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server does not report itself. Unset, it is queried.

    `priority` is which numbers its scheduler runs first. `grammar_backend` is its flag of that
    name. `silence` is the read timeout in seconds: a server sends nothing during a long prefill.
    """

    priority: Literal["higher", "lower", "off"] | None = None
    grammar_backend: Literal["xgrammar", "llguidance", "outlines", "none"] | None = None
    silence: float = 600.0
