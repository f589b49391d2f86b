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


def decode_reasoning(content: Content) -> tuple[ReasoningBlock, ...]:
    """Decode reasoning in an assistant's content parts, as in Mistral's API."""
    if not isinstance(content, list):
        return ()
    parts = [part for part in content if isinstance(part, Part) and part.type in _REASONING_TYPES]
    texts = [part.thinking or part.text or "" for part in parts]
    return tuple(ReasoningBlock(text) for text in texts if text)


_REASONING_TYPES = ("thinking", "reasoning")


def _block(part: Part) -> ContentBlock | None:
    if part.type in ("image_url", "image", "input_image") and part.image_url:
        return _image(part.image_url)
    if part.type in ("file", "input_file") and part.file:
        return _document(part.file)
    text = part.refusal if part.type == "refusal" else part.text
    if text is not None:
        return TextBlock(text) if text else None
    return TextBlock(f"[{part.type.removeprefix('input_')} omitted]")


def _image(image: str | dict[str, object]) -> ContentBlock:
    url = image if isinstance(image, str) else image.get("url")
    if not isinstance(url, str):
        return TextBlock("[image omitted]")
    found = _DATA_URL.fullmatch(url)
    return ImageBlock(media_type=found[1], data=found[3]) if found else ImageBlock(url=url)


def _document(file: dict[str, object]) -> ContentBlock:
    """Decode an inline file. An uploaded file is represented by its name."""
    data, title = file.get("file_data"), file.get("filename") or file.get("file_id")
    name = title if isinstance(title, str) else None
    if not isinstance(data, str):
        return TextBlock(f"[file {name} omitted]" if name else "[file omitted]")
    found = _DATA_URL.fullmatch(data)
    if found:
        return DocumentBlock(media_type=found[1], title=name, data=found[3])
    return DocumentBlock(title=name, data=data)
