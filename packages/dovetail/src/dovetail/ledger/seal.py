"""Seals: encrypted turns that clients send back, so that any server can restore them.

A seal is one base64url string:

    "dovetail" | version, id length, key id, binding, body length | entry id | nonce | AEAD

The header is unencrypted and authenticated, together with tenant and model. The cipher is
AES-256-GCM because every build of the library has it: with a nonce-misuse-resistant mode, servers
on an older OpenSSL could not open the seals of others. GCM limits the number of random nonces per
key, which does not matter here: each entry has its own key, derived from its id, and a turn has
only a few seals.
"""

import base64
import binascii
import hmac
import os
import struct
from array import array
from collections.abc import Iterator
from typing import Literal, NamedTuple

import msgspec
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dovetail.ledger.entry import TOKEN_ID_TYPECODE, EntrySpan
from dovetail.ledger.keyring import Keyring, SealKey
from dovetail.ledger.store import decompress

__all__ = [
    "MAX_SEAL_CHARS",
    "PreviousTurnTail",
    "SealPayload",
    "SealRefusal",
    "SealRefusalReason",
    "Sealer",
    "read_entry_id",
]

OmittedPart = Literal["previous", "raws", "spans", "ids"]

_TOKEN_ID_BYTES = array(TOKEN_ID_TYPECODE).itemsize


class PreviousTurnTail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of the previous turn: the output after its last seal.

    `start`: the number of generated ids of that turn before the tail.
    `spans`: the spans after its last seal.
    """

    entry: str
    start: int
    generated: bytes
    spans: tuple[EntrySpan, ...]
    stop: int | None = None


class SealPayload(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a turn from its previous seal to the end of a reasoning span.

    The first seal of a turn also holds the tail of the previous turn.

    `generated`: packed like that of an entry, without the turn's first `start` ids.
    `reasoning_index`: the index of the reasoning span within the turn.
    `omitted`: the parts that were omitted to limit the size, in this order: the tail of the
    previous turn; the `raw` of the spans (the ids spell the same text); the first spans with their
    ids, which increases `start`; all spans and ids.

    Payloads are encoded as arrays: the order of the fields is the format, their names are not.
    """

    entry: str
    parent: str | None
    generated: bytes
    spans: tuple[EntrySpan, ...]
    chain_before: bytes
    head: bytes
    reasoning_index: int = 0
    previous: PreviousTurnTail | None = None
    start: int = 0
    omitted: tuple[OmittedPart, ...] = ()
    opening: str | None = None


def iter_reductions(payload: SealPayload) -> Iterator[SealPayload]:
    """Yield the payload, then smaller and smaller ones. The last has only entry ids and hashes.

    Spans are dropped oldest first, in doubling steps: earlier seals of the turn contain them.
    """
    yield payload
    if payload.previous is not None:
        payload = _omit(payload, "previous", previous=None)
        yield payload
    if payload.spans:
        bare = tuple(msgspec.structs.replace(span, raw="") for span in payload.spans)
        payload = _omit(payload, "raws", spans=bare)
        yield payload
    for count in _doubling_counts(len(payload.spans) - 1):
        yield _drop_first_spans(payload, count)
    yield _omit(payload, "ids", spans=(), generated=b"")


def estimate_min_bytes(payload: SealPayload) -> int:
    """Estimate a lower bound of the compressed size: two bytes per id, an eighth of the text."""
    parts = (payload,) if payload.previous is None else (payload, payload.previous)
    ids = sum(len(part.generated) for part in parts)
    text = sum(len(span.raw) + len(span.shown) for part in parts for span in part.spans)
    return ids // 2 + text // 8


def _omit(payload: SealPayload, part: OmittedPart, **changes: object) -> SealPayload:
    return msgspec.structs.replace(payload, omitted=(*payload.omitted, part), **changes)


def _drop_first_spans(payload: SealPayload, count: int) -> SealPayload:
    start = max(payload.start, payload.spans[count - 1].tokens)
    generated = payload.generated[(start - payload.start) * _TOKEN_ID_BYTES :]
    remaining = payload.spans[count:]
    return _omit(payload, "spans", spans=remaining, generated=generated, start=start)


def _doubling_counts(limit: int) -> Iterator[int]:
    count = 1
    while count < limit:
        yield count
        count *= 2
    if limit > 0:
        yield limit


MAX_SEAL_CHARS = 48 * 1024  # characters; tested clients accept 50 KB

SealRefusalReason = Literal["forged", "truncated", "foreign", "unknown_key", "version", "not_ours"]

_MAGIC = "dovetail"
_VERSION = 1
_HEADER = struct.Struct(">BB4s4sH")  # with the six bytes of the magic it ends on a base64 quantum
_HEADER_BYTES, _HEADER_CHARS = 18, 24
_NONCE_BYTES = 12
_TAG_BYTES = 16
_MAX_ENTRY_ID_BYTES = 255
_MAX_PAYLOAD_BYTES = 4 << 20  # larger than any payload that we seal

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SealPayload)


class SealRefusal(msgspec.Struct, frozen=True):
    """The reason why a seal is not opened. The request continues without it.

    `not_ours`: the seal of another vendor.
    `version`: the seal of another Dovetail version.
    `truncated`: the end of the seal is missing.
    `unknown_key`: sealed with a key that is not in the keyring.
    `foreign`: the seal of another tenant or model.
    `forged`: modified in any other way.
    """

    reason: SealRefusalReason


class Sealer:
    """Seals and opens turns. Its only state is the keyring, so servers can exchange seals."""

    __slots__ = ("_keyring",)

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring

    def seal(self, payload: SealPayload, tenant: str, model: str) -> str:
        """Seal a payload in at most `MAX_SEAL_CHARS` characters, omitting parts that do not fit."""
        key = self._keyring.sealing
        entry = payload.entry.encode()
        if not 0 < len(entry) <= _MAX_ENTRY_ID_BYTES:
            raise ValueError(f"an entry id must have 1 to {_MAX_ENTRY_ID_BYTES} bytes")
        body = _encode_fitting(payload, MAX_SEAL_CHARS // 4 * 3 - _HEADER_BYTES - len(entry))
        length = _NONCE_BYTES + len(body) + _TAG_BYTES
        header = _MAGIC_BYTES + _HEADER.pack(
            _VERSION, len(entry), key.id, _compute_binding(key, tenant, model), length
        )
        header += entry
        nonce = os.urandom(_NONCE_BYTES)
        cipher = AESGCM(_derive_entry_key(key, entry))
        return _encode_base64url(
            header + nonce + cipher.encrypt(nonce, body, _associated_data(header, tenant, model))
        )

    def open(self, text: str, tenant: str, model: str) -> SealPayload | SealRefusal:
        """Open a seal of this tenant and model, or return why it was refused. Never raises."""
        header = _read_header(text)
        if isinstance(header, SealRefusal):
            return header
        key = self._keyring.find(header.key_id)
        if key is None:
            return SealRefusal("unknown_key")
        if not hmac.compare_digest(header.binding, _compute_binding(key, tenant, model)):
            return SealRefusal("foreign")
        return _unseal(text, header, key, (tenant, model))


def read_entry_id(seal: str) -> str | None:
    """Return the unauthenticated entry id in the header of a seal, or None if it is not ours."""
    header = _read_header(seal)
    if isinstance(header, SealRefusal):
        return None
    try:
        return header.entry.decode()
    except UnicodeDecodeError:
        return None


class _ClearHeader(NamedTuple):
    """The header of a seal, which is readable without a key."""

    entry: bytes
    key_id: bytes
    binding: bytes
    length: int


def _read_header(text: str) -> _ClearHeader | SealRefusal:
    if not text.startswith(_MAGIC):
        return SealRefusal("not_ours")
    try:
        head = _decode_base64url(text[:_HEADER_CHARS])
        if len(head) < _HEADER_BYTES:
            return SealRefusal("truncated")
        version, id_length, key_id, binding, length = _HEADER.unpack_from(head, len(_MAGIC_BYTES))
        if version != _VERSION:
            return SealRefusal("version")
        if id_length == 0 or length < _NONCE_BYTES + _TAG_BYTES:
            return SealRefusal("forged")
        missing = _base64_chars(len(head) + id_length + length) - len(text)
        if missing:
            return SealRefusal("truncated" if missing > 0 else "forged")
        id_end = _HEADER_CHARS + (id_length + 2) // 3 * 4
        entry = _decode_base64url(text[_HEADER_CHARS:id_end])[:id_length]
    except ValueError:
        return SealRefusal("forged")
    return _ClearHeader(entry, key_id, binding, length)


def _unseal(
    text: str, header: _ClearHeader, key: SealKey, owner: tuple[str, str]
) -> SealPayload | SealRefusal:
    try:
        whole = _decode_base64url(text)
        if _encode_base64url(whole) != text:  # accept only the canonical encoding
            return SealRefusal("forged")
        header_bytes = len(whole) - header.length
        cipher = AESGCM(_derive_entry_key(key, header.entry))
        nonce, body = (
            whole[header_bytes : header_bytes + _NONCE_BYTES],
            whole[header_bytes + _NONCE_BYTES :],
        )
        packed = decompress(
            cipher.decrypt(nonce, body, _associated_data(whole[:header_bytes], *owner)),
            _MAX_PAYLOAD_BYTES,
        )
    except (InvalidTag, ValueError):
        return SealRefusal("forged")
    try:
        return _decoder.decode(packed)
    except msgspec.MsgspecError:
        return SealRefusal("version")


def _encode_fitting(payload: SealPayload, max_bytes: int) -> bytes:
    """Compress the first reduction that fits; the last one always does.

    Reductions whose estimated size is too large are skipped, which bounds the cost of long turns.
    """
    max_bytes -= _NONCE_BYTES + _TAG_BYTES
    for reduced in iter_reductions(payload):
        if estimate_min_bytes(reduced) > max_bytes:
            continue
        body = zstandard.ZstdCompressor().compress(_encoder.encode(reduced))
        if len(body) <= max_bytes:
            return body
    raise ValueError("the entry ids and hashes exceed the size of a seal")


def _derive_entry_key(key: SealKey, entry: bytes) -> bytes:
    return hmac.digest(key.sealing, b"entry\0" + entry, "sha256")


def _compute_binding(key: SealKey, tenant: str, model: str) -> bytes:
    """Compute a tag that identifies seals of other tenants and models without revealing these."""
    return hmac.digest(key.sealing, b"binding\0" + _associated_data(b"", tenant, model), "sha256")[
        :4
    ]


def _associated_data(header: bytes, tenant: str, model: str) -> bytes:
    """Join the associated data, each part with its length, so that the result is unambiguous."""
    parts = (
        header,
        tenant.encode("utf-8", "surrogatepass"),
        model.encode("utf-8", "surrogatepass"),
    )
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode_base64url(text: str) -> bytes:
    """Decode base64url, or raise ValueError. A single surplus character at the end is dropped."""
    data = text.encode("ascii").translate(_TO_STANDARD)
    whole = data[:-1] if len(data) % 4 == 1 else data
    try:
        return binascii.a2b_base64(whole + b"=" * (-len(whole) % 4), strict_mode=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _base64_chars(size: int) -> int:
    return (size * 4 + 2) // 3


_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_MAGIC_BYTES = base64.urlsafe_b64decode(_MAGIC)
