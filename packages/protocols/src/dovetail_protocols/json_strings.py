"""Encode strings of the model as JSON, whatever is in them.

Half a surrogate pair, which no model means and no UTF-8 can carry, becomes a question mark.
"""

import msgspec

_encode = msgspec.json.encode


def encode_json_string(text: str) -> bytes:
    """A JSON string."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(replace_surrogates(text))


def escape_json(text: str) -> str:
    """Free text as it stands inside a JSON string."""
    return encode_json_string(text)[1:-1].decode()


def replace_surrogates(text: str) -> str:
    """The text as UTF-8 can carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
