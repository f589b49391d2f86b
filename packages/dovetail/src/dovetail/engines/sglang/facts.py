"""What an SGLang server says about itself, beyond the model that it serves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.engines.engine import ConstraintSyntax
from dovetail.engines.sglang.options import SglangOptions

#: Which number a scheduler by priority takes first.
PriorityOrder = Literal["higher", "lower"]

#: The notations that each grammar backend enforces, the best first. That of llguidance reads Lark
#: and GBNF where SGLang says EBNF, and structural tags only in a form from before xgrammar's.
BACKEND_SYNTAXES: Mapping[str, tuple[ConstraintSyntax, ...]] = {
    "xgrammar": ("structural_tag", "ebnf", "json_schema"),
    "llguidance": ("lark", "gbnf", "ebnf", "json_schema"),
    "outlines": ("json_schema",),
    "none": (),
}
DEFAULT_GRAMMAR_BACKEND = "xgrammar"


@dataclass(frozen=True)
class SglangServerInfo:
    """How a server was started. `told` is False for one that keeps it to itself: a router."""

    reported: bool = False
    priority_order: PriorityOrder | None = None
    constraints: tuple[ConstraintSyntax, ...] = ()
    context_length: int | None = None
    incremental_output: bool | None = None
    version: str = ""


def parse_server_info(
    reported: Mapping[str, Any] | None, options: SglangOptions
) -> SglangServerInfo:
    """The facts in an answer of `/server_info`; what the user says counts more."""
    info = reported or {}
    backend = options.grammar_backend or _grammar_backend(reported)
    return SglangServerInfo(
        reported=reported is not None,
        priority_order=_priority_order(info, options),
        constraints=BACKEND_SYNTAXES.get(backend, ()),
        context_length=_max_context_length(info),
        incremental_output=_flag(info, "incremental_streaming_output", "stream_output"),
        version=str(info.get("version") or ""),
    )


def _grammar_backend(reported: Mapping[str, Any] | None) -> str:
    """Nobody promises what a server that tells nothing can enforce."""
    if reported is None:
        return "none"
    return str(reported.get("grammar_backend") or DEFAULT_GRAMMAR_BACKEND)


def _priority_order(info: Mapping[str, Any], options: SglangOptions) -> PriorityOrder | None:
    if options.priority is not None:
        return None if options.priority == "off" else options.priority
    if not info.get("enable_priority_scheduling"):
        return None
    return "lower" if info.get("schedule_low_priority_values_first") else "higher"


def _max_context_length(info: Mapping[str, Any]) -> int | None:
    """What a request may take: the pool of the cache can be smaller than the model's window.

    A request is refused whose prompt and `max_new_tokens` exceed the window less the room for
    drafts, though a shorter answer would have fitted.
    """
    drafts = max(
        _number(info, "speculative_eagle_topk") * _number(info, "speculative_num_steps"),
        _number(info, "speculative_num_draft_tokens"),
    )
    limits = (_number(info, "context_length") - drafts, _number(info, "max_req_input_len"))
    return min((limit for limit in limits if limit > 0), default=None)


def _number(info: Mapping[str, Any], name: str) -> int:
    value = info.get(name)
    return value if isinstance(value, int) else 0


def _flag(info: Mapping[str, Any], *names: str) -> bool | None:
    """A flag by its name of now or of before; None where it is not told."""
    return next((bool(info[name]) for name in names if info.get(name) is not None), None)
