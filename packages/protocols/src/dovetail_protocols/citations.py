"""Annotations of visible text: references to web pages and files, for all APIs.

Servers annotate the parts of a message, which Dovetail joins into one text. The places of the
references are therefore shifted by the start of their part.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from dovetail_model import Citation, CitedTextBlock, TextBlock

_PLACES = ("start_index", "end_index")
Annotation = Mapping[str, Any]


def to_citation(annotation: Annotation, number: int, shift: int = 0) -> Citation:
    """Convert an annotation. Only those of web pages have a URL."""
    moved = {
        name: annotation[name] + shift for name in _PLACES if isinstance(annotation.get(name), int)
    }
    url = annotation.get("url") if annotation.get("type") == "url_citation" else None
    return Citation(
        number,
        url if isinstance(url, str) else "",
        str(annotation.get("title") or ""),
        "",
        moved.get("start_index", 0),
        moved.get("end_index", 0),
        {**annotation, **moved},
    )


def find_annotations(value: object) -> list[Annotation]:
    """Return the annotations of a part, as far as they are objects."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def to_annotated_text(text: str, value: object) -> TextBlock:
    """Return a text of a history with its annotations, if it has any."""
    found = find_annotations(value)
    if not found:
        return TextBlock(text)
    return CitedTextBlock(
        text, citations=tuple(to_citation(one, at) for at, one in enumerate(found, start=1))
    )


def passed_annotations(citations: Iterable[Citation]) -> list[Annotation]:
    """Return the annotations of a text as a client of the Responses API sent them."""
    return [one.annotation for one in citations if one.annotation is not None]
