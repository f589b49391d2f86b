"""Decode the content of messages and results: a string, or parts in every known form."""

from typing import Any

import msgspec

from dovetail_model import ContentBlock, DocumentBlock, ImageBlock, TextBlock
from dovetail_protocols import request_body as fields
from dovetail_protocols.citations import to_annotated_text
from dovetail_protocols.responses import wire

_IMAGES = ("input_image", "image_url", "computer_screenshot")


def decode_content(
    content: wire.Content, path: str, ignored: list[str]
) -> tuple[ContentBlock, ...]:
    """Decode content into blocks. An unsupported part is reported by its path."""
    if isinstance(content, str):
        return _text_blocks(content)
    found: list[ContentBlock] = []
    for at, part in enumerate(content or ()):
        made = _text_blocks(part) if isinstance(part, str) else _part(part)
        if made is None:
            ignored.append(f"{path}[{at}]")
        else:
            found.extend(made)
    return tuple(found)


def decode_output(value: object, path: str, ignored: list[str]) -> tuple[ContentBlock, ...]:
    """Decode a tool's result: text, parts, or any other JSON value, which becomes JSON text."""
    if value is None:
        return ()
    if isinstance(value, str):
        return _text_blocks(value)
    if isinstance(value, list) and (not value or any(map(_is_part, value))):
        return decode_content(fields.convert(value, list[wire.Part | str], path), path, ignored)
    if _is_part(value):
        return decode_content([fields.convert(value, wire.Part, path)], path, ignored)
    return _text_blocks(to_json(value))


def content_text(content: wire.Content, joint: str = "") -> str:
    """Return only the text."""
    if content is None or isinstance(content, str):
        return content or ""
    return joint.join(part if isinstance(part, str) else part.text or "" for part in content)


def as_plain_content(content: wire.Content) -> wire.Content:
    """Convert a message between agents: declared encrypted, but written in plain by the model."""
    if content is None or isinstance(content, str):
        return content
    return [
        wire.Part(text=part.encrypted_content)
        if isinstance(part, wire.Part) and part.type == "encrypted_content"
        else part
        for part in content
    ]


def to_json(value: Any) -> str:
    """Return a JSON value as text, with keys in the client's order."""
    return msgspec.json.encode(value).decode()


def _is_part(value: object) -> bool:
    """Return whether this is a content part and not an object in a tool's own list."""
    return isinstance(value, dict) and value.get("type") in (
        "input_text", "output_text", "text", "input_file", *_IMAGES,
    )  # fmt: skip


def _text_blocks(text: str) -> tuple[TextBlock, ...]:
    return (TextBlock(text),) if text else ()


def _part(part: wire.Part) -> tuple[ContentBlock, ...] | None:
    if part.text is not None or part.refusal is not None:
        text = part.text or part.refusal or ""
        return (to_annotated_text(text, part.annotations),) if text else ()
    if part.type in _IMAGES:
        return _image(part)
    if part.type == "input_file":
        return _document(part)
    return None


def _image(part: wire.Part) -> tuple[ContentBlock, ...] | None:
    address = part.image_url
    url = address.url if isinstance(address, wire.ImageUrl) else address
    if not url:
        # An uploaded file: there is no file store to read it from.
        return None
    media_type, data = _inline(url)
    if data is None:
        return (ImageBlock(url=url),)
    return (ImageBlock(media_type=media_type, data=data),)


def _document(part: wire.Part) -> tuple[ContentBlock, ...] | None:
    if part.file_data is not None:
        media_type, data = _inline(part.file_data)
        return (DocumentBlock(media_type, part.filename, data=data or part.file_data),)
    if part.file_url is not None:
        return (DocumentBlock(title=part.filename, url=part.file_url),)
    return None


def _inline(url: str) -> tuple[str, str | None]:
    """Return media type and base64 data of a data URL; None as data for any other URL."""
    if not url.startswith("data:"):
        return "", None
    head, _, data = url[len("data:") :].partition(",")
    return head.partition(";")[0], data
