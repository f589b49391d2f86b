"""The keys that seal and open turns and that key the hash chain of each tenant."""

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dovetail_model import InternalError

KEY_BYTES = 32
KEY_ID_BYTES = 4
KEY_FILE = "seal.key"

_HEX = re.compile(r"[0-9A-Fa-f]{64}")
_GROUP_OTHER_MODE_BITS = 0o077
_log = logging.getLogger(__name__)


class KeyringError(InternalError):
    """An unusable key or key file. The message names the file and line, never the key."""


class SealKey:
    """One secret and the keys derived from it, each for one purpose."""

    __slots__ = ("_secret", "id", "sealing")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise KeyringError(f"a key must have {KEY_BYTES} bytes, got {len(secret)}")
        self._secret = secret
        self.id = hashlib.sha256(b"dovetail key id\0" + secret).digest()[:KEY_ID_BYTES]
        self.sealing = self.derive(b"dovetail seal")

    def derive(self, purpose: bytes) -> bytes:
        """Derive a key for one purpose. The secret is uniform, so HKDF-Expand is sufficient."""
        return HKDFExpand(hashes.SHA256(), KEY_BYTES, purpose).derive(self._secret)

    def is_same(self, other: "SealKey") -> bool:
        """Return whether the other key has the same secret."""
        return hmac.compare_digest(self._secret, other._secret)

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


class Keyring:
    """The keys of one installation: the first one seals, all of them open.

    `warnings` are messages for the operator.
    """

    __slots__ = ("_by_id", "_oldest", "sealing", "warnings")

    def __init__(self, secrets: Sequence[bytes], warnings: Sequence[str] = ()) -> None:
        if not secrets:
            raise KeyringError("a keyring must contain at least one key")
        keys = [SealKey(secret) for secret in secrets]
        self._by_id: dict[bytes, SealKey] = {}
        for key in keys:
            if not key.is_same(self._by_id.setdefault(key.id, key)):
                raise KeyringError(f"two keys have the id {key.id.hex()}: replace one of them")
        self.sealing = keys[0]
        self._oldest = keys[-1]
        self.warnings = tuple(warnings)

    def find(self, id: bytes) -> SealKey | None:
        """Return the key with this id, or None."""
        return self._by_id.get(id)

    def chain_key(self, tenant: str) -> bytes:
        """Return the key of a tenant's hash chain.

        It is derived from the last and oldest key of the file, so that recorded chains stay valid
        after a key rotation, which adds a new first key.
        """
        name = tenant.encode("utf-8", "surrogatepass")
        return self._oldest.derive(b"dovetail chain\0" + name)


def read_keyring(path: Path) -> Keyring:
    """Read a key file: one key per line in hex or base64; text after `#` is a comment."""
    try:
        text = path.read_text("utf-8")
        warnings = _check_permissions(path)
    except (OSError, UnicodeDecodeError) as error:
        raise KeyringError(f"cannot read the key file {path}: {error}") from error
    lines = [(at, line.split("#")[0].strip()) for at, line in enumerate(text.splitlines(), 1)]
    secrets = [_parse_secret(line, f"{path}, line {at}") for at, line in lines if line]
    if not secrets:
        raise KeyringError(f"the key file {path} contains no key")
    for warning in warnings:
        _log.warning("keyring_exposed", extra={"fields": {"text": warning}})
    return Keyring(secrets, warnings)


def load_or_create_keyring(folder: Path) -> Keyring:
    """Read the keys of a data folder. Creates a key file if there is none."""
    path = folder / KEY_FILE
    if not path.exists():
        try:
            _create_key_file(path)
        except OSError as error:
            raise KeyringError(f"cannot create the key file {path}: {error}") from error
    return read_keyring(path)


def _create_key_file(path: Path) -> None:
    """Write a new key to a draft file, then link it, which is atomic and never overwrites."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process created the file first: use its key
    finally:
        draft.unlink()


def _check_permissions(path: Path) -> list[str]:
    mode = path.stat().st_mode
    if os.name != "posix" or not mode & _GROUP_OTHER_MODE_BITS:
        return []
    return [
        f"the key file {path} is accessible to other users (mode {mode & 0o777:o}): chmod 600 it"
    ]


def _parse_secret(line: str, place: str) -> bytes:
    try:
        if _HEX.fullmatch(line):
            return bytes.fromhex(line)
        padded = line.rstrip("=") + "=" * (-len(line.rstrip("=")) % 4)
        secret = base64.b64decode(padded.translate(_TO_STANDARD), validate=True)
    except (binascii.Error, ValueError):
        raise KeyringError(f"{place}: a key must be in hex or base64") from None
    if len(secret) != KEY_BYTES:
        raise KeyringError(f"{place}: a key must have {KEY_BYTES} bytes, got {len(secret)}")
    return secret


_TO_STANDARD = str.maketrans("-_", "+/")
