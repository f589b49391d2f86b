"""The key file: one line per key, with its tenant, its digest and its options.

team-a:9f86d081…    requests=60 tokens=100000 concurrent=8
team-a:60303ae2…    expires=2027-01-31   # the next key of the same tenant
operator:fd61a03a…  requests=none admin group=engineering name=laptop
team-a:*            tokens-per-month=50000000   # shared by all keys of the tenant

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
_TOKEN_BUDGETS = ("tokens-per-day", "tokens-per-month")
_COST_BUDGET = "cost-per-month"
_COST = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_ALL_KEYS = "*"
_KEY_ID_DIGITS = 12
_FORM = (
    "expected tenant:sha256: a tenant name without spaces, colons and #, "
    "and a hash of 64 hexadecimal digits"
)


class KeyFileError(ValueError):
    """An invalid key file. The message contains the line number, never the line's content."""


class EmptyKeyFileError(KeyFileError):
    """A key file without any key."""


@dataclass(frozen=True)
class Budgets:
    """What a key, or all keys of a tenant together, may use in a UTC day or month. None: no limit.

    Tokens are prompt tokens that were not cached, and output tokens.
    """

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    cost_per_month: float | None = None

    def __bool__(self) -> bool:
        return (self.tokens_per_day, self.tokens_per_month, self.cost_per_month) != (None,) * 3


NO_BUDGETS = Budgets()


@dataclass(frozen=True)
class ApiKey:
    """An API key, of which only the digest is stored.

    expires: Expiry in seconds since the epoch; None if the key does not expire.
    admin: Whether the key gives access to data of all tenants.
    group: Tenants that may share an engine's prefix cache, with `--prefix-sharing group`.
    name: Name in usage reports. Keys of a tenant with the same name are counted together.
    budgets, tenant_budgets: Budgets of the key, and of all keys of its tenant together.
    """

    tenant: str
    digest: bytes
    limits: RateLimits = NO_LIMITS
    expires: float | None = None
    admin: bool = False
    group: str = ""
    name: str = ""
    budgets: Budgets = NO_BUDGETS
    tenant_budgets: Budgets = NO_BUDGETS

    @property
    def usage_name(self) -> str:
        """The name of the key, or the first digits of its digest, which do not reveal the key."""
        return self.name or self.digest.hex()[:_KEY_ID_DIGITS]


def read_keys(
    path: Path, limits: RateLimits = NO_LIMITS, budgets: Budgets = NO_BUDGETS
) -> list[ApiKey]:
    """Read the keys of a file. Those without limits and budgets of their own get the given ones."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror or error}") from error
    if len(text) > MAX_FILE_BYTES:
        raise KeyFileError(f"{path}: the key file is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return list(parse_keys(text, limits, budgets))
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


def parse_keys(
    text: bytes, limits: RateLimits = NO_LIMITS, budgets: Budgets = NO_BUDGETS
) -> Iterator[ApiKey]:
    """Parse the text of a key file. Error messages begin with the position in the file."""
    default = ApiKey("", b"", limits, budgets=budgets)
    keys: dict[bytes, tuple[int, ApiKey]] = {}
    tenants: dict[str, tuple[int, Budgets]] = {}
    for number, words in _split_lines(text):
        try:
            if words[0].endswith(f":{_ALL_KEYS}"):
                _add_tenant(tenants, number, words)
            else:
                _add_key(keys, number, _parse_key(words, default))
        except ValueError as error:
            raise KeyFileError(f", line {number}: {error}") from None
        if len(keys) > MAX_KEYS:
            raise KeyFileError(f": more than {MAX_KEYS} keys")
    if not keys:
        raise EmptyKeyFileError(": the file contains no keys")
    known = {key.tenant for _, key in keys.values()}
    for tenant, (number, _) in tenants.items():
        if tenant not in known:
            raise KeyFileError(f", line {number}: the tenant has no key in this file")
    for _, key in keys.values():
        _, shared = tenants.get(key.tenant, (0, NO_BUDGETS))
        yield replace(key, tenant_budgets=shared) if shared else key


def _split_lines(text: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of each line that has any."""
    try:
        lines = text.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise KeyFileError(": not UTF-8") from None
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            yield number, words


def _add_key(keys: dict[bytes, tuple[int, ApiKey]], number: int, key: ApiKey) -> None:
    if key.digest in keys:
        raise ValueError(f"duplicate of the key in line {keys[key.digest][0]}")
    keys[key.digest] = (number, key)


def _add_tenant(tenants: dict[str, tuple[int, Budgets]], number: int, words: list[str]) -> None:
    """Add the budgets that the keys of a tenant share."""
    tenant = words[0].removesuffix(f":{_ALL_KEYS}")
    if not _TENANT.fullmatch(tenant):
        raise ValueError(_FORM)
    if tenant in tenants:
        raise ValueError(f"duplicate of the tenant in line {tenants[tenant][0]}")
    budgets = NO_BUDGETS
    for name, value, _ in _split_options(words[1:]):
        if name not in (*_TOKEN_BUDGETS, _COST_BUDGET):
            raise ValueError("a line for all keys of a tenant may have only budgets")
        budgets = _apply_budget(budgets, name, value)
    tenants[tenant] = (number, budgets)


def _parse_key(words: list[str], default: ApiKey) -> ApiKey:
    tenant, _, digest = words[0].rpartition(":")
    if not (_TENANT.fullmatch(tenant) and _DIGEST.fullmatch(digest)):
        raise ValueError(_FORM)
    key = replace(default, tenant=tenant, digest=bytes.fromhex(digest))
    for name, value, word in _split_options(words[1:]):
        key = _apply_option(key, name, value, word)
    return key


def _split_options(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name and the value of each option, and the whole word."""
    seen_names: set[str] = set()
    for word in words:
        name, _, value = word.partition("=")
        if name in seen_names:
            raise ValueError(f"{name} is set more than once")
        seen_names.add(name)
        yield name, value, word


def _apply_budget(budgets: Budgets, name: str, value: str) -> Budgets:
    if value == "none":
        return replace(budgets, **{name.replace("-", "_"): None})
    if name == _COST_BUDGET:
        if not _COST.fullmatch(value):
            raise ValueError(f"{name}= must be a number such as 25.50, or none")
        return replace(budgets, cost_per_month=float(value))
    if not _COUNT.fullmatch(value):
        raise ValueError(f"{name}= must be a positive number or none")
    return replace(budgets, **{name.replace("-", "_"): int(value)})


def _apply_option(key: ApiKey, name: str, value: str, word: str) -> ApiKey:
    """Apply one option of a line. Errors do not quote an unknown option: it may be a key."""
    if name in _LIMITS:
        if value != "none" and not _COUNT.fullmatch(value):
            raise ValueError(f"{name}= must be a positive number or none")
        count = None if value == "none" else int(value)
        return replace(key, limits=replace(key.limits, **{name: count}))
    if name in (*_TOKEN_BUDGETS, _COST_BUDGET):
        return replace(key, budgets=_apply_budget(key.budgets, name, value))
    if name == "expires":
        return replace(key, expires=_parse_time(value))
    if name in ("group", "name"):
        if not _TENANT.fullmatch(value):
            raise ValueError(f"{name}= must have 1 to 128 characters without spaces and colons")
        return replace(key, group=value) if name == "group" else replace(key, name=value)
    if word == "admin":
        return replace(key, admin=True)
    raise ValueError(
        "unknown word after the hash; expected requests=, tokens=, concurrent=, tokens-per-day=, "
        "tokens-per-month=, cost-per-month=, expires=, group=, name= or admin"
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
