"""The version of an installed client, and what that version needs."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

Version = tuple[int, ...]

_NUMBER = re.compile(r"\d+(?:\.\d+)+")
_TIMEOUT_SECONDS = 15.0


@dataclass(frozen=True)
class ClientNeeds:
    """What a client needs from a model, measured with the version `since` and valid from it on.

    `prompt_tokens`: its own prompt in a terminal, instructions and tools.
    `min_context_tokens`: the smallest context length that leaves space to work.
    `assumed_context`: the context length that it assumes for a model that it does not know.
    """

    since: Version
    prompt_tokens: int
    min_context_tokens: int
    assumed_context: int | None = None


def find_version(executable: str) -> Version | None:
    """Run a client to find its version. Returns None if it does not report one."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(done.stdout) if done.returncode == 0 else None


def parse_version(text: str) -> Version | None:
    """Return the first version number of a text, such as `2.1.325 (Claude Code)`."""
    found = _NUMBER.search(text)
    return tuple(map(int, found[0].split("."))) if found else None


def select_needs(needs: Sequence[ClientNeeds], version: Version | None) -> ClientNeeds:
    """Return the needs of a version. An unknown version has the largest.

    A version older than all measured ones has those of the oldest; one between two measured
    versions has those of the older one.
    """
    if version is None:
        return max(needs, key=lambda one: one.min_context_tokens)
    known = [one for one in needs if one.since <= version]
    return max(known or [min(needs, key=_since)], key=_since)


def format_version(version: Version) -> str:
    """Return a version as clients print it."""
    return ".".join(map(str, version))


def _since(needs: ClientNeeds) -> Version:
    return needs.since
