"""Responses with web searches: one text of several turns, with annotations.

This API shows neither the calls nor the results of searches. Its message has one text, so the texts
of the model's turns are joined, and the places of references are places in the joined text.
"""

from dovetail_model import (
    Citation,
    CitedTextBlock,
    Message,
    Request,
    ServerToolResult,
    TextBlock,
)
from dovetail_protocols.chat.wire import AnnotationOut, UrlCitationOut
from dovetail_protocols.citations import to_citation
from dovetail_protocols.json_strings import replace_surrogates

_SEPARATOR = "\n\n"


def has_search(request: Request) -> bool:
    """Return whether a search can run: by this server, or by an upstream."""
    passed = request.client.fields.get("web_search_options")
    return bool(request.server_tools or request.hosted_tools) or passed is not None


class JoinedText:
    """Tracks the joined text of a response."""

    __slots__ = ("_block_start", "_ended", "_length", "_separate")

    def __init__(self) -> None:
        self._length = 0
        self._block_start = 0
        self._ended = True  # whether the next text starts a block
        self._separate = False

    def add(self, text: str) -> str:
        """Add text. Returns it with the separator that must precede it."""
        if self._ended and text:
            separator = _SEPARATOR if self._separate and self._length else ""
            self._length += len(separator)
            self._block_start = self._length
            self._ended = self._separate = False
            text_with_separator = separator + text
        else:
            text_with_separator = text
        self._length += len(text)
        return text_with_separator

    def end_block(self) -> None:
        self._ended = True

    def end_turn(self) -> None:
        """End the block at the result of a search: the next text is one of another turn."""
        self._ended = self._separate = True

    def annotate(self, citation: Citation) -> AnnotationOut:
        """Encode a reference in the current block."""
        start = self._block_start
        return AnnotationOut(
            UrlCitationOut(
                url=citation.url,
                title=replace_surrogates(citation.title),
                start_index=start + citation.start,
                end_index=start + citation.end,
            )
        )


def read_annotations(value: object, first: int, shift: int) -> list[Citation]:
    """Read references of an upstream server to web pages, in the current block.

    `first` is the number of the first one, `shift` the place of the block in the joined text.
    """
    given = value if isinstance(value, list) else []
    found = [one.get("url_citation") for one in given if isinstance(one, dict)]
    pages = [one for one in found if isinstance(one, dict)]
    return [
        to_citation({"type": "url_citation", **page}, number, -shift)
        for number, page in enumerate(pages, start=first)
    ]


def join_texts(message: Message) -> tuple[str, list[AnnotationOut]]:
    """Return the text of a message with its annotations, as a stream would have sent them."""
    joined, parts = JoinedText(), []
    annotations: list[AnnotationOut] = []
    for block in message.response_blocks():
        if isinstance(block, ServerToolResult):
            joined.end_turn()
            continue
        joined.end_block()
        if isinstance(block, TextBlock):
            parts.append(joined.add(block.text))
        if isinstance(block, CitedTextBlock):
            annotations += [joined.annotate(citation) for citation in block.citations]
    return "".join(parts), annotations
