"""Documents of requests as text: what is extracted, what is reported, and which limits apply."""

import asyncio
from typing import Any

import msgspec
import pytest
from media_files import encrypted_pdf_file, pdf_file, png_file, to_base64

from dovetail.pipeline import documents
from dovetail.pipeline.documents import (
    DocumentReader,
    PdfProcesses,
    find_media,
    lacks_text,
    max_document_chars,
)
from dovetail.prompt.pdf_text import PdfText
from dovetail_model import (
    Block,
    ContextOverflow,
    DocumentBlock,
    Identity,
    ImageBlock,
    Request,
    TextBlock,
    ToolResultBlock,
    Turn,
)

PDF = to_base64(pdf_file(("One.", "", "Three.")))
IMAGE = ImageBlock("image/png", to_base64(png_file()))
SIZE = len(pdf_file(("One.", "", "Three.")))


def request(*blocks: Block) -> Request:
    return Request("m", (Turn("user", blocks), Turn("assistant", (TextBlock("Ok."),))))


def read(given: Request, reader: DocumentReader | None = None) -> tuple[Request, tuple[str, ...]]:
    return asyncio.run((reader or DocumentReader()).read(given))


def text_of(document: DocumentBlock, reader: DocumentReader | None = None) -> tuple[str, str]:
    found, (note,) = read(request(document), reader)
    (block,) = found.turns[0].blocks
    assert isinstance(block, DocumentBlock)
    assert block.text is not None
    return block.text, note


def test_pdf_has_a_mark_for_each_page() -> None:
    text, note = text_of(DocumentBlock("application/pdf", "a.pdf", PDF))
    assert note == "documents_extracted"
    assert text == (
        f"[document: a.pdf, application/pdf, {SIZE} bytes, 3 pages]\n"
        "[page 1]\nOne.\n[page 2: no text]\n[page 3]\nThree."
    )


def test_documents_in_tool_results_and_system_text_are_read() -> None:
    document = DocumentBlock(data=PDF)
    result = ToolResultBlock("call_1", (TextBlock("Read:"), document, IMAGE))
    given = msgspec.structs.replace(request(result), system=(document,))
    found, notes = read(given)
    assert set(notes) == {"documents_extracted", "images_replaced"}
    (changed,) = found.turns[0].blocks
    assert isinstance(changed, ToolResultBlock)
    assert changed.blocks[0] is result.blocks[0]
    assert changed.blocks[2] is IMAGE  # images stay: only the renderer describes them
    texts = [b.text for b in (changed.blocks[1], *found.system) if isinstance(b, DocumentBlock)]
    assert len(texts) == 2
    assert all(text is not None and "[page 3]" in text for text in texts)
    assert found.turns[1] is given.turns[1]
    assert find_media(found) == [IMAGE]


def test_requests_without_media_are_unchanged() -> None:
    given = request(TextBlock("Hi."), DocumentBlock(text="Given."))
    found, notes = read(given)
    assert found is given
    assert notes == ()
    assert not any(map(lacks_text, given.turns[0].blocks))
    assert lacks_text(IMAGE)
    assert lacks_text(DocumentBlock(data=PDF))
    assert not lacks_text(ToolResultBlock("call_1", (IMAGE,)))


def test_model_that_sees_images_reports_nothing() -> None:
    assert read(request(IMAGE), DocumentReader(sees_images=True))[1] == ()


@pytest.mark.parametrize("kind", ["text/csv", "application/json"])
def test_text_files_are_decoded(kind: str) -> None:
    text, note = text_of(DocumentBlock(kind, "a", to_base64("ä,b\n".encode())))
    assert text == f"[document: a, {kind}, 5 bytes]\nä,b\n"
    assert note == "documents_extracted"


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (DocumentBlock(data=to_base64(b"%PDF-1.7 x")), "the file is damaged"),
        (DocumentBlock(data="JVBERi0*"), "only from PDF and text files"),
        (
            DocumentBlock(data=to_base64(encrypted_pdf_file(("x",), "secret"))),
            "the file is encrypted",
        ),
        (DocumentBlock(url="https://a.org/b.pdf"), "it was not loaded"),
        (DocumentBlock("application/zip", data="AAAA"), "only from PDF and text files"),
        (DocumentBlock("application/pdf", data="AAAA"), "the file is damaged"),
    ],
)
def test_unreadable_documents_are_described(document: DocumentBlock, reason: str) -> None:
    text, note = text_of(document)
    assert text.startswith("[document: ")
    assert text.endswith(f"{reason}]")
    assert "no text: " in text
    assert note == "documents_unreadable"


def test_long_texts_are_truncated() -> None:
    reader = DocumentReader(max_chars=20)
    text, note = text_of(DocumentBlock("text/plain", data=to_base64(b"x" * 30)), reader)
    assert text.split("\n")[1:] == ["x" * 20, "[the rest of the document is omitted]"]
    assert note == "documents_truncated"
    long = to_base64(pdf_file(("a" * 30, "b" * 30)))
    text, note = text_of(DocumentBlock(data=long), reader)
    assert text.split("\n")[1:] == [
        "[page 1]", "a" * 11, "[the rest of the document is omitted]",
    ]  # fmt: skip
    assert note == "documents_truncated"


def test_limits_of_pages_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_PDF_PAGES", 1)
    text, note = text_of(DocumentBlock(data=PDF))
    assert "[page 1]\nOne.\n[the rest" in text
    assert note == "documents_truncated"
    monkeypatch.setattr(documents, "MAX_PDF_BYTES", 100)
    text, note = text_of(DocumentBlock(data=PDF))
    assert "larger than 100 bytes" in text


def test_limit_follows_the_context_window() -> None:
    assert max_document_chars(None, None) == documents.DEFAULT_MAX_CHARS
    assert max_document_chars(8192, 131072) == 16384
    assert max_document_chars(None, 512) == documents.MIN_MAX_CHARS


def test_slow_files_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the process ends, and the result stays the same: it is part of the prefix."""
    calls: list[int] = []

    async def extract(data: bytes, max_chars: int, tenant: str) -> PdfText:
        calls.append(len(data))
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(documents, "MAX_PDF_SECONDS", 0.01)
    reader = DocumentReader(extract=extract)
    first = text_of(DocumentBlock(data=PDF), reader)
    assert first[0].endswith("reading the file took too long]")
    assert text_of(DocumentBlock(data=PDF), reader) == first
    assert calls == [SIZE]


def test_cancelled_extraction_ends_its_process() -> None:
    async def scene() -> None:
        started: list[Any] = []
        create = asyncio.create_subprocess_exec

        async def spy(*command: Any, **more: Any) -> Any:
            sleep = "import sys, time; sys.stdin.buffer.read(); time.sleep(3600)"
            started.append(await create(command[0], "-c", sleep, **more))
            return started[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", spy)
            extraction = asyncio.create_task(PdfProcesses().extract(b"x", 10, "a"))
            while not started:  # noqa: ASYNC110 - the process has no event
                await asyncio.sleep(0.01)
            extraction.cancel()
            with pytest.raises(asyncio.CancelledError):
                await extraction
        assert started[0].returncode == -9

    asyncio.run(scene())


def test_process_that_exceeds_its_limits_is_reported() -> None:
    async def scene() -> None:
        create = asyncio.create_subprocess_exec

        def running(code: str) -> Any:
            async def spy(*command: Any, **more: Any) -> Any:
                return await create(command[0], "-c", code, **more)

            return spy

        for code, wanted in (
            ("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)", None),
            ("raise SystemExit(1)", PdfText(error="too_complex")),
            ("print('x')", PdfText(error="damaged")),
        ):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(asyncio, "create_subprocess_exec", running(code))
                assert await PdfProcesses().extract(b"x", 10, "a") == wanted

        async def fail(*command: Any, **more: Any) -> Any:
            raise OSError("no more processes")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", fail)
            assert await PdfProcesses().extract(b"x", 10, "a") == PdfText(error="too_complex")

    asyncio.run(scene())


def test_texts_are_cached_by_content() -> None:
    count = 0

    async def extract(data: bytes, max_chars: int, tenant: str) -> PdfText:
        nonlocal count
        count += 1
        return PdfText(1, (f"text {count}",))

    reader = DocumentReader(extract=extract)
    first = text_of(DocumentBlock(title="a", data=PDF), reader)
    assert text_of(DocumentBlock(title="a", data=PDF), reader) == first
    assert count == 1
    text_of(DocumentBlock(title="b", data=PDF), reader)
    assert count == 2


def test_text_of_all_documents_is_limited() -> None:
    """A file of 2 KB can have 400,000 characters, and a request many copies of it."""

    async def extract(data: bytes, max_chars: int, tenant: str) -> PdfText:
        return PdfText(1, ("word " * 60_000,))

    reader = DocumentReader(extract=extract)
    document = DocumentBlock(data=PDF)
    read(request(*[document] * 50), reader)
    with pytest.raises(ContextOverflow, match="prompt is too long: the text of its documents"):
        read(request(*[document] * 500), reader)


def test_files_of_one_tenant_do_not_delay_others() -> None:
    async def scene() -> None:
        create = asyncio.create_subprocess_exec

        async def spy(*command: Any, **more: Any) -> Any:
            code = (
                "import sys, time; slow = sys.stdin.buffer.read() == b'slow'; "
                "time.sleep(3600 * slow); print('{}')"
            )
            return await create(command[0], "-c", code, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", spy)
            processes = PdfProcesses()
            slow = [asyncio.create_task(processes.extract(b"slow", 10, "a")) for _ in range(8)]
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                assert await processes.extract(b"x", 10, "b") == PdfText()
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(scene())


def test_tenant_of_the_request_waits_for_its_own_files() -> None:
    tenants: list[str] = []

    async def extract(data: bytes, max_chars: int, tenant: str) -> PdfText:
        tenants.append(tenant)
        return PdfText()

    given = msgspec.structs.replace(request(DocumentBlock(data=PDF)), identity=Identity("team-a"))
    read(given, DocumentReader(extract=extract))
    assert tenants == ["team-a"]


def test_missing_library_is_reported() -> None:
    async def extract(data: bytes, max_chars: int, tenant: str) -> PdfText:
        return PdfText(error="no_library")

    text, note = text_of(DocumentBlock(data=PDF), DocumentReader(extract=extract))
    assert "the library pypdf is not installed" in text
    assert note == "documents_unreadable"
