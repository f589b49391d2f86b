"""Keys: who may ask, and for which tenant."""

import hmac
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from dovetail_model import Unauthenticated

_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_TENANT = re.compile(r"[^\s:\x00-\x1f\x7f]{1,128}")


class KeyFileError(ValueError):
    """A file of keys that cannot be used. Names the line, never what stands in it."""


class Keys:
    """Known keys, as their hashes. Without any, everybody may ask, for the one tenant there is.

    A key of the command line belongs to that tenant too, whose name is empty: turns stay known
    when an operator begins to ask for a key.
    """

    __slots__ = ("_known",)

    def __init__(self, plain: Iterable[str] = (), hashed: Iterable[tuple[str, bytes]] = ()) -> None:
        own = [("", sha256(key.encode()).digest()) for key in plain if key]
        self._known = (*own, *hashed)

    def __bool__(self) -> bool:
        return bool(self._known)

    def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose key was sent. Raises if none of the keys that were sent is known."""
        if not self._known:
            return ""
        sent = candidates(headers)
        if not sent:
            raise Unauthenticated("No API key was sent: use x-api-key or Authorization: Bearer.")
        for key in sent:
            tenant = self._find(key)
            if tenant is not None:
                return tenant
        raise Unauthenticated("The API key is not known here.")

    def _find(self, key: str) -> str | None:
        """Compares with all keys whichever fits, so that time tells nothing."""
        digest = sha256(key.encode("utf-8", "surrogateescape")).digest()
        found: str | None = None
        for tenant, known in self._known:
            if hmac.compare_digest(digest, known):
                found = tenant
        return found


def read_keys(path: Path) -> list[tuple[str, bytes]]:
    """A file of hashed keys: a line `tenant:sha256` each, in hex; # begins a comment."""
    found: list[tuple[str, bytes]] = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeError) as error:
        raise KeyFileError(f"{path}: {error}") from error
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        tenant, _, digest = text.rpartition(":")
        if not (_TENANT.fullmatch(tenant) and _DIGEST.fullmatch(digest)):
            raise KeyFileError(f"{path}, line {number}: not of the form tenant:sha256")
        found.append((tenant, bytes.fromhex(digest)))
    if not found:
        raise KeyFileError(f"{path}: there is no key in it")
    return found


def candidates(headers: Mapping[str, str]) -> list[str]:
    """The keys that a client sent. Claude Code may send both headers, with different keys."""
    sent = [headers.get("x-api-key", "")]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        sent.append(token)
    return [key.strip() for key in sent if key.strip()]


def exposure(host: str, keys: Keys) -> str | None:
    """A warning, where anybody who reaches this machine may ask."""
    if keys or _is_loopback(host):
        return None
    return (
        f"listening on {host} without API keys: whoever reaches this address can use the model. "
        "Use --api-key or --api-key-file, or bind to 127.0.0.1."
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
