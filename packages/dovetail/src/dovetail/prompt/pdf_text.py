"""Extract the text of a PDF file in a process of its own.

Files come from clients. A damaged or hostile one can keep a reader busy or use much memory, so it
is read in a process with limits, which can also be ended. The process reads the file from its
standard input and writes the result as JSON to its standard output.
"""

import contextlib
import io
import logging
import resource
import sys
from typing import Literal

import msgspec

MAX_PDF_CPU_SECONDS = 10
MAX_PDF_MEMORY_BYTES = 1 << 30

PdfError = Literal["damaged", "encrypted", "too_complex", "no_library"]


class PdfText(msgspec.Struct, frozen=True):
    """The text of a PDF file.

    pages: Number of pages of the file.
    texts: Text of each page that was read; None for a page that could not be read.
    error: Why nothing was read.
    truncated: Whether a limit ended the reading.
    """

    pages: int = 0
    texts: tuple[str | None, ...] = ()
    error: PdfError | None = None
    truncated: bool = False


def extract_pdf_text(data: bytes, max_pages: int, max_chars: int) -> PdfText:
    """Extract the text of at most `max_pages` pages, until `max_chars` are exceeded. Never raises.

    `max_chars` is a limit of the work: the text may be longer by a page.
    """
    try:
        return _extract(data, max_pages, max_chars)
    except (MemoryError, RecursionError):
        return PdfText(error="too_complex")
    except ModuleNotFoundError as error:
        return PdfText(error="no_library" if error.name == "pypdf" else "damaged")
    except Exception:  # the reader raises errors of many types for damaged files
        return PdfText(error="damaged")


def _extract(data: bytes, max_pages: int, max_chars: int) -> PdfText:
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):  # many files can be read without a password
        return PdfText(error="encrypted")
    count = len(reader.pages)
    texts: list[str | None] = []
    chars = 0
    for at in range(min(count, max_pages)):
        if chars > max_chars:
            break
        text: str | None = None
        with contextlib.suppress(Exception):  # other pages may be intact
            text = _clean(reader.pages[at].extract_text())
        texts.append(text)
        chars += len(text or "")
    return PdfText(count, tuple(texts), truncated=len(texts) < count)


def _clean(text: str) -> str:
    """Remove white space around lines' ends, and characters that no tokenizer can encode."""
    lines = (line.rstrip() for line in text.replace("\0", "").splitlines())
    return "\n".join(lines).strip("\n").encode("utf-8", "replace").decode()


def _limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_PDF_CPU_SECONDS, MAX_PDF_CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # some systems do not have this limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_PDF_MEMORY_BYTES, MAX_PDF_MEMORY_BYTES))


def main() -> None:
    """Run the process. The arguments are the limits of `extract_pdf_text`."""
    _limit_process()
    logging.disable(logging.CRITICAL)  # the reader logs defects of files
    max_pages, max_chars = int(sys.argv[1]), int(sys.argv[2])
    found = extract_pdf_text(sys.stdin.buffer.read(), max_pages, max_chars)
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
