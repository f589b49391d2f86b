"""The text of fetched pages: HTML without its markup, plain text, and PDF files."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser

import msgspec

from dovetail.prompt.pdf_text import PdfText
from dovetail.server_tools.search import ServerToolError
from dovetail.server_tools.web_client import Page

_HIDDEN = frozenset(("script", "style", "noscript", "template", "svg", "iframe", "object"))
_VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "source", "wbr", "embed", "area"))
_INLINE = frozenset(
    [
        "a",
        "abbr",
        "b",
        "bdi",
        "bdo",
        "cite",
        "code",
        "data",
        "em",
        "font",
        "i",
        "kbd",
        "mark",
        "q",
        "s",
        "samp",
        "small",
        "span",
        "strong",
        "sub",
        "sup",
        "time",
        "u",
        "var",
        "wbr",
    ]
)
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_BLANK_LINES = re.compile(r"\n{3,}")
_SNIFFED_BYTES = 2_048
_MAX_HTML_CHARS = 2 << 20  # longer pages take too long to parse

ExtractPdf = Callable[[bytes, int, str], Awaitable[PdfText | None]]
"""Extracts the text of a PDF file: content, maximum characters, tenant."""


class PageText(msgspec.Struct, frozen=True):
    """The title and the text of a page."""

    title: str
    text: str


async def extract_text(page: Page, max_chars: int, tenant: str, extract: ExtractPdf) -> PageText:
    """Extract the text of a page. Raises `ServerToolError` for content without text."""
    kind = page.content_type.partition(";")[0].strip().lower()
    if kind == "application/pdf" or page.body.startswith(b"%PDF-"):
        return PageText("", await _extract_pdf(page.body, max_chars, tenant, extract))
    if kind in ("text/html", "application/xhtml+xml") or (not kind and b"<html" in page.body[:512]):
        return await asyncio.to_thread(_extract_html, page, max_chars)
    if not kind or kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith("+json"):
        return PageText("", _shorten(_decode(page), max_chars))
    raise ServerToolError("unsupported_content_type")


def _extract_html(page: Page, max_chars: int) -> PageText:
    parser = _HtmlText()
    parser.feed(_decode(page)[:_MAX_HTML_CHARS])
    parser.close()
    return PageText(parser.title(), _shorten(parser.text(), max_chars))


async def _extract_pdf(body: bytes, max_chars: int, tenant: str, extract: ExtractPdf) -> str:
    found = await extract(body, max_chars, tenant)
    if found is None or found.error is not None:
        raise ServerToolError("unsupported_content_type")
    return _shorten("\n\n".join(text for text in found.texts if text), max_chars)


def _decode(page: Page) -> str:
    """Decode a page: by its header, else by its own declaration, else as UTF-8."""
    declared = _CHARSET.search(page.content_type) or _CHARSET.search(
        page.body[:_SNIFFED_BYTES].decode("latin-1")
    )
    try:
        return page.body.decode(declared[1] if declared else "utf-8", "replace")
    except LookupError:
        return page.body.decode("utf-8", "replace")


def _shorten(text: str, max_chars: int) -> str:
    text = text.strip()
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[the rest of the page is omitted]"


class _HtmlText(HTMLParser):
    """Collects the visible text of a page. Block elements start a new line."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._title: list[str] = []
        self._hidden: list[str] = []  # open elements whose text is not shown
        self._in_title = False
        self._verbatim = 0  # open elements that keep their white space

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden or tag in _HIDDEN:
            self._hidden += [] if tag in _VOID else [tag]
        elif tag == "title":
            self._in_title = True
        else:
            self._verbatim += tag == "pre"
            self._start_line(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag in self._hidden:
                while self._hidden.pop() != tag:
                    pass
        elif tag == "title":
            self._in_title = False
        else:
            self._verbatim -= tag == "pre" and self._verbatim > 0
            self._start_line(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title.append(data)
        elif not self._hidden:
            self._parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def _start_line(self, tag: str) -> None:
        if tag == "li":
            self._parts.append("\n- ")
        elif tag in ("td", "th"):
            self._parts.append(" ")
        elif tag not in _INLINE:
            self._parts.append("\n")

    def title(self) -> str:
        return " ".join("".join(self._title).split())

    def text(self) -> str:
        lines = ("".join(self._parts)).split("\n")
        return _BLANK_LINES.sub("\n\n", "\n".join(line.strip() for line in lines)).strip()
