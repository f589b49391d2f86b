"""A profile out of the catalog that the user's own Codex brings along, and its alias.

Nothing of it is ours to ship: it is read from the installed program when it is needed.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping
from math import inf
from typing import Any

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
