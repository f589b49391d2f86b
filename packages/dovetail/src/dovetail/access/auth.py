"""API keys: authenticate callers and look up their tenants and rate limits."""

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Literal

from dovetail.access.browser import is_loopback
from dovetail.access.key_file import (
    NO_BUDGETS,
    ApiKey,
    Budgets,
    EmptyKeyFileError,
    KeyFileError,
    read_keys,
)
from dovetail.access.limits import NO_LIMITS, RateLimits
from dovetail.settings.file_version import FileVersion, get_file_version, is_recently_changed
from dovetail_model import Forbidden, Unauthenticated

CHECK_INTERVAL_SECONDS = 3.0  # between two checks of the key file for changes
_EMPTY_DIGEST = bytes(32)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """The sender of a request, identified by its API key.

    key: Digest of the key; the digest of an empty string if the server requires no key.
    group: The group of tenants in the line of the key.
    name: Name of the key in usage reports, or its first digits; "" if the server requires no key.
    budgets, tenant_budgets: Budgets of the key, and of all keys of its tenant together.
    """

    tenant: str = ""
    key: bytes = b""
    limits: RateLimits = NO_LIMITS
    admin: bool = False
    group: str = ""
    name: str = ""
    budgets: Budgets = NO_BUDGETS
    tenant_budgets: Budgets = NO_BUDGETS


#: The sender of a request that is not authenticated yet.
ANONYMOUS = Caller()


class ApiKeys:
    """The accepted keys, by their digests. Without keys, every caller has access, as one tenant.

    Keys from the command line belong to the tenant with the empty name, the tenant of a server
    without keys, so the ledger still finds earlier turns when an operator starts to require a key.
    They are admin keys because they belong to the operator. Keys without limits of their own get
    `limits`; without keys, all callers share these limits.

    The file is reloaded when it changes. If the new version is invalid, the previous keys remain
    in use. On a reload (and at startup if `may_be_empty`), a file without keys is valid and rejects
    every caller. A path that is not a regular file, such as a pipe, is read once.
    """

    __slots__ = (
        "_budgets",
        "_clock",
        "_file",
        "_is_regular_file",
        "_last_check",
        "_limits",
        "_loaded_version",
        "_secret",
        "_static_keys",
        "_table",
        "check_interval_seconds",
    )

    def __init__(  # noqa: PLR0913 - where keys come from, and what those without options get
        self,
        plain: Iterable[str] = (),
        hashed: Iterable[ApiKey] = (),
        *,
        file: Path | None = None,
        may_be_empty: bool = False,
        limits: RateLimits = NO_LIMITS,
        budgets: Budgets = NO_BUDGETS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._budgets = budgets
        static_keys = [
            ApiKey("", _digest(key), limits, admin=True, budgets=budgets) for key in plain if key
        ]
        self._static_keys = (*static_keys, *hashed)
        self._file = file
        self._is_regular_file = file is not None and file.is_file()
        self._clock = clock
        self._secret = secrets.token_bytes(16)
        self._loaded_version: FileVersion | None = None
        self.check_interval_seconds = CHECK_INTERVAL_SECONDS
        self._last_check = time.monotonic()
        self._table: dict[bytes, ApiKey] = {}
        try:
            file_keys = self._read_file()
        except EmptyKeyFileError:
            if not may_be_empty:
                raise
            file_keys = []
        self._install(file_keys)

    def __bool__(self) -> bool:
        """Whether callers must send a key."""
        return bool(self._static_keys) or self._file is not None

    @property
    def have_budgets(self) -> bool:
        """Whether a key or a tenant has a budget."""
        known = self._table.values()
        return bool(self._budgets) or any(key.budgets or key.tenant_budgets for key in known)

    def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Return the owner of the key in the headers. Raises if they contain no valid key."""
        self._reload_if_changed()
        if not self:
            return Caller("", _digest(""), self._limits, admin=True, budgets=self._budgets)
        sent = extract_keys(headers)
        if not sent:
            message = "No API key was sent. Set the header x-api-key or Authorization: Bearer."
            raise _unauthenticated(message, "no_key")
        known = [key for text in sent if (key := self._find(_digest(text))) is not None]
        if not known:
            raise _unauthenticated("The API key is not valid for this server.", "unknown_key")
        key = next((key for key in known if not self._is_expired(key)), known[0])
        self._require_current(key)
        return _create_caller(key)

    def revalidate(self, caller: Caller) -> Caller:
        """Return the caller with its current limits and budgets. Raises if its key is invalid."""
        self._reload_if_changed()
        if not self:
            return caller
        key = self._find(caller.key)
        if key is None:
            message = "The API key is no longer valid for this server."
            raise _unauthenticated(message, "unknown_key")
        self._require_current(key)
        if (key.limits, key.group, key.budgets, key.tenant_budgets, key.usage_name) == (
            *(caller.limits, caller.group, caller.budgets, caller.tenant_budgets, caller.name),
        ):
            return caller
        return replace(_create_caller(key), admin=caller.admin)

    def reload(self, *, accept_empty: bool = True) -> None:
        """Read the file now. An invalid version is logged and not used.

        An empty file may be about to be written: with `accept_empty=False`, a recently changed one
        is ignored until a later check.
        """
        if not self._is_regular_file:
            return
        try:
            keys = self._read_file()
        except EmptyKeyFileError:  # an error at startup; here the last key was removed
            if not accept_empty and is_recently_changed(self._loaded_version):
                return
            keys = []
        except KeyFileError as error:
            _log.error("keys_rejected", extra={"fields": {"reason": str(error)}})
            return
        self._install(keys)
        level = logging.INFO if keys else logging.WARNING
        _log.log(level, "keys_reloaded", extra={"fields": {"keys": len(keys)}})

    def _read_file(self) -> list[ApiKey]:
        if self._file is None:
            return []
        self._loaded_version = get_file_version(self._file, self._clock())
        return read_keys(self._file, self._limits, self._budgets)

    def _install(self, file_keys: Iterable[ApiKey]) -> None:
        self._table = {self._table_key(key.digest): key for key in (*self._static_keys, *file_keys)}

    def _reload_if_changed(self) -> None:
        """Reload the file if it has changed. It is checked at most every few seconds."""
        now = time.monotonic()
        if self._file is None or not self._is_regular_file:
            return
        if now - self._last_check < self.check_interval_seconds:
            return
        self._last_check = now
        if get_file_version(self._file, self._clock()) != self._loaded_version:
            self.reload(accept_empty=False)

    def _find(self, digest: bytes) -> ApiKey | None:
        """Find a key in time that does not depend on the number of keys or on their content.

        The position in the table depends on a secret of this process, and the match is confirmed by
        comparing the complete digest in constant time.
        """
        key = self._table.get(self._table_key(digest))
        same = hmac.compare_digest(digest, _EMPTY_DIGEST if key is None else key.digest)
        return key if same else None

    def _table_key(self, digest: bytes) -> bytes:
        return blake2b(digest, key=self._secret, digest_size=16).digest()

    def _is_expired(self, key: ApiKey) -> bool:
        return key.expires is not None and self._clock() >= key.expires

    def _require_current(self, key: ApiKey) -> None:
        if key.expires is not None and self._is_expired(key):
            expiry = datetime.fromtimestamp(key.expires, UTC)
            message = f"The API key has expired ({expiry:%Y-%m-%d %H:%M} UTC)."
            raise _unauthenticated(message, "expired_key")


def _create_caller(key: ApiKey) -> Caller:
    return Caller(
        key.tenant,
        key.digest,
        key.limits,
        key.admin,
        key.group,
        key.usage_name,
        key.budgets,
        key.tenant_budgets,
    )


PrefixSharing = Literal["tenant", "group", "all"]
"""Which clients share an engine's prefix cache."""


def cache_scope(caller: Caller, sharing: PrefixSharing) -> str | None:
    """Return a name that the clients which share a prefix cache have in common.

    None: those of the tenant. The group is in the operator's key file: a client that could choose
    it could join any group. A key without a group shares with its tenant. No tenant has the name
    of a group, because the names of tenants contain no colon.
    """
    if sharing == "all":
        return ""
    if sharing == "group" and caller.group:
        return f"group:{caller.group}"
    return None


def require_admin(caller: Caller) -> None:
    """Raise unless the caller may see data of all tenants."""
    if not caller.admin:
        raise Forbidden("This endpoint requires an admin key.")


def require_admin_key(caller: Caller, *, has_keys: bool) -> None:
    """Raise unless the caller has an admin key. A server without keys has no admins."""
    if not has_keys:
        raise Forbidden("This endpoint requires an admin key; set --api-key on the server.")
    require_admin(caller)


def require_operator(caller: Caller, keys: "ApiKeys", *, is_local: bool) -> None:
    """Raise unless the caller has an admin key or, on a server without keys, is on this machine."""
    require_admin(caller)
    if not keys and not is_local:
        raise Forbidden(
            "Without API keys, this endpoint is available only on the machine of the server."
        )


def extract_keys(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a client sent. Claude Code may send both headers, with two keys."""
    sent = [headers.get("x-api-key", "")]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        sent.append(token)
    return [key.strip() for key in sent if key.strip()]


def exposure_warning(host: str, keys: ApiKeys) -> str | None:
    """Return a warning if the server accepts requests from other machines without a key."""
    if keys or is_loopback(host):
        return None
    return (
        f"listening on {host} without API keys: any client that can reach this address can use the "
        "model. Use --api-key or --api-key-file, or bind to 127.0.0.1."
    )


def _unauthenticated(message: str, reason: str) -> Unauthenticated:
    error = Unauthenticated(message)
    error.reason = reason
    return error


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
