"""The text of PDF files: pages, limits, and files that cannot be read."""

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from media_files import encrypted_pdf_file, pdf_file

from dovetail.prompt.pdf_text import PdfText, extract_pdf_text

PAGES = ("First page.", "Second page.", "Third page.")
FILE = pdf_file(PAGES)


def test_text_of_each_page() -> None:
    assert extract_pdf_text(FILE, 10, 1000) == PdfText(3, PAGES)


def test_limits_of_pages_and_characters() -> None:
    assert extract_pdf_text(FILE, 2, 1000) == PdfText(3, PAGES[:2], truncated=True)
    assert extract_pdf_text(FILE, 10, 5) == PdfText(3, PAGES[:1], truncated=True)


def test_encrypted_files() -> None:
    assert extract_pdf_text(encrypted_pdf_file(PAGES, ""), 10, 1000).texts == PAGES
    assert extract_pdf_text(encrypted_pdf_file(PAGES, "secret"), 10, 1000).error == "encrypted"


def test_missing_library_is_not_a_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    assert extract_pdf_text(FILE, 10, 1000) == PdfText(error="no_library")


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7", b"\0" * 100, FILE[:200], b"%PDF-1.4\n%%EOF"])
def test_damaged_files(data: bytes) -> None:
    found = extract_pdf_text(data, 10, 1000)
    assert found.error == "damaged" or found.texts == ()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(FILE) - 1), st.binary(max_size=8))
def test_changed_files_never_raise(at: int, data: bytes) -> None:
    extract_pdf_text(FILE[:at] + data + FILE[at + len(data) :], 10, 1000)


def test_process_writes_the_result() -> None:
    command = (sys.executable, "-m", "dovetail.prompt.pdf_text", "2", "1000")
    process = subprocess.run(command, input=FILE, capture_output=True, check=True)
    found = msgspec.json.decode(process.stdout, type=PdfText)
    assert found == extract_pdf_text(FILE, 2, 1000)
