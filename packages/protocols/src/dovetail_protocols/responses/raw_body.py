"""Join bodies with stored conversations, on the level of bytes.

The codec then decodes the joined body as if the client had sent all of it, and its cache contains
the earlier part. Items are stored as the inside of a JSON array, without its brackets.
"""

import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from dovetail_model import InvalidRequest
from dovetail_protocols.request_body import ensure_json_object

_PREVIOUS_FIELD = b'"previous_response_id"'
_CONVERSATION_FIELD = b'"conversation"'
_REFERENCE = b'"item_reference"'
# A reference may consist of an id alone. Each pattern starts with bytes that are fast to find, and
# the rest of a match is bounded: a search holds the interpreter lock until it ends.
_UNTYPED = re.compile(rb'"type"\s{0,999}+:\s{0,999}+null')
_LONE_ID = re.compile(rb'"id"\s{0,999}+:\s{0,999}+"(?:[^"\\]|\\.){0,999}+"\s{0,999}+\}')
_MINIMAL_FIELDS = ("model", "stream")
_ESCAPED = re.compile(rb"\\u00[567]")  # an escaped letter or underscore: any name may contain one
_NULL = Raw(b"null")
_TRIGGER = b'{"type":"compaction_trigger"}'
_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.encode
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def previous_response_id(body: bytes) -> str | None:
    """Return the id of the response that a body continues. The codec rejects invalid values."""
    if not _may_contain(body, _PREVIOUS_FIELD):
        return None
    return _text(_fields(body).get("previous_response_id", _NULL)) or None


def conversation_id(body: bytes) -> str | None:
    """Return the id of the conversation that a body belongs to, if it is valid."""
    if not _may_contain(body, _CONVERSATION_FIELD):
        return None
    return named_conversation(msgspec.json.decode(_fields(body).get("conversation", _NULL)))


def named_conversation(value: object) -> str | None:
    """Return the id in the value of the field `conversation`: a string, or an object with an id."""
    id = value.get("id") if isinstance(value, dict) else value
    return id if isinstance(id, str) and id else None


def input_items(body: bytes) -> bytes:
    """Return the items of a body's own input. A text is one message."""
    given = _fields(body).get("input", _NULL)
    inside = bytes(given)
    if inside.startswith(b"["):
        return inside[1:-1].strip()
    text = _text(given)
    if text is None:
        return b""
    part = {"type": "input_text", "text": text}
    return _encode({"type": "message", "role": "user", "content": [part]})


def minimal_body(body: bytes) -> bytes:
    """Return the body without long fields: enough to encode an error in the right form."""
    short = {name: raw for name, raw in _fields(body).items() if name in _MINIMAL_FIELDS}
    return _encode(short | {"input": Raw(b'"-"')})


def item_references(body: bytes) -> list[str]:
    """Return the ids of items that a body references instead of sending them."""
    if not (_may_contain(body, _REFERENCE) or _may_have_untyped_reference(body)):
        return []
    items = map(_reference, _items(b"[%b]" % input_items(body)))
    return [id for id in items if id is not None]


def resolve_references(body: bytes, found: Mapping[str, bytes]) -> bytes:
    """Replace item references in a body by the items."""
    fields = _fields(body)
    items = _items(b"[%b]" % input_items(body))
    known = (found.get(_reference(raw) or "", bytes(raw)) for raw in items)
    return _encode(fields | {"input": Raw(b"[%b]" % b",".join(known))})


def items_by_id(inside: bytes) -> dict[str, bytes]:
    """Return stored items by id."""
    all_ = ((msgspec.json.decode(raw).get("id"), bytes(raw)) for raw in _items(b"[%b]" % inside))
    return {id: raw for id, raw in all_ if isinstance(id, str)}


_RESULT_TYPES = ("function_call_output", "custom_tool_call_output")


def unmatched_result_ids(body: bytes) -> list[str]:
    """Return the call ids of tool results in a body's own input whose calls it does not have."""
    if not _may_contain(body, b"_call_output"):
        return []
    calls: set[str] = set()
    results: list[str] = []
    for raw in _items(b"[%b]" % input_items(body)):
        match msgspec.json.decode(raw):
            case {"type": str(kind), "call_id": str(id)} if kind in _RESULT_TYPES:
                results.append(id)
            case {"call_id": str(id)}:
                calls.add(id)
    return [id for id in results if id not in calls]


def _may_contain(body: bytes, name: bytes) -> bool:
    """Return whether a body may contain this name, without decoding it."""
    return name in body or _ESCAPED.search(body) is not None


def _may_have_untyped_reference(body: bytes) -> bool:
    """Return whether a body may contain a reference without a `type`."""
    if _UNTYPED.search(body) is not None:
        return True
    places = (found.start() for found in _LONE_ID.finditer(body))
    return any(body[max(0, at - 256) : at].rstrip().endswith(b"{") for at in places)


def _reference(raw: Raw) -> str | None:
    """Return the id of an item reference, else None. The codec rejects malformed JSON."""
    try:
        item = msgspec.json.decode(raw)
    except _NOT_JSON:
        return None
    if not isinstance(item, dict) or item.get("type") not in ("item_reference", None):
        return None
    if "role" in item:
        return None  # a message: its type is optional
    id = item.get("id")
    return id if isinstance(id, str) else None


def prepend_history(body: bytes, history: Iterable[bytes]) -> bytes:
    """Return the body with the items of its history before its own.

    `input` comes first, so that each body of a conversation starts with the bytes of the previous.
    """
    fields = _fields(body)
    given = bytes(fields.pop("input", _NULL))
    if not given.startswith((b"[", b'"', b"n")):
        return body  # the codec reports the error
    items = b",".join(filter(None, (*history, input_items(body))))
    return b'{"input":[%b]%b' % (items, _encode_rest(fields))


def compaction_body(body: bytes) -> bytes:
    """Convert the body of a compaction to that of a response, with a trigger item."""
    fields = _fields(body)
    fields.pop("input", None)
    for name in ("stream", "background"):
        fields.pop(name, None)
    items = b",".join(filter(None, (input_items(body), _TRIGGER)))
    return b'{"input":[%b]%b' % (items, _encode_rest(fields | {"store": Raw(b"false")}))


def with_default_model(body: bytes, name: str) -> bytes:
    """Return the body, with this model if it names none."""
    fields = _fields(body)
    if bytes(fields.get("model", _NULL)) != b"null":
        return body
    return _encode(fields | {"model": name})


def user_messages(inside: bytes) -> tuple[Raw, ...]:
    """Return the user messages among these items."""
    return tuple(raw for raw in _items(b"[%b]" % inside) if _is_user_message(raw))


def _is_user_message(raw: Raw) -> bool:
    item = msgspec.json.decode(raw)
    if not isinstance(item, dict) or item.get("role") != "user":
        return False
    return bool(item.get("type", "message") == "message")


def split_response(response: bytes) -> tuple[dict[str, Raw], bytes]:
    """Split a response object into itself without output, and its output items."""
    fields = _decode(response)
    output = bytes(fields.pop("output", Raw(b"[]")))
    return fields, output[1:-1]


def join_response(head: bytes, output: bytes) -> bytes:
    """Join what `split_response` separated."""
    return b'%b,"output":[%b]}' % (head[:-1], output)


def _encode_rest(fields: dict[str, Raw]) -> bytes:
    """Encode the other fields, to follow the first."""
    return b"," + _encode(fields)[1:] if fields else b"}"


def _fields(body: bytes) -> dict[str, Raw]:
    try:
        return _decode(body)
    except _NOT_JSON:
        return _decode(ensure_json_object(body))


def _text(raw: Raw) -> str | None:
    """Return the value if it is text."""
    try:
        found = msgspec.json.decode(raw)
    except _NOT_JSON as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}") from error
    return found if isinstance(found, str) else None
