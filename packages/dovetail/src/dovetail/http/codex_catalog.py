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

PROGRAM = "codex"
_ASK = ("debug", "models", "--bundled")
_PATIENCE = 30.0  # seconds

#: What an entry says of the model itself, whichever profile it is shown under.
_OF_MODEL = (
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
_OF_SERVICE: Json = {
    "additional_speed_tiers": [],
    "service_tiers": [],
    "default_service_tier": None,
    "availability_nux": None,
    "upgrade": None,
    "comp_hash": None,
    "supports_search_tool": False,
    "use_responses_lite": False,
}


class ProfileError(ValueError):
    """A profile that cannot be had, and why."""


def read_profile(slug: str) -> Json:
    """The entry of a slug in the bundled catalog of the installed Codex."""
    entries = {entry["slug"]: entry for entry in _bundled()}
    if slug not in entries:
        known = ", ".join(entries)
        raise ProfileError(f"the installed codex has no profile {slug!r}; it has {known}")
    return entries[slug]


def aliased(entry: Mapping[str, Any], profile: Mapping[str, Any]) -> Json:
    """A model's entry under a profile: its instructions, tools and ways, with our limits.

    Tool output has the profile's budget unless the window is too small for it.
    """
    own = {name: entry[name] for name in _OF_MODEL if name in entry}
    if "truncation_policy" in profile:
        budgets = (entry["truncation_policy"], profile["truncation_policy"])
        own["truncation_policy"] = min(budgets, key=_tokens)
    silent = {name: value for name, value in _OF_SERVICE.items() if name in profile}
    return {**profile, **silent, **own}


def _tokens(policy: object) -> float:
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


def _bundled() -> list[Json]:
    program = shutil.which(PROGRAM)
    if program is None:
        raise ProfileError(
            "a codex profile is read from codex itself, which is not installed here: "
            "npm install -g @openai/codex"
        )
    told = _run(program)
    try:
        entries = json.loads(told)["models"]
        if not all(isinstance(entry["slug"], str) for entry in entries):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"`{_command()}` printed no catalog: is codex up to date?") from error
    return list(entries)


def _run(program: str) -> str:
    try:
        done = subprocess.run(
            [program, *_ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProfileError(f"`{_command()}` could not be run: {error}") from error
    if done.returncode != 0:
        raise ProfileError(f"`{_command()}` failed (is codex up to date?): {_reason(done.stderr)}")
    return done.stdout


def _reason(told: str) -> str:
    """The line of a program's complaint that names the error; usage may follow it."""
    lines = [line for line in told.splitlines() if line.strip()] or ["it says nothing"]
    return next((line for line in lines if "error" in line.lower()), lines[-1])


def _command() -> str:
    return " ".join((PROGRAM, *_ASK))
