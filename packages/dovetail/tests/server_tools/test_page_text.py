"""The text of fetched pages."""

import asyncio
import time

import pytest
from media_files import pdf_file
from server_tools_fixture import extract_pdf

from dovetail.server_tools.page_text import PageText, extract_text
from dovetail.server_tools.search import ServerToolError
from dovetail.server_tools.web_client import Page


def extract(body: bytes | str, content_type: str = "text/html", limit: int = 1000) -> PageText:
    data = body.encode() if isinstance(body, str) else body
    page = Page("https://example.com", content_type, data)
    return asyncio.run(extract_text(page, limit, "", extract_pdf))


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>One</p><p>Two <b>and</b> a half</p>", "One\n\nTwo and a half"),
        ("a<script>if (a < b) x()</script><style>p {}</style>b", "ab"),
        ("<ul><li>One<li>Two</ul>", "- One\n- Two"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "a  b"),
        ("&lt;tag&gt; &amp; caf&eacute;", "<tag> & café"),
        ("<pre>a\n  b</pre>", "a\nb"),
        ("<svg><title>hidden</title><path></svg>shown", "shown"),
        ("line\n   folded   text", "line folded text"),
        ("<p>unclosed <b>tags", "unclosed tags"),
        ("<![foo[a]]>shown", "shown"),
        ("a < b && b > c", "a < b && b > c"),
        ("<a title='1 > 0' href=\"x>y\">link</a>", "link"),
        ("<a title='>unclosed", "unclosed"),
        ("a<!-- <p>hidden</p> -->b", "ab"),
        ("<svg><svg></svg><p>hidden</p></svg>shown<svg/>, too", "shown, too"),
        ("<SCRIPT>'<p>'</scripted></SCRIPT >shown", "shown"),
        ("<textarea><b></textarea>", "<b>"),
        ("&#65;&#x42;&#99999999999;", "AB&#99999999999;"),
    ],
)
def test_html(html: str, text: str) -> None:
    assert extract(f"<html><head><title>T</title></head><body>{html}").text == text


def test_title_of_html() -> None:
    found = extract("<title> A\n title </title><p>Text")
    assert found == PageText("A title", "Text")


def test_charset_of_header_and_of_page() -> None:
    assert extract("é".encode("latin-1"), "text/plain; charset=iso-8859-1").text == "é"
    page = b'<meta charset="iso-8859-1"><p>\xe9'
    assert extract(page).text == "é"
    assert extract("é", "text/plain; charset=unknown-charset").text == "é"


@pytest.mark.parametrize("charset", ["idna", "punycode", "utf-7", "rot13", "unicode_escape", "hex"])
def test_codec_that_is_no_charset_is_not_used(charset: str) -> None:
    assert extract("a..b é", f"text/plain; charset={charset}").text == "a..b é"


@pytest.mark.parametrize(
    "unit",
    [
        "<", "<a", "<a href='", "<!--", "<![foo[", "</", "<svg><b>", "</b>", "<a =", "&#9", "& ",
        "<p>", "<script>", "<title>", "<a b='c>", "<pre>\n", "<textarea><", "=' ", "\n ", "<x =",
    ],
)  # fmt: skip
def test_time_is_linear_in_the_length_of_a_page(unit: str) -> None:
    def measure(chars: int) -> float:
        page = (unit * chars)[:chars]
        began = time.process_time()
        extract(page)
        extract("<a " + page)
        extract("<svg>" + page)
        return time.process_time() - began

    assert measure(1 << 19) < 3.0  # quadratic time would be minutes


def test_long_text_is_truncated() -> None:
    text = extract("x" * 50, "text/plain", limit=10).text
    assert text == "x" * 10 + "\n[the rest of the page is omitted]"


def test_pdf() -> None:
    assert "Hello" in extract(pdf_file(["Hello"]), "application/pdf").text


@pytest.mark.parametrize("kind", ["image/png", "application/zip", "application/octet-stream"])
def test_content_without_text_is_an_error(kind: str) -> None:
    with pytest.raises(ServerToolError, match="unsupported_content_type"):
        extract(b"\x00\x01", kind)


def test_damaged_pdf_is_an_error() -> None:
    with pytest.raises(ServerToolError, match="unsupported_content_type"):
        extract(b"%PDF-1.4 damaged", "application/pdf")
