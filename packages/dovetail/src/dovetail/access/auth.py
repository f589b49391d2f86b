"""Keys: who may ask, for which tenant, and how much."""

import hmac
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from ipaddress import ip_address
from pathlib import Path

from dovetail.access.key_file import ApiKey, EmptyKeyFileError, KeyFileError, read_keys
from dovetail.access.limits import NO_LIMITS, RateLimits
from dovetail.settings.file_version import FileVersion, get_file_version, is_recently_changed
from dovetail_model import Forbidden, Unauthenticated

CHECK_INTERVAL_SECONDS = 3.0  # between two checks whether the key file has changed
_EMPTY_DIGEST = bytes(32)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """Who asks, and by which key: its hash, or that of an empty one where none is needed."""

    tenant: str = ""
    key: bytes = b""
    limits: RateLimits = NO_LIMITS
    admin: bool = False


#: Whoever asks before it is known who.
ANONYMOUS = Caller()


class ApiKeys:
    """Known keys, as their hashes. Without any, everybody may ask, for the one tenant there is.

    A key of the command line belongs to that tenant too, whose name is empty: turns stay known
    when an operator begins to ask for a key. It is the operator's own, so it is an admin's. Keys
    without limits of their own have those that are given; without keys all callers share them.

    The file is read again when it changes. Where it cannot be used then, what was read before
    stays. One without any key is no mistake by then, nor where it `may_be_empty` from the start:
    it refuses everybody. What is no file, such as a pipe, is read once.
    """

    __slots__ = (
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

    def __init__(
        self,
        plain: Iterable[str] = (),
        hashed: Iterable[ApiKey] = (),
        *,
        file: Path | None = None,
        may_be_empty: bool = False,
        limits: RateLimits = NO_LIMITS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        own = [ApiKey("", _digest(key), self._limits, admin=True) for key in plain if key]
        self._static_keys = (*own, *hashed)
        self._file = file
        self._is_regular_file = file is not None and file.is_file()
        self._clock = clock
        self._secret = secrets.token_bytes(16)
        self._loaded_version: FileVersion | None = None
        self.check_interval_seconds = CHECK_INTERVAL_SECONDS
        self._last_check = time.monotonic()
        self._table: dict[bytes, ApiKey] = {}
        try:
            found = self._read_file()
        except EmptyKeyFileError:
            if not may_be_empty:
                raise
            found = []
        self._install(found)

    def __bool__(self) -> bool:
        """Whether a key is needed."""
        return bool(self._static_keys) or self._file is not None

    def authenticate(self, headers: Mapping[str, str]) -> Caller:
        """Whose key was sent. Raises if none of the keys that were sent is known."""
        self._reload_if_changed()
        if not self:
            return Caller("", _digest(""), self._limits, admin=True)
        sent = extract_keys(headers)
        if not sent:
            message = "No API key was sent: use x-api-key or Authorization: Bearer."
            raise _unauthenticated(message, "no_key")
        found = [key for one in sent if (key := self._find(_digest(one))) is not None]
        if not found:
            raise _unauthenticated("The API key is not known here.", "unknown_key")
        key = next((key for key in found if not self._is_expired(key)), found[0])
        self._require_current(key)
        return Caller(key.tenant, key.digest, key.limits, key.admin)

    def revalidate(self, caller: Caller) -> Caller:
        """The same caller later, with the limits of now. Raises where its key is no longer good."""
        self._reload_if_changed()
        if not self:
            return caller
        key = self._find(caller.key)
        if key is None:
            raise _unauthenticated("The API key is no longer known here.", "unknown_key")
        self._require_current(key)
        return caller if key.limits == caller.limits else replace(caller, limits=key.limits)

    def reload(self, *, accept_empty: bool = True) -> None:
        """Reads the file now. A version that cannot be used is told in the log, and not taken.

        One that is empty may be about to be written, and if not `at_once` is looked at once more.
        """
        if not self._is_regular_file:
            return
        try:
            found = self._read_file()
        except (
            EmptyKeyFileError
        ):  # at the start that is a mistake; now the last one has been taken out
            if not accept_empty and is_recently_changed(self._loaded_version):
                return
            found = []
        except KeyFileError as error:
            _log.error("keys_refused", extra={"fields": {"reason": str(error)}})
            return
        self._install(found)
        level = logging.INFO if found else logging.WARNING
        _log.log(level, "keys_read", extra={"fields": {"keys": len(found)}})

    def _read_file(self) -> list[ApiKey]:
        if self._file is None:
            return []
        self._loaded_version = get_file_version(self._file, self._clock())
        return read_keys(self._file, self._limits)

    def _install(self, found: Iterable[ApiKey]) -> None:
        self._table = {self._table_key(key.digest): key for key in (*self._static_keys, *found)}

    def _reload_if_changed(self) -> None:
        """Whether the file is another one by now, at most every few seconds."""
        now = time.monotonic()
        if self._file is None or not self._is_regular_file:
            return
        if now - self._last_check < self.check_interval_seconds:
            return
        self._last_check = now
        if get_file_version(self._file, self._clock()) != self._loaded_version:
            self.reload(accept_empty=False)

    def _find(self, digest: bytes) -> ApiKey | None:
        """Takes as long for any key as for another, however many there are.

        Where a key is looked for depends on a secret of this process; that it is the one is
        found out by all of its hash.
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
            moment = datetime.fromtimestamp(key.expires, UTC)
            message = f"The API key has expired ({moment:%Y-%m-%d %H:%M} UTC)."
            raise _unauthenticated(message, "expired_key")


def require_admin(caller: Caller) -> None:
    """Raises unless the caller may see what is about all tenants."""
    if not caller.admin:
        raise Forbidden("This is for keys that are marked admin.")


def extract_keys(headers: Mapping[str, str]) -> list[str]:
    """The keys that a client sent. Claude Code may send both headers, with different keys."""
    sent = [headers.get("x-api-key", "")]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        sent.append(token)
    return [key.strip() for key in sent if key.strip()]


def exposure_warning(host: str, keys: ApiKeys) -> str | None:
    """A warning, where anybody who reaches this machine may ask."""
    if keys or _is_loopback(host):
        return None
    return (
        f"listening on {host} without API keys: whoever reaches this address can use the model. "
        "Use --api-key or --api-key-file, or bind to 127.0.0.1."
    )


def _unauthenticated(message: str, reason: str) -> Unauthenticated:
    error = Unauthenticated(message)
    error.reason = reason
    return error


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
