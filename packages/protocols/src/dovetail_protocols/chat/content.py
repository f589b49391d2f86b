"""Decode content parts. Parts that a model may not be able to see become placeholders."""

import re

from dovetail_model import ContentBlock, DocumentBlock, ImageBlock, ReasoningBlock, TextBlock
from dovetail_protocols.chat.wire import Content, Part

_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL)


def decode_content(content: Content) -> tuple[ContentBlock, ...]:
    """Decode the visible parts of a message. `decode_reasoning` decodes the others."""
    if content is None or content == "":
        return ()
    if isinstance(content, str):
        return (TextBlock(content),)
    parts = (Part(text=part) if isinstance(part, str) else part for part in content)
    blocks = (_block(part) for part in parts if part.type not in _REASONING_TYPES)
    return tuple(block for block in blocks if block is not None)


def has_omitted_part(content: Content) -> bool:
    """Return whether the model reads only a placeholder of a part, such as audio."""
    if not isinstance(content, list):
        return False
    parts = (part for part in content if isinstance(part, Part))
    return any(_placeholder(part) is not None for part in parts)


def decode_reasoning(content: Content) -> tuple[ReasoningBlock, ...]:
    """Decode reasoning in an assistant's content parts, as in Mistral's API."""
    if not isinstance(content, list):
        return ()
    parts = [part for part in content if isinstance(part, Part) and part.type in _REASONING_TYPES]
    texts = [part.thinking or part.text or "" for part in parts]
    return tuple(ReasoningBlock(text) for text in texts if text)


_REASONING_TYPES = ("thinking", "reasoning")


def _block(part: Part) -> ContentBlock | None:
    placeholder = _placeholder(part)
    if placeholder is not None:
        return TextBlock(placeholder)
    if part.type in _IMAGE_TYPES and part.image_url:
        return _image(_image_url(part.image_url) or "")
    if part.type in _FILE_TYPES and part.file:
        return _document(part.file)
    text = part.refusal if part.type == "refusal" else part.text
    return TextBlock(text) if text else None


_IMAGE_TYPES = ("image_url", "image", "input_image")
_FILE_TYPES = ("file", "input_file")


def _placeholder(part: Part) -> str | None:
    """Return the text in place of a part without data that the server can pass on."""
    if part.type in _REASONING_TYPES:
        return None
    if part.type in _IMAGE_TYPES and part.image_url:
        return None if _image_url(part.image_url) is not None else "[image omitted]"
    if part.type in _FILE_TYPES and part.file:
        if isinstance(part.file.get("file_data"), str):
            return None
        name = _file_name(part.file)
        return f"[file {name} omitted]" if name else "[file omitted]"
    text = part.refusal if part.type == "refusal" else part.text
    return None if text is not None else f"[{part.type.removeprefix('input_')} omitted]"


def _image_url(image: str | dict[str, object]) -> str | None:
    url = image if isinstance(image, str) else image.get("url")
    return url if isinstance(url, str) else None


def _image(url: str) -> ImageBlock:
    found = _DATA_URL.fullmatch(url)
    return ImageBlock(media_type=found[1], data=found[3]) if found else ImageBlock(url=url)


def _file_name(file: dict[str, object]) -> str | None:
    title = file.get("filename") or file.get("file_id")
    return title if isinstance(title, str) else None


def _document(file: dict[str, object]) -> DocumentBlock:
    """Decode an inline file."""
    data, name = str(file["file_data"]), _file_name(file)
    found = _DATA_URL.fullmatch(data)
    if found:
        return DocumentBlock(media_type=found[1], title=name, data=found[3])
    return DocumentBlock(title=name, data=data)
