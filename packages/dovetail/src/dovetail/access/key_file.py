"""The key file: one line per key, with its tenant, its digest and its options.

team-a:9f86d081…    requests=60 tokens=100000 concurrent=8
team-a:60303ae2…    expires=2027-01-31   # the next key of the same tenant
operator:fd61a03a…  requests=none admin group=engineering

Options that a line omits have the values that the settings define for all keys.
"""

import re
import stat
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
_FORM = (
    "expected tenant:sha256: a tenant name without spaces, colons and #, "
    "and a hash of 64 hexadecimal digits"
)


class KeyFileError(ValueError):
    """An invalid key file. The message contains the line number, never the line's content."""


class EmptyKeyFileError(KeyFileError):
    """A key file without any key."""


@dataclass(frozen=True)
class ApiKey:
    """An API key, of which only the digest is stored.

    expires: Expiry in seconds since the epoch; None if the key does not expire.
    admin: Whether the key gives access to data of all tenants.
    group: Tenants that may share an engine's prefix cache, with `--prefix-sharing group`.
    """

    tenant: str
    digest: bytes
    limits: RateLimits = NO_LIMITS
    expires: float | None = None
    admin: bool = False
    group: str = ""


def read_keys(path: Path, limits: RateLimits = NO_LIMITS) -> list[ApiKey]:
    """Read the keys of a file. Keys without limits of their own get `limits`."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise KeyFileError(f"{path}: the key file is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return list(parse_keys(text, limits))
    except KeyFileError as error:
        raise type(error)(f"{path}{error}") from None


def writable_key_file_warning(path: Path | None) -> str | None:
    """Return a warning if other users of the machine can add keys to the file.

    They may read it, as in the secrets of Kubernetes: it contains only digests.
    """
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None
    if status is None or not stat.S_ISREG(status.st_mode) or not status.st_mode & 0o022:
        return None
    return (
        f"the key file {path} has mode {status.st_mode & 0o777:04o}: other users of this machine "
        f"can add keys to it. Run: chmod go-w {path}"
    )


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
            raise KeyFileError(f", line {number}: duplicate of the key in line {seen[key.digest]}")
        if len(seen) == MAX_KEYS:
            raise KeyFileError(f": more than {MAX_KEYS} keys")
        seen[key.digest] = number
        yield key
    if not seen:
        raise EmptyKeyFileError(": the file contains no keys")


def _parse_key(words: list[str], limits: RateLimits) -> ApiKey:
    tenant, _, digest = words[0].rpartition(":")
    if not (_TENANT.fullmatch(tenant) and _DIGEST.fullmatch(digest)):
        raise ValueError(_FORM)
    key = ApiKey(tenant, bytes.fromhex(digest), limits)
    seen_names: set[str] = set()
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name in seen_names:
            raise ValueError(f"{name} is set more than once")
        seen_names.add(name)
        key = _apply_option(key, name, value, word)
    return key


def _apply_option(key: ApiKey, name: str, value: str, word: str) -> ApiKey:
    """Apply one option of a line. Errors do not quote an unknown option: it may be a key."""
    if name in _LIMITS:
        if value != "none" and not _COUNT.fullmatch(value):
            raise ValueError(f"{name}= must be a positive number or none")
        count = None if value == "none" else int(value)
        return replace(key, limits=replace(key.limits, **{name: count}))
    if name == "expires":
        return replace(key, expires=_parse_time(value))
    if name == "group":
        if not _TENANT.fullmatch(value):
            raise ValueError("group= must have 1 to 128 characters without spaces and colons")
        return replace(key, group=value)
    if word == "admin":
        return replace(key, admin=True)
    raise ValueError(
        "unknown word after the hash; expected requests=, tokens=, concurrent=, expires=, group= "
        "or admin"
    )


def _parse_time(text: str) -> float:
    """Parse a date, which includes the whole day, or a time; in UTC unless it has an offset."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expires= must be a date such as 2027-01-31, or a time") from None
    if not 1970 < time.year < 9999:
        raise ValueError("expires= must have a year between 1971 and 9998")
    if len(text) <= len("2027-01-31"):
        time += timedelta(days=1)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
