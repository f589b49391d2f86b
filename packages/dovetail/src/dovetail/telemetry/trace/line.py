"""One line of a trace: a request that is over, as JSON. `schema` says which form it has."""

from array import array
from hashlib import blake2b
from typing import Literal

import msgspec

from dovetail.telemetry.record import RequestContents, RequestRecord

TRACE_SCHEMA = "dovetail.request/1"
PREFIX_BLOCK_TOKENS = 512  # tokens; a digest of fewer would say little and cost a line more
_DIGEST_BYTES = 8  # bytes
_DIGEST_PERSON = b"dovetail.prefix"


class TracePayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked and answered, as text, as far as it is kept."""

    request: str | None = None
    answer: str | None = None


class TraceLine(RequestRecord, frozen=True, kw_only=True, tag_field="schema", tag=TRACE_SCHEMA):
    """A finished request, and the digests of its prompt's leading blocks.

    Each digest is of all tokens up to its block's end, under its tenant's own key: equal ones are
    equal prefixes of one tenant's prompts to one model, and nobody can guess at what they stand
    for. `payload` is there only where the operator asked for it.
    """

    event: Literal["request_end"]
    prefix_blocks: tuple[str, ...] = ()
    payload: TracePayload | None = None


def encode_trace_line(record: RequestRecord, contents: RequestContents) -> bytes:
    """The line of a request, with the end of the line."""
    fields = {name: getattr(record, name) for name in RequestRecord.__struct_fields__}
    line = TraceLine(
        event="request_end",
        prefix_blocks=hash_prefix_blocks(contents.ids, contents.key, record.model),
        payload=_payload(contents),
        **fields,
    )
    return msgspec.json.encode(line) + b"\n"


def hash_prefix_blocks(ids: "array[int] | None", key: bytes, model: str) -> tuple[str, ...]:
    """Digests of the whole blocks that a prompt begins with. Without a key there are none."""
    if ids is None or not key:
        return ()
    whole, size = memoryview(ids).cast("B"), PREFIX_BLOCK_TOKENS * ids.itemsize
    found, before = [], model.encode()
    for at in range(0, len(whole) - size + 1, size):
        digest = blake2b(
            before + whole[at : at + size],
            digest_size=_DIGEST_BYTES,
            key=key[:64],
            person=_DIGEST_PERSON,
        )
        before = digest.digest()
        found.append(before.hex())
    return tuple(found)


def _payload(contents: RequestContents) -> TracePayload | None:
    if contents.body is None and contents.answer is None:
        return None
    return TracePayload(_decode_text(contents.body), _decode_text(contents.answer))


def _decode_text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")
