"""A profile out of the catalog that the user's own Codex brings along, and its alias.

Nothing of it is ours to ship: it is read from the installed program when it is needed.
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
_TIMEOUT_SECONDS = 30.0  # seconds

#: What an entry says of the model itself, whichever profile it is shown under.
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
#: What a profile says of its own service: prices, offers, and forms that only that service has.
_SERVICE_FIELDS: Json = {
    "additional_speed_tiers": [],
    "service_tiers": [],
    "default_service_tier": None,
    "availability_nux": None,
    "upgrade": None,
    "comp_hash": None,
    "supports_search_tool": False,
    "use_responses_lite": False,
}


class CodexProfileError(ValueError):
    """A profile that cannot be had, and why."""


def read_profile(slug: str) -> Json:
    """The entry of a slug in the bundled catalog of the installed Codex."""
    entries = {entry["slug"]: entry for entry in _read_bundled_catalog()}
    if slug not in entries:
        known = ", ".join(entries)
        raise CodexProfileError(f"the installed codex has no profile {slug!r}; it has {known}")
    return entries[slug]


def apply_profile(entry: Mapping[str, Any], profile: Mapping[str, Any]) -> Json:
    """A model's entry under a profile: its instructions, tools and ways, with our limits.

    Tool output has the profile's budget unless the window is too small for it.
    """
    own = {name: entry[name] for name in _MODEL_FIELDS if name in entry}
    if "truncation_policy" in profile:
        budgets = (entry["truncation_policy"], profile["truncation_policy"])
        own["truncation_policy"] = min(budgets, key=_budget_tokens)
    silent = {name: value for name, value in _SERVICE_FIELDS.items() if name in profile}
    return {**profile, **silent, **own}


def _budget_tokens(policy: object) -> float:
    """The size of a budget, at the four bytes a token that Codex reckons with.

    One in a form that is not known yet counts as none: ours is smaller then.
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
            "a codex profile is read from codex itself, which is not installed here: "
            "npm install -g @openai/codex"
        )
    told = _run_codex(program)
    try:
        entries = json.loads(told)["models"]
        if not all(isinstance(entry["slug"], str) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise CodexProfileError(
            f"`{_command()}` printed no catalog: is codex up to date?"
        ) from error
    return list(entries)


def _run_codex(program: str) -> str:
    try:
        done = subprocess.run(
            [program, *_CATALOG_ARGUMENTS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CodexProfileError(f"`{_command()}` could not be run: {error}") from error
    if done.returncode != 0:
        raise CodexProfileError(
            f"`{_command()}` failed (is codex up to date?): {_error_line(done.stderr)}"
        )
    return done.stdout


def _error_line(stderr: str) -> str:
    """The line of a program's complaint that names the error; usage may follow it."""
    lines = [line for line in stderr.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def _command() -> str:
    return " ".join((CODEX_PROGRAM, *_CATALOG_ARGUMENTS))


#: What a user reads beside each level when choosing one.
LEVEL_DESCRIPTIONS = {
    "none": "Answers without thinking",
    "minimal": "Hardly thinks",
    "low": "Thinks briefly",
    "medium": "Thinks as long as the task seems to need",
    "high": "Thinks longer, for harder problems",
    "xhigh": "Thinks much longer, for the hardest problems",
    "max": "Thinks as long as it can",
}
_DEFAULT_LEVEL = "medium"


def supported_levels(served: TokenModel) -> tuple[str, ...]:
    """The levels that make a difference; none where the template leaves no choice.

    A template that only turns thinking on and off has two: `none` and the usual one.
    """
    facts = served.model.profile
    if served.model.reasoning_parser is None:
        return ()
    harder = [level for level in facts.efforts if level != "none"]
    if not facts.thinking_switches:
        return facts.efforts
    return ("none", *(harder or [_DEFAULT_LEVEL]))


def default_level(served: TokenModel, supported: tuple[str, ...]) -> str | None:
    """The level that a request which says nothing has already: Codex names one in every request.

    Naming another would overrule what the operator or the template's author chose.
    """
    if not supported:
        return None
    silent = _render_probe(served, Thinking())
    for level in supported:
        asked = Thinking(enabled=level != "none", effort=level)
        if silent is not None and _render_probe(served, asked) == silent:
            return level
    return _DEFAULT_LEVEL if _DEFAULT_LEVEL in supported else supported[len(supported) // 2]


def _render_probe(served: TokenModel, thinking: Thinking) -> str | None:
    """A short prompt under what is asked about thoughts; None if the template refuses it."""
    model = served.model
    text = "x" if model.profile.content == "string" else [{"type": "text", "text": "x"}]
    switches = served.preparer.template_switches(thinking)
    try:
        return model.template.render([{"role": "user", "content": text}], switches=switches)
    except RenderError:
        return None


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
        _supports_tool_calls(offered) and offered.model.profile.many_calls
    )


Profile = Mapping[str, Any]


def build_catalog(named: Iterable[tuple[str, ModelEntry]], profile: Profile | None = None) -> Json:
    """The catalog of models under their names, as the file that Codex takes has it."""
    entries = [build_entry(name, one, place) for place, (name, one) in enumerate(named, 1)]
    return {"models": [apply_profile(one, profile) if profile else one for one in entries]}


@dataclass(frozen=True)
class PublishedCatalog:
    """A state of the catalog. The tag is weak: it stands for what the entries say.

    Replicas of one server have the same tag, and a proxy that compresses leaves it as it is.
    """

    models: list[Json]
    etag: str


class CodexCatalog:
    """The catalog of a service. It changes with the windows, which engines tell when they start."""

    __slots__ = ("_context_lengths", "_named", "_profile", "_published")

    def __init__(self, service: ModelRegistry, profile: Profile | None = None) -> None:
        self._named = tuple(service.iter_entries())
        self._profile = profile
        self._context_lengths: list[int] | None = None
        self._published = PublishedCatalog([], "")

    def current(self) -> PublishedCatalog:
        """The catalog as it is now. Cheap: it is asked for with every answer to Codex."""
        windows = [one.context_length for _, one in self._named]
        if windows != self._context_lengths:
            self._context_lengths = windows
            models = build_catalog(self._named, self._profile)["models"]
            digest = hashlib.blake2b(msgspec.json.encode(models), digest_size=12).hexdigest()
            self._published = PublishedCatalog(models, f'W/"{digest}"')
        return self._published
