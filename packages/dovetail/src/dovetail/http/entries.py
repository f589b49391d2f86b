"""One entry of the catalog, from what is known of a served model."""

from functools import cache
from importlib.resources import files
from typing import Any

from dovetail.http.levels import DESCRIPTIONS, default_level, levels
from dovetail.pipeline.registry import ModelEntry, UpstreamModel, TokenModel

Json = dict[str, Any]

MOST_OUTPUT = 10_000  # tokens of one tool's output: what Codex gives its own models
LEAST_OUTPUT = 1_000
MOST_ROOM = 20_000  # tokens that are kept for an answer and for the results of its calls


def entry(name: str, offered: ModelEntry, priority: int = 1) -> Json:
    """What Codex should know of a model under one of its names. The lowest priority is first.

    `supports_reasoning_summaries` and `supports_parallel_tool_calls` are read by older versions.
    """
    thoughts = _thoughts(offered)
    return {
        "slug": name,
        "display_name": name,
        "description": "Served by Dovetail",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        **_window(offered.context_length),
        **thoughts,
        "supports_reasoning_summaries": thoughts["supports_reasoning_summary_parameter"],
        "supports_parallel_tool_calls": _calls_in_parallel(offered),
        "input_modalities": ["text", "image"] if isinstance(offered, UpstreamModel) else ["text"],
        "shell_type": "default",
        "apply_patch_tool_type": "freeform" if _calls(offered) else None,
        "support_verbosity": False,  # no template reads it
        "supports_search_tool": False,
        "experimental_supported_tools": [],
        "base_instructions": instructions(),
    }


@cache
def instructions() -> str:
    """Our own words to a coding agent. They do not depend on the model: prefixes stay shared."""
    return files(__package__).joinpath("codex_instructions.md").read_text("utf-8")


def _window(length: int) -> Json:
    """Limits in proportion to the window. An answer that finds no room is worse than a summary.

    Codex reckons four bytes a token: an output full of figures may be four times its budget.
    """
    room = min(MOST_ROOM, length // 3)
    output = max(LEAST_OUTPUT, min(MOST_OUTPUT, length // 16))
    return {
        "context_window": length,
        "max_context_window": length,
        "auto_compact_token_limit": length - room,
        "effective_context_window_percent": 95,
        "truncation_policy": {"mode": "tokens", "limit": output},
    }


def _thoughts(offered: ModelEntry) -> Json:
    """Levels and summaries. Of an upstream's thoughts nothing is known: it may have some."""
    thinks = isinstance(offered, UpstreamModel) or offered.model.reasoning_parser is not None
    taken = levels(offered) if isinstance(offered, TokenModel) else ()
    usual = default_level(offered, taken) if isinstance(offered, TokenModel) else None
    return {
        "default_reasoning_level": usual,
        "supported_reasoning_levels": [
            {"effort": level, "description": DESCRIPTIONS[level]} for level in taken
        ],
        # Codex shows thoughts only to users whose requests ask for a summary.
        "supports_reasoning_summary_parameter": thinks,
        "default_reasoning_summary": "auto" if thinks else "none",
    }


def _calls(offered: ModelEntry) -> bool:
    return isinstance(offered, UpstreamModel) or offered.model.tool_parser is not None


def _calls_in_parallel(offered: ModelEntry) -> bool:
    return isinstance(offered, UpstreamModel) or (_calls(offered) and offered.model.facts.many_calls)
