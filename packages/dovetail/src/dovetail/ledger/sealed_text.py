"""Sealed texts: what the model read of a server tool's result, in fields that clients send back.

A sealed text is one base64url string:

    "dovetext" | version, key id | salt | nonce | AEAD

The salt gives each text its own key, so the number of random nonces per key does not matter. The
tenant is authenticated: another tenant cannot open the text.
"""

import base64
import binascii
import hmac
import os

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dovetail.ledger.keyring import KEY_ID_BYTES, Keyring, SealKey
from dovetail.ledger.store import decompress
from dovetail.storage.lru import LruCache

_MAGIC = base64.urlsafe_b64decode("dovetext")
_VERSION = b"\x01"
_SALT_BYTES, _NONCE_BYTES = 16, 12
_KEY_AT = len(_MAGIC) + len(_VERSION)
_SALT_AT = _KEY_AT + KEY_ID_BYTES
_NONCE_AT = _SALT_AT + _SALT_BYTES
_BODY_AT = _NONCE_AT + _NONCE_BYTES
_MAX_TEXT_BYTES = 8 << 20
_MAX_CACHED_CHARS = 16 << 20


class TextSealer:
    """Seals and opens texts. Servers with the same keyring can exchange them."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        # Every later request of a conversation contains the same sealed texts.
        self._opened: LruCache[tuple[str, str], str] = LruCache(
            max_size=_MAX_CACHED_CHARS, size_of=len
        )

    def seal(self, text: str, tenant: str) -> str:
        """Seal a text for a tenant."""
        key, salt, nonce = self._keyring.sealing, os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
        head = _MAGIC + _VERSION + key.id + salt
        packed = zstandard.ZstdCompressor().compress(text.encode("utf-8", "surrogatepass"))
        body = AESGCM(_derive_key(key, salt)).encrypt(nonce, packed, _associated_data(head, tenant))
        return base64.urlsafe_b64encode(head + nonce + body).rstrip(b"=").decode()

    def open(self, seal: str, tenant: str) -> str | None:
        """Open a sealed text of this tenant, or return None. Never raises."""
        known = self._opened.get((seal, tenant))
        if known is None:
            known = self._open(seal, tenant)
            if known is not None:
                self._opened.put((seal, tenant), known)
        return known

    def _open(self, seal: str, tenant: str) -> str | None:
        try:
            whole = base64.b64decode(seal + "=" * (-len(seal) % 4), b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        if not whole.startswith(_MAGIC + _VERSION) or len(whole) < _BODY_AT:
            return None
        key = self._keyring.find(whole[_KEY_AT:_SALT_AT])
        if key is None:
            return None
        cipher = AESGCM(_derive_key(key, whole[_SALT_AT:_NONCE_AT]))
        head = _associated_data(whole[:_NONCE_AT], tenant)
        try:
            packed = cipher.decrypt(whole[_NONCE_AT:_BODY_AT], whole[_BODY_AT:], head)
            return decompress(packed, _MAX_TEXT_BYTES).decode("utf-8", "surrogatepass")
        except (InvalidTag, ValueError):
            return None


def _derive_key(key: SealKey, salt: bytes) -> bytes:
    return hmac.digest(key.sealing, b"text\0" + salt, "sha256")


def _associated_data(head: bytes, tenant: str) -> bytes:
    return head + b"\0" + tenant.encode("utf-8", "surrogatepass")
