"""One line of a trace: a request that is over, as JSON. `schema` says which form it has."""

from array import array
from hashlib import blake2b
from typing import Literal

import msgspec

from dovetail.telemetry.record import Inside, RequestEnd

SCHEMA = "dovetail.request/1"
BLOCK = 512  # tokens; a digest of fewer would say little and cost a line more
_DIGEST = 8  # bytes
_PERSON = b"dovetail.prefix"


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was asked and answered, as text, as far as it is kept."""

    request: str | None = None
    answer: str | None = None


class TraceLine(RequestEnd, frozen=True, kw_only=True, tag_field="schema", tag=SCHEMA):
    """A finished request, and the digests of its prompt's leading blocks.

    Each digest is of all tokens up to its block's end, under its tenant's own key: equal ones are
    equal prefixes of one tenant's prompts to one model, and nobody can guess at what they stand
    for. `payload` is there only where the operator asked for it.
    """

    event: Literal["request_end"]
    prefix_blocks: tuple[str, ...] = ()
    payload: Payload | None = None


def line_of(end: RequestEnd, inside: Inside) -> bytes:
    """The line of a request, with the end of the line."""
    fields = {name: getattr(end, name) for name in RequestEnd.__struct_fields__}
    line = TraceLine(
        event="request_end",
        prefix_blocks=prefix_blocks(inside.ids, inside.key, end.model),
        payload=_payload(inside),
        **fields,
    )
    return msgspec.json.encode(line) + b"\n"


def prefix_blocks(ids: "array[int] | None", key: bytes, model: str) -> tuple[str, ...]:
    """Digests of the whole blocks that a prompt begins with. Without a key there are none."""
    if ids is None or not key:
        return ()
    whole, size = memoryview(ids).cast("B"), BLOCK * ids.itemsize
    found, before = [], model.encode()
    for at in range(0, len(whole) - size + 1, size):
        digest = blake2b(
            before + whole[at : at + size], digest_size=_DIGEST, key=key[:64], person=_PERSON
        )
        before = digest.digest()
        found.append(before.hex())
    return tuple(found)


def _payload(inside: Inside) -> Payload | None:
    if inside.body is None and inside.answer is None:
        return None
    return Payload(_text(inside.body), _text(inside.answer))


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "replace")
