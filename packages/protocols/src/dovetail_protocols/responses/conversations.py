"""Bodies of the Conversations API: a conversation, its metadata and its items."""

from collections.abc import Sequence
from typing import Any

import msgspec

from dovetail_model import InvalidRequest
from dovetail_protocols.body_limits import DEFAULT_LIMITS, RequestLimits, check_request
from dovetail_protocols.request_body import convert, ensure_json_object
from dovetail_protocols.responses.decode import decode

Item = dict[str, Any]

MAX_NEW_ITEMS = 20
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_KEY_CHARS = 64
_MAX_METADATA_VALUE_CHARS = 512


class ConversationBody(msgspec.Struct, frozen=True):
    """The body of a request that creates or changes a conversation, or adds items to it."""

    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


def decode_conversation(body: bytes, limits: RequestLimits = DEFAULT_LIMITS) -> ConversationBody:
    """Decode a body. Raises `InvalidRequest` for items that a request could not contain."""
    fields = msgspec.json.decode(ensure_json_object(body or b"{}"))
    decoded = convert(fields, ConversationBody)
    _check_metadata(decoded.metadata or {})
    _check_items(decoded.items or [], limits, len(body))
    return decoded


def encode_conversation(id: str, created_at: int, metadata: dict[str, str]) -> bytes:
    """Encode a conversation object."""
    return msgspec.json.encode(
        {"id": id, "object": "conversation", "created_at": created_at, "metadata": metadata}
    )


def encode_deleted_conversation(id: str) -> bytes:
    """Encode the response to a deletion."""
    return msgspec.json.encode({"id": id, "object": "conversation.deleted", "deleted": True})


def _check_items(items: Sequence[Item], limits: RequestLimits, body_bytes: int) -> None:
    if len(items) > MAX_NEW_ITEMS:
        raise InvalidRequest(
            f"`items` must have at most {MAX_NEW_ITEMS} items, got {len(items)}", param="items"
        )
    try:
        request = decode(msgspec.json.encode({"model": "-", "input": items}), {})
        check_request(request, limits, "input", body_bytes=body_bytes)
    except InvalidRequest as error:
        name = (error.param or "").replace("input", "items", 1)
        raise InvalidRequest(error.message.replace("input", "items", 1), param=name) from error


def _check_metadata(metadata: dict[str, str]) -> None:
    if len(metadata) > _MAX_METADATA_PAIRS:
        raise InvalidRequest(
            f"`metadata` must have at most {_MAX_METADATA_PAIRS} keys, got {len(metadata)}",
            param="metadata",
        )
    for key, value in metadata.items():
        if len(key) > _MAX_METADATA_KEY_CHARS or len(value) > _MAX_METADATA_VALUE_CHARS:
            raise InvalidRequest(
                f"`metadata` must have keys of at most {_MAX_METADATA_KEY_CHARS} characters and "
                f"values of at most {_MAX_METADATA_VALUE_CHARS}",
                param="metadata",
            )
