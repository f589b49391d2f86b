"""The text of fetched pages: HTML without its markup, plain text, and PDF files."""

import asyncio
import codecs
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from dovetail.prompt.pdf_text import PdfText
from dovetail.server_tools.html_text import extract_html
from dovetail.server_tools.search import ServerToolError
from dovetail.server_tools.web_client import Page

_HTML_TYPES = ("text/html", "application/xhtml+xml")
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/javascript")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
# Character sets of pages. Other codecs are not for text, or slow, such as punycode.
_TEXT_CODEC = re.compile(
    r"ascii|utf-(8|16|32)|iso8859|iso2022|cp\d|windows|latin|koi8|mac|shift_jis|euc|gb|big5|johab|tis",
    re.IGNORECASE,
)
_SNIFFED_BYTES = 2_048
# Of its own, so that large pages do not delay other work in threads.
_executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="page-text")

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
    if kind in _HTML_TYPES or (not kind and b"<html" in page.body[:512]):
        extract_page = _extract_html
    elif not kind or kind in _TEXT_TYPES or kind.startswith("text/") or kind.endswith("+json"):
        extract_page = _extract_plain
    else:
        raise ServerToolError("unsupported_content_type")
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_executor, extract_page, page, max_chars)


def _extract_html(page: Page, max_chars: int) -> PageText:
    title, text = extract_html(_decode(page))
    return PageText(title, _shorten(text, max_chars))


def _extract_plain(page: Page, max_chars: int) -> PageText:
    return PageText("", _shorten(_decode(page), max_chars))


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
    return page.body.decode(_find_codec(declared[1]) if declared else "utf-8", "replace")


def _find_codec(name: str) -> str:
    """Return the codec of a character set; UTF-8 if there is none for text."""
    try:
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        return "utf-8"
    return found if _TEXT_CODEC.match(found) else "utf-8"


def _shorten(text: str, max_chars: int) -> str:
    text = text.strip()
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[the rest of the page is omitted]"
