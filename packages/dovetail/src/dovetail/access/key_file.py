"""The key file: a line per key, with its digest and what its owner may do.

team-a:9f86d081…    requests=60 tokens=100000 concurrent=8
team-a:60303ae2…    expires=2027-01-31   # the next key of the same tenant
operator:fd61a03a…  requests=none admin

Options that a line omits have the values that the settings give for all keys.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dovetail.access.limits import NO_LIMITS, RateLimits

MAX_KEYS = 10_000
MAX_FILE_BYTES = 4 << 20
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_TENANT = re.compile(r"[^\s:\x00-\x1f\x7f]{1,128}")
_COUNT = re.compile(r"[1-9][0-9]{0,14}")
_LIMITS = ("requests", "tokens", "concurrent")
_FORM = "not of the form tenant:sha256 (a tenant has no spaces, colons or #)"


class KeyFileError(ValueError):
    """An invalid key file. The message names the line, never its content."""


class EmptyKeyFileError(KeyFileError):
    """A key file without any key."""


@dataclass(frozen=True)
class ApiKey:
    """An API key, known only by its digest.

    expires: Seconds since the epoch.
    admin: May see data of all tenants.
    """

    tenant: str
    digest: bytes
    limits: RateLimits = NO_LIMITS
    expires: float | None = None
    admin: bool = False


def read_keys(path: Path, limits: RateLimits = NO_LIMITS) -> list[ApiKey]:
    """Read the keys of a file. Those without limits of their own get `limits`."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise KeyFileError(f"{path}: a file of keys has {MAX_FILE_BYTES >> 20} MiB at most")
    try:
        return list(parse_keys(text, limits))
    except KeyFileError as error:
        raise type(error)(f"{path}{error}") from None


def parse_keys(text: bytes, limits: RateLimits = NO_LIMITS) -> Iterator[ApiKey]:
    """Parse the text of a key file. Error messages begin with the position in the file."""
    try:
        lines = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise KeyFileError(": not UTF-8") from None
    seen: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            key = _parse_key(words, limits)
        except ValueError as error:
            raise KeyFileError(f", line {number}: {error}") from None
        if key.digest in seen:
            raise KeyFileError(f", line {number}: the same key as in line {seen[key.digest]}")
        if len(seen) == MAX_KEYS:
            raise KeyFileError(f": more than {MAX_KEYS} keys")
        seen[key.digest] = number
        yield key
    if not seen:
        raise EmptyKeyFileError(": there is no key in it")


def _parse_key(words: list[str], limits: RateLimits) -> ApiKey:
    tenant, _, digest = words[0].rpartition(":")
    if not (_TENANT.fullmatch(tenant) and _DIGEST.fullmatch(digest)):
        raise ValueError(_FORM)
    key = ApiKey(tenant, bytes.fromhex(digest), limits)
    seen_names: set[str] = set()
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name in seen_names:
            raise ValueError(f"{name} is said twice")
        seen_names.add(name)
        key = _apply_option(key, name, value, word)
    return key


def _apply_option(key: ApiKey, name: str, value: str, word: str) -> ApiKey:
    """Apply one more option of a line. An unknown one is not shown: it may be a key."""
    if name in _LIMITS:
        if value != "none" and not _COUNT.fullmatch(value):
            raise ValueError(f"{name}= wants a number from 1, or none")
        count = None if value == "none" else int(value)
        return replace(key, limits=replace(key.limits, **{name: count}))
    if name == "expires":
        return replace(key, expires=_parse_time(value))
    if word == "admin":
        return replace(key, admin=True)
    raise ValueError("behind the hash: requests=, tokens=, concurrent=, expires= or admin")


def _parse_time(text: str) -> float:
    """Parse a day, which counts to its end, or a time, in UTC by default."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expires= wants a day, as 2027-01-31, or a time") from None
    if not 1970 < time.year < 9999:
        raise ValueError("expires= wants a year between 1970 and 9999")
    if len(text) <= len("2027-01-31"):
        time += timedelta(days=1)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
