"""The capabilities of a model in Anthropic's format, as its SDKs declare them.

All known keys are present. A capability is supported if a request that uses it has its effect: what
the server accepts but cannot honour is not supported.
"""

from collections.abc import Collection
from typing import Any

from dovetail.pipeline.registry import ModelEntry, TokenModel, UpstreamModel

_LEVELS = ("low", "medium", "high", "xhigh", "max")
_CONTEXT_EDITS = ("clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112")
Json = dict[str, Any]


def describe_capabilities(entry: ModelEntry, server_tools: Collection[str] = ()) -> Json:
    """Return the capabilities. `server_tools` are the kinds of tools that the server runs."""
    is_upstream = isinstance(entry, UpstreamModel)
    # An upstream counts no tokens, so that context edits have no effect there; constraints are
    # passed on to it.
    has_constraints = is_upstream or bool(entry.engine.capabilities.constraints)
    return {
        "batch": _support(False),
        "citations": _support(False),
        "code_execution": _support(False),
        "context_management": _group(dict.fromkeys(_CONTEXT_EDITS, not is_upstream)),
        "effort": _effort(entry),
        "image_input": _support("image" in entry.input_modalities),
        "pdf_input": _support(True),  # the server extracts the text
        "server_tools": _group(
            {"code_execution": False, "web_search": "web_search" in server_tools}
        ),
        "structured_outputs": _support(has_constraints),
        "thinking": _thinking(entry),
    }


def _effort(entry: ModelEntry) -> Json:
    """Return the levels of the template. Those of an upstream are not known."""
    levels: tuple[str, ...] = ()
    if isinstance(entry, TokenModel) and entry.model.reasoning_parser is not None:
        levels = entry.model.profile.efforts
    return _group({level: level in levels for level in _LEVELS})


def _thinking(entry: ModelEntry) -> Json:
    """Return the values of `thinking.type` that are accepted."""
    reasons = isinstance(entry, UpstreamModel) or entry.model.reasoning_parser is not None
    types = {"adaptive": reasons, "between_tools": False, "disabled": True, "enabled": reasons}
    return {
        **_support(reasons),
        "types": {name: _support(accepted) for name, accepted in types.items()},
    }


def _group(parts: dict[str, bool]) -> Json:
    """Return a capability with parts, which is supported if one of them is."""
    return {
        **_support(any(parts.values())),
        **{name: _support(supported) for name, supported in parts.items()},
    }


def _support(supported: bool) -> Json:
    return {"supported": supported}
