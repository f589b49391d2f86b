"""Seals: what a client carries back of a turn, for the replica that has never seen it.

A seal is one base64url string:

    "dovetail" | version, id length, key id, binding, body length | entry id | nonce | AEAD

The first part is in clear and authenticated, together with tenant and model. AES-256-GCM, since
every build of the library has it: with the nonce-misuse resistant mode, replicas on an older
OpenSSL could not open each other's seals. Its known limit, random nonces under one key, is no
concern here: each entry has its own key, derived from its id, and a turn has a few seals at most.
"""

import base64
import binascii
import hmac
import os
import struct
from typing import Literal, NamedTuple

import msgspec
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dovetail.ledger.codec import inflate
from dovetail.ledger.keyring import Key, Keyring
from dovetail.ledger.sealed import Sealed, Tail, least_size, reductions

__all__ = ["MAX_TEXT", "Reason", "Refused", "Sealed", "Sealer", "Tail", "entry_id_of"]

MAX_TEXT = 48 * 1024  # characters; clients carry 50 KB without complaint

Reason = Literal["forged", "truncated", "foreign", "unknown_key", "version", "not_ours"]

_MAGIC = "dovetail"
_VERSION = 1
_FIXED = struct.Struct(">BB4s4sH")  # with the magic's six bytes it ends on a base64 quantum
_FIXED_SIZE, _FIXED_TEXT = 18, 24
_NONCE = 12
_TAG = 16
_MAX_ID = 255
_MAX_OPENED = 4 << 20  # no seal of ours holds as much

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Sealed)


class Refused(msgspec.Struct, frozen=True):
    """Why a seal is not opened. The request goes on without it.

    `not_ours`: another vendor's. `version`: of another Dovetail. `truncated`: its end is missing.
    `unknown_key`: sealed with a key that we do not have. `foreign`: another tenant's, or another
    model's. `forged`: changed in any other way.
    """

    reason: Reason


class Sealer:
    """Seals and opens. Has no state but its keys, so any number of replicas do the same."""

    __slots__ = ("_keyring",)

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def seal(self, sealed: Sealed, tenant: str, model: str) -> str:
        """The seal, of at most `MAX_TEXT` characters: what does not fit is left out of it."""
        key = self._keyring.sealing
        entry = sealed.entry.encode()
        if not 0 < len(entry) <= _MAX_ID:
            raise ValueError(f"an entry id has 1 to {_MAX_ID} bytes")
        body = _fitting(sealed, MAX_TEXT // 4 * 3 - _FIXED_SIZE - len(entry))
        length = _NONCE + len(body) + _TAG
        clear = _MAGIC_BYTES + _FIXED.pack(
            _VERSION, len(entry), key.id, _binding(key, tenant, model), length
        )
        clear += entry
        nonce = os.urandom(_NONCE)
        box = AESGCM(_entry_key(key, entry))
        return _to_text(clear + nonce + box.encrypt(nonce, body, _bound(clear, tenant, model)))

    def open(self, text: str, tenant: str, model: str) -> Sealed | Refused:
        """What was sealed for this tenant and model, or why not. Never raises."""
        clear = _read_clear(text)
        if isinstance(clear, Refused):
            return clear
        key = self._keyring.find(clear.key_id)
        if key is None:
            return Refused("unknown_key")
        if not hmac.compare_digest(clear.binding, _binding(key, tenant, model)):
            return Refused("foreign")
        return _unseal(text, clear, key, (tenant, model))


def entry_id_of(seal: str) -> str | None:
    """The entry id that a seal names, None if it is not ours. Proven only by opening it."""
    clear = _read_clear(seal)
    if isinstance(clear, Refused):
        return None
    try:
        return clear.entry.decode()
    except UnicodeDecodeError:
        return None


class _Clear(NamedTuple):
    """The part that is read without a key."""

    entry: bytes
    key_id: bytes
    binding: bytes
    length: int


def _read_clear(text: str) -> _Clear | Refused:
    if not text.startswith(_MAGIC):
        return Refused("not_ours")
    try:
        head = _from_text(text[:_FIXED_TEXT])
        if len(head) < _FIXED_SIZE:
            return Refused("truncated")
        version, id_length, key_id, binding, length = _FIXED.unpack_from(head, len(_MAGIC_BYTES))
        if version != _VERSION:
            return Refused("version")
        if id_length == 0 or length < _NONCE + _TAG:
            return Refused("forged")
        missing = _text_length(len(head) + id_length + length) - len(text)
        if missing:
            return Refused("truncated" if missing > 0 else "forged")
        id_end = _FIXED_TEXT + (id_length + 2) // 3 * 4
        entry = _from_text(text[_FIXED_TEXT:id_end])[:id_length]
    except ValueError:
        return Refused("forged")
    return _Clear(entry, key_id, binding, length)


def _unseal(text: str, clear: _Clear, key: Key, owner: tuple[str, str]) -> Sealed | Refused:
    try:
        whole = _from_text(text)
        if _to_text(whole) != text:  # two spellings of one seal: only ours is
            return Refused("forged")
        at = len(whole) - clear.length
        box = AESGCM(_entry_key(key, clear.entry))
        nonce, body = whole[at : at + _NONCE], whole[at + _NONCE :]
        packed = inflate(box.decrypt(nonce, body, _bound(whole[:at], *owner)), _MAX_OPENED)
    except (InvalidTag, ValueError):
        return Refused("forged")
    try:
        return _decoder.decode(packed)
    except msgspec.MsgspecError:
        return Refused("version")


def _fitting(sealed: Sealed, room: int) -> bytes:
    """The compressed payload of the first reduction that fits; the last one always does.

    What surely does not fit is not tried, so that the cost is bounded however long the turn is.
    """
    room -= _NONCE + _TAG
    for reduced in reductions(sealed):
        if least_size(reduced) > room:
            continue
        body = zstandard.ZstdCompressor().compress(_encoder.encode(reduced))
        if len(body) <= room:
            return body
    raise ValueError("an entry's hashes do not fit a seal")


def _entry_key(key: Key, entry: bytes) -> bytes:
    return hmac.digest(key.sealing, b"entry\0" + entry, "sha256")


def _binding(key: Key, tenant: str, model: str) -> bytes:
    """Tells another tenant's or model's seal from a forged one, and says nothing of either."""
    return hmac.digest(key.sealing, b"binding\0" + _bound(b"", tenant, model), "sha256")[:4]


def _bound(clear: bytes, tenant: str, model: str) -> bytes:
    """The associated data: each part with its length, so that none can run into the next."""
    parts = (clear, tenant.encode("utf-8", "surrogatepass"), model.encode("utf-8", "surrogatepass"))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    """ValueError for what cannot be base64url. A last character that makes no byte is lost."""
    data = text.encode("ascii").translate(_TO_STANDARD)
    whole = data[:-1] if len(data) % 4 == 1 else data
    try:
        return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4), strict_mode=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _text_length(size: int) -> int:
    return (size * 4 + 2) // 3


_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_MAGIC_BYTES = base64.urlsafe_b64decode(_MAGIC)
