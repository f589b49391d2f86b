"""Strings of the model as JSON, whatever is in them.

Half a surrogate pair, which no model means and no UTF-8 can carry, becomes a question mark.
"""

import msgspec

_encode = msgspec.json.encode


def quoted(text: str) -> bytes:
    """A JSON string."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(sound(text))


def escaped(text: str) -> str:
    """Free text as it stands inside a JSON string."""
    return quoted(text)[1:-1].decode()


def sound(text: str) -> str:
    """The text as UTF-8 can carry it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
