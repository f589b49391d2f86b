"""One entry of the catalog, from what is known of a served model."""

from functools import cache
from importlib.resources import files
from typing import Any

from dovetail.http.levels import LEVEL_DESCRIPTIONS, default_level, supported_levels
from dovetail.pipeline.registry import ModelEntry, TokenModel, UpstreamModel

Json = dict[str, Any]

MAX_TOOL_OUTPUT_TOKENS = 10_000  # tokens of one tool's output: what Codex gives its own models
MIN_TOOL_OUTPUT_TOKENS = 1_000
MAX_RESERVED_TOKENS = 20_000  # tokens that are kept for an answer and for the results of its calls


def build_entry(name: str, model: ModelEntry, priority: int = 1) -> Json:
    """What Codex should know of a model under one of its names. The lowest priority is first.

    `supports_reasoning_summaries` and `supports_parallel_tool_calls` are read by older versions.
    """
    thoughts = _reasoning_fields(model)
    return {
        "slug": name,
        "display_name": name,
        "description": "Served by Dovetail",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        **_context_fields(model.context_length),
        **thoughts,
        "supports_reasoning_summaries": thoughts["supports_reasoning_summary_parameter"],
        "supports_parallel_tool_calls": _supports_parallel_tool_calls(model),
        "input_modalities": ["text", "image"] if isinstance(model, UpstreamModel) else ["text"],
        "shell_type": "default",
        "apply_patch_tool_type": "freeform" if _supports_tool_calls(model) else None,
        "support_verbosity": False,  # no template reads it
        "supports_search_tool": False,
        "experimental_supported_tools": [],
        "base_instructions": load_instructions(),
    }


@cache
def load_instructions() -> str:
    """Our own words to a coding agent. They do not depend on the model: prefixes stay shared."""
    return files(__package__).joinpath("codex_instructions.md").read_text("utf-8")


def _context_fields(length: int) -> Json:
    """Limits in proportion to the window. An answer that finds no room is worse than a summary.

    Codex reckons four bytes a token: an output full of figures may be four times its budget.
    """
    room = min(MAX_RESERVED_TOKENS, length // 3)
    output = max(MIN_TOOL_OUTPUT_TOKENS, min(MAX_TOOL_OUTPUT_TOKENS, length // 16))
    return {
        "context_window": length,
        "max_context_window": length,
        "auto_compact_token_limit": length - room,
        "effective_context_window_percent": 95,
        "truncation_policy": {"mode": "tokens", "limit": output},
    }


def _reasoning_fields(offered: ModelEntry) -> Json:
    """Levels and summaries. Of an upstream's thoughts nothing is known: it may have some."""
    thinks = isinstance(offered, UpstreamModel) or offered.model.reasoning_parser is not None
    taken = supported_levels(offered) if isinstance(offered, TokenModel) else ()
    usual = default_level(offered, taken) if isinstance(offered, TokenModel) else None
    return {
        "default_reasoning_level": usual,
        "supported_reasoning_levels": [
            {"effort": level, "description": LEVEL_DESCRIPTIONS[level]} for level in taken
        ],
        # Codex shows thoughts only to users whose requests ask for a summary.
        "supports_reasoning_summary_parameter": thinks,
        "default_reasoning_summary": "auto" if thinks else "none",
    }


def _supports_tool_calls(offered: ModelEntry) -> bool:
    return isinstance(offered, UpstreamModel) or offered.model.tool_parser is not None


def _supports_parallel_tool_calls(offered: ModelEntry) -> bool:
    return isinstance(offered, UpstreamModel) or (
        _supports_tool_calls(offered) and offered.model.facts.many_calls
    )
