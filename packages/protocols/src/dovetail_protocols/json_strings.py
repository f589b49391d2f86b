"""Encode arbitrary strings of model output as JSON.

A lone surrogate, which UTF-8 cannot encode, becomes a question mark.
"""

import msgspec

_encode = msgspec.json.encode


def encode_json_string(text: str) -> bytes:
    """Encode a text as a JSON string."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(replace_surrogates(text))


def escape_json(text: str) -> str:
    """Escape a text for use inside a JSON string."""
    return encode_json_string(text)[1:-1].decode()


def replace_surrogates(text: str) -> str:
    """Replace surrogates, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
