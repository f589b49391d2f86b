"""Find the first difference between the requests of two runs that should be equal.

The first requests of both runs should be equal, and every later one as long as the model's output
before it was. What differs in every run is replaced first: ids, dates, durations and the paths of
the run.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dovetail.compare.records import RequestDifference

_EXCERPT_CHARS = 160
_CONTEXT_CHARS = 40
#: Fields that identify a session or a turn, that seal one, or that the profiles set themselves.
_IGNORED_FIELDS = frozenset(
    {
        *("id", "call_id", "tool_use_id", "tool_call_id", "metadata", "client_metadata", "user"),
        *("prompt_cache_key", "signature", "encrypted_content", "session_id", "seed"),
    }
)
_IGNORED_AT_TOP = frozenset({"model"})
_REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b(?:call|fc|ctc|msg|rs|resp|toolu|chatcmpl)_[0-9A-Za-z_-]{6,}"), "<id>"),
    (re.compile(r"(?<=Chunk ID: )[0-9a-f]+"), "<id>"),  # Codex
    (re.compile(r"(?<=session ID )\d+"), "<id>"),  # Codex
    (re.compile(r"(?<=/tool-results/)\w+(?=\.txt)"), "<id>"),  # Claude Code
    (re.compile(r"(?<=/tool-output/tool_)\w+"), "<id>"),  # OpenCode
    (re.compile(r"(?<=/pi-bash-)[0-9a-f]+"), "<id>"),  # Pi
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d[\d:.]*(?:Z|[+-]\d\d:?\d\d)?)?"), "<date>"),
    (re.compile(r"(?<=Wall time: )[\d.]+(?= seconds)"), "<time>"),
)  # fmt: skip


class SessionRequest(msgspec.Struct, frozen=True):
    """A request and the model's output for it, normalized: what is random is replaced."""

    body: Any
    output: Any


def name_scratch_folder(folder: Path) -> dict[str, str]:
    """Return the names of the scratch folder of a run in requests, and what replaces them.

    Claude Code also writes the path as the name of a folder, with a dash for other characters.
    """
    path = str(folder)
    return {path: "<scratch>", re.sub(r"[^A-Za-z0-9]", "-", path): "<scratch-name>"}


def normalize(value: Any, paths: Mapping[str, str], *, top: bool = True) -> Any:
    """Replace what differs in every run. `paths` are the folders of the run and their names."""
    match value:
        case dict():
            ignored = _IGNORED_FIELDS | _IGNORED_AT_TOP if top else _IGNORED_FIELDS
            return {
                key: normalize(one, paths, top=False)
                for key, one in value.items()
                if key not in ignored
            }
        case list():
            return [normalize(one, paths, top=False) for one in value]
        case str():
            return _normalize_text(value, paths)
        case _:
            return value


def find_difference(
    a: Sequence[SessionRequest], b: Sequence[SessionRequest]
) -> RequestDifference | None:
    """Return the first difference between requests that should be equal."""
    for number, (one, other) in enumerate(zip(a, b, strict=False)):
        found = _compare(one.body, other.body, "")
        if found is not None:
            path, left, right = found
            return RequestDifference(number, path, *_excerpts(left, right))
        if one.output != other.output:
            return None
    return None


def _normalize_text(text: str, paths: Mapping[str, str]) -> str:
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, paths[path])
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text


_MISSING = object()


def _compare(a: Any, b: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the path of the first difference and the two values."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in (*a, *(key for key in b if key not in a)):
            inner = f"{path}.{key}" if path else key
            found = _compare(a.get(key, _MISSING), b.get(key, _MISSING), inner)
            if found is not None:
                return found
        return None
    if isinstance(a, list) and isinstance(b, list):
        for index in range(max(len(a), len(b))):
            left = a[index] if index < len(a) else _MISSING
            right = b[index] if index < len(b) else _MISSING
            found = _compare(left, right, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    return None if a == b else (path, a, b)


def _excerpts(a: Any, b: Any) -> tuple[str | None, str | None]:
    """Return the values as text, long ones from shortly before the place where they differ."""
    left, right = (
        None if one is _MISSING else one if isinstance(one, str) else _encode(one) for one in (a, b)
    )
    if left is None or right is None:
        return _shorten(left, 0), _shorten(right, 0)
    common = next(
        (at for at, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    start = max(0, common - _CONTEXT_CHARS)
    return _shorten(left, start), _shorten(right, start)


def _shorten(text: str | None, start: int) -> str | None:
    if text is None:
        return None
    part = text[start : start + _EXCERPT_CHARS]
    return f"{'…' if start else ''}{part}{'…' if start + _EXCERPT_CHARS < len(text) else ''}"


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
