"""The model catalog for Codex: entries of the served models, and profiles of the installed Codex.

Dovetail does not ship Codex's profiles: it reads them from the installed program when needed.
"""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import inf
from typing import Any

import msgspec

from dovetail.pipeline.registry import ModelEntry, ModelRegistry, TokenModel, UpstreamModel
from dovetail.prompt.template import RenderError
from dovetail_model import Thinking

Json = dict[str, Any]

CODEX_PROGRAM = "codex"
_CATALOG_ARGUMENTS = ("debug", "models", "--bundled")
_TIMEOUT_SECONDS = 30.0

#: Fields that describe the model itself. A profile does not override them.
_MODEL_FIELDS = (
    "slug",
    "display_name",
    "description",
    "visibility",
    "supported_in_api",
    "priority",
    "context_window",
    "max_context_window",
    "auto_compact_token_limit",
    "effective_context_window_percent",
    "truncation_policy",
    "input_modalities",
    "supports_parallel_tool_calls",
)
#: Neutral values for fields of a profile that describe OpenAI's service: prices, offers, formats.
_SERVICE_FIELDS: Json = {
    "additional_speed_tiers": [],
    "service_tiers": [],
    "default_service_tier": None,
    "availability_nux": None,
    "upgrade": None,
    "comp_hash": None,
    "use_responses_lite": False,
}


class CodexProfileError(ValueError):
    """A profile is not available. The message states the reason."""


def read_profile(slug: str) -> Json:
    """Read the entry of a slug in the bundled catalog of the installed Codex."""
    entries = {entry["slug"]: entry for entry in _read_bundled_catalog()}
    if slug not in entries:
        known = ", ".join(entries)
        raise CodexProfileError(
            f"the installed codex has no profile {slug!r}; available profiles: {known}"
        )
    return entries[slug]


def apply_profile(entry: Mapping[str, Any], profile: Mapping[str, Any]) -> Json:
    """Return an entry with the instructions and tools of a profile and the limits of our model.

    Tool output gets the budget of the profile unless the context window is too small for it.
    """
    model_fields = {name: entry[name] for name in _MODEL_FIELDS if name in entry}
    if "truncation_policy" in profile:
        budgets = (entry["truncation_policy"], profile["truncation_policy"])
        model_fields["truncation_policy"] = min(budgets, key=_budget_tokens)
    service_fields = {name: value for name, value in _SERVICE_FIELDS.items() if name in profile}
    return {**profile, **service_fields, **model_fields}


def _budget_tokens(policy: object) -> float:
    """Return the size of a budget in tokens, at four bytes per token as Codex assumes.

    An unknown format counts as unlimited, so that our own budget is used.
    """
    match policy:
        case {"mode": "tokens", "limit": int(limit)}:
            return limit
        case {"mode": "bytes", "limit": int(limit)}:
            return limit / 4
        case _:
            return inf


def _read_bundled_catalog() -> list[Json]:
    program = shutil.which(CODEX_PROGRAM)
    if program is None:
        raise CodexProfileError(
            "codex is not installed; its profile is read from the program. "
            "Install it with: npm install -g @openai/codex"
        )
    output = _run_codex(program)
    try:
        entries = json.loads(output)["models"]
        if not all(isinstance(entry["slug"], str) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise CodexProfileError(f"`{_command()}` printed no model catalog; update codex") from error
    return list(entries)


def _run_codex(program: str) -> str:
    try:
        process = subprocess.run(
            [program, *_CATALOG_ARGUMENTS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CodexProfileError(f"cannot run `{_command()}`: {error}") from error
    if process.returncode != 0:
        raise CodexProfileError(
            f"`{_command()}` failed; codex may be outdated: {_error_line(process.stderr)}"
        )
    return process.stdout


def _error_line(stderr: str) -> str:
    """Return the line of the output that contains the error; a usage message may follow it."""
    lines = [line for line in stderr.splitlines() if line.strip()] or ["no error output"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def _command() -> str:
    return " ".join((CODEX_PROGRAM, *_CATALOG_ARGUMENTS))


#: Codex shows the description of each level in its model picker.
LEVEL_DESCRIPTIONS = {
    "none": "No reasoning",
    "minimal": "Minimal reasoning",
    "low": "Short reasoning",
    "medium": "Balances speed and reasoning depth",
    "high": "Longer reasoning for harder problems",
    "xhigh": "Much longer reasoning for the hardest problems",
    "max": "The longest possible reasoning",
}
_DEFAULT_LEVEL = "medium"


def supported_levels(entry: TokenModel) -> tuple[str, ...]:
    """Return the reasoning levels that change the prompt; empty if the template has no switch.

    A template that can only turn thinking on and off has two levels: `none` and the default.
    """
    profile = entry.model.profile
    if entry.model.reasoning_parser is None:
        return ()
    levels = [level for level in profile.efforts if level != "none"]
    if not profile.thinking_switches:
        return profile.efforts
    return ("none", *(levels or [_DEFAULT_LEVEL]))


def default_level(entry: TokenModel, supported: tuple[str, ...]) -> str | None:
    """Return the level that renders the same prompt as a request without a level.

    Codex sends a level with every request, and any other level would override the default of the
    operator or of the template's author.
    """
    if not supported:
        return None
    default_prompt = _render_probe(entry, Thinking())
    for level in supported:
        thinking = Thinking(enabled=level != "none", effort=level)
        if default_prompt is not None and _render_probe(entry, thinking) == default_prompt:
            return level
    return _DEFAULT_LEVEL if _DEFAULT_LEVEL in supported else supported[len(supported) // 2]


def _render_probe(entry: TokenModel, thinking: Thinking) -> str | None:
    """Render a short prompt with these thinking options; None if the template rejects them."""
    model = entry.model
    text = "x" if model.profile.content == "string" else [{"type": "text", "text": "x"}]
    switches = entry.preparer.template_switches(thinking)
    try:
        return model.template.render([{"role": "user", "content": text}], switches=switches)
    except RenderError:
        return None


MAX_TOOL_OUTPUT_TOKENS = 10_000  # of one tool call, as for Codex's own models
MIN_TOOL_OUTPUT_TOKENS = 1_000
MAX_RESERVED_TOKENS = 20_000  # for a response and the results of its tool calls


def build_entry(name: str, entry: ModelEntry, priority: int = 1) -> Json:
    """Build the entry of a model under one of its names. Codex lists the lowest priority first.

    Older versions read `supports_reasoning_summaries` and `supports_parallel_tool_calls`.
    """
    reasoning_fields = _reasoning_fields(entry)
    return {
        "slug": name,
        "display_name": name,
        "description": "Served by Dovetail",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        **_context_fields(entry.context_length),
        **reasoning_fields,
        "supports_reasoning_summaries": reasoning_fields["supports_reasoning_summary_parameter"],
        "supports_parallel_tool_calls": _supports_parallel_tool_calls(entry),
        "input_modalities": list(entry.input_modalities),
        "shell_type": "default",
        "apply_patch_tool_type": "freeform" if _supports_tool_calls(entry) else None,
        "support_verbosity": False,  # no template reads it
        "supports_search_tool": True,
        "experimental_supported_tools": [],
        "base_instructions": load_instructions(),
    }


@cache
def load_instructions() -> str:
    """Return our instructions for a coding agent: the same for all models, to share prefixes."""
    return files(__package__).joinpath("codex_instructions.md").read_text("utf-8")


def _context_fields(length: int) -> Json:
    """Return limits in proportion to the context window.

    They reserve space for a response, because a summary is better than a truncated response. Codex
    assumes four bytes per token, so tool output full of digits may need four times its budget.
    """
    reserved = min(MAX_RESERVED_TOKENS, length // 3)
    output = max(MIN_TOOL_OUTPUT_TOKENS, min(MAX_TOOL_OUTPUT_TOKENS, length // 16))
    return {
        "context_window": length,
        "max_context_window": length,
        "auto_compact_token_limit": length - reserved,
        "effective_context_window_percent": 95,
        "truncation_policy": {"mode": "tokens", "limit": output},
    }


def _reasoning_fields(entry: ModelEntry) -> Json:
    """Return the fields on reasoning. Upstream models are assumed to be able to reason."""
    has_reasoning = isinstance(entry, UpstreamModel) or entry.model.reasoning_parser is not None
    levels = supported_levels(entry) if isinstance(entry, TokenModel) else ()
    default = default_level(entry, levels) if isinstance(entry, TokenModel) else None
    return {
        "default_reasoning_level": default,
        "supported_reasoning_levels": [
            {"effort": level, "description": LEVEL_DESCRIPTIONS[level]} for level in levels
        ],
        # Codex shows reasoning only if its requests contain a summary parameter.
        "supports_reasoning_summary_parameter": has_reasoning,
        "default_reasoning_summary": "auto" if has_reasoning else "none",
    }


def _supports_tool_calls(entry: ModelEntry) -> bool:
    return isinstance(entry, UpstreamModel) or entry.model.tool_parser is not None


def _supports_parallel_tool_calls(entry: ModelEntry) -> bool:
    return isinstance(entry, UpstreamModel) or (
        _supports_tool_calls(entry) and entry.model.profile.many_calls
    )


Profile = Mapping[str, Any]
Profiles = Mapping[str, Profile]
"""Entries of Codex's own catalog, by their slugs."""


def read_profiles(slugs: Iterable[str | None]) -> Profiles:
    """Read the entries of these slugs from the installed Codex, if there are any."""
    return {slug: read_profile(slug) for slug in dict.fromkeys(slugs) if slug is not None}


def build_catalog(
    named_models: Iterable[tuple[str, ModelEntry]], profiles: Profiles | None = None
) -> Json:
    """Build the catalog of the named models, in the format of the file that Codex reads.

    `profiles` contains the profiles that models are configured with.
    """
    entries = []
    for priority, (name, model) in enumerate(named_models, 1):
        entry = build_entry(name, model, priority)
        profile = (profiles or {}).get(model.codex_profile or "")
        entries.append(apply_profile(entry, profile) if profile else entry)
    return {"models": entries}


@dataclass(frozen=True)
class PublishedCatalog:
    """A version of the catalog with an ETag derived from the content of its entries.

    Replicas of one server therefore have the same ETag. It is weak, so proxies that compress the
    response do not change it.
    """

    models: list[Json]
    etag: str


class CodexCatalog:
    """The catalog of a registry. It changes with what engines report about their models."""

    __slots__ = ("_named", "_profiles", "_published", "_reported")

    def __init__(self, service: ModelRegistry, profiles: Profiles | None = None) -> None:
        self._named = tuple(service.iter_entries())
        self._profiles = profiles
        self._reported: list[tuple[int, tuple[str, ...]]] | None = None
        self._published = PublishedCatalog([], "")

    def current(self) -> PublishedCatalog:
        """Return the current catalog. It is cached because every response to Codex needs it."""
        reported = [(entry.context_length, entry.input_modalities) for _, entry in self._named]
        if reported != self._reported:
            self._reported = reported
            models = build_catalog(self._named, self._profiles)["models"]
            digest = hashlib.blake2b(msgspec.json.encode(models), digest_size=12).hexdigest()
            self._published = PublishedCatalog(models, f'W/"{digest}"')
        return self._published
