"""Replace the documents of a request by their text, for models that read only text.

Only the copy of a request that is rendered is changed: turns are recognized by what the client
sent. The text of a document becomes part of the prompt's prefix, so it depends only on the document
and on fixed limits. The exception is a file that takes too long to read: it may be read after a
restart.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b

import msgspec

from dovetail.pipeline.concurrency import run_in_thread
from dovetail.pipeline.tenant_slots import TenantSlots
from dovetail.prompt.pdf_text import PdfText
from dovetail.storage.lru import LruCache
from dovetail_model import (
    Block,
    ContextOverflow,
    DocumentBlock,
    ImageBlock,
    Request,
    ToolResultBlock,
    Turn,
    base64_size,
    decode_base64,
    describe_document,
    document_type,
)

MAX_PDF_BYTES = 32 << 20
MAX_PDF_PAGES = 100
MAX_PDF_SECONDS = 20.0  # of one file; its process also has a limit of CPU time
MAX_REQUEST_SECONDS = 60.0  # of all files of a request that are not cached
DEFAULT_MAX_CHARS = 400_000  # of the text of one document
MIN_MAX_CHARS = 4_000
MAX_REQUEST_CHARS = 16 << 20  # of all documents of a request; far more than a context window
_MAX_CACHED_CHARS = 16 << 20
_MAX_PROCESSES = 3  # at a time
_MAX_TENANT_PROCESSES = 2
_TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml"}
)
_FAILURES = {
    "damaged": "the file is damaged",
    "encrypted": "the file is encrypted",
    "too_complex": "the file is too complex",
    "no_library": "this server reads no PDF files because the library pypdf is not installed",
}

IMAGES_REPLACED = "images_replaced"
DOCUMENTS_EXTRACTED = "documents_extracted"
DOCUMENTS_TRUNCATED = "documents_truncated"
DOCUMENTS_UNREADABLE = "documents_unreadable"

ExtractPdf = Callable[[bytes, int, str], Awaitable[PdfText | None]]


def max_document_chars(*context_lengths: int | None) -> int:
    """Return the limit of a document's text: about half of the context window."""
    known = [length for length in context_lengths if length]
    return min(DEFAULT_MAX_CHARS, max(MIN_MAX_CHARS, 2 * min(known, default=DEFAULT_MAX_CHARS)))


class DocumentText(msgspec.Struct, frozen=True):
    """The text that stands for a document, and the note that reports it."""

    text: str
    note: str


class DocumentReader:
    """Reads the documents of requests for one model.

    `max_chars` limits the text of one document. `sees_images`: the model reads images, so that they
    are not replaced.
    """

    def __init__(
        self,
        max_chars: int = DEFAULT_MAX_CHARS,
        *,
        sees_images: bool = False,
        extract: "ExtractPdf | None" = None,
    ) -> None:
        self._max_chars = max_chars
        self._sees_images = sees_images
        self._extract = extract or PdfProcesses().extract
        self._texts: LruCache[bytes, DocumentText] = LruCache(
            max_size=_MAX_CACHED_CHARS, size_of=_text_chars
        )

    async def read(
        self, request: Request, *, in_turns: bool = True
    ) -> tuple[Request, tuple[str, ...]]:
        """Return the request with the text of its documents, and notes on what was replaced.

        `in_turns`: whether its turns may have documents. If not, only its system text is searched.
        Raises `ContextOverflow` if the text is certainly too long: small files can have much text.
        """
        notes: dict[str, None] = {}
        texts: dict[int, str] = {}
        deadline = time.monotonic() + MAX_REQUEST_SECONDS
        tenant, chars = request.identity.tenant, 0
        for block in find_media(request) if in_turns else _media(request.system):
            if isinstance(block, DocumentBlock):
                found = await self._read(block, deadline, tenant)
                chars += len(found.text)
                if chars > MAX_REQUEST_CHARS:
                    raise _too_long()
                texts[id(block)] = found.text
                notes[found.note] = None
            elif not self._sees_images:
                notes[IMAGES_REPLACED] = None
        return (_with_texts(request, texts) if texts else request), tuple(notes)

    async def _read(self, document: DocumentBlock, deadline: float, tenant: str) -> DocumentText:
        size = len(document.data or "")
        digest = await run_in_thread(size, lambda: _digest(document))
        known = self._texts.get(digest)
        if known is None:
            known = await self._convert(document, deadline, tenant)
            self._texts.put(digest, known)
        return known

    async def _convert(self, document: DocumentBlock, deadline: float, tenant: str) -> DocumentText:
        kind = document_type(document)
        if document.data is None:
            return _unreadable(document, "it was not loaded")
        if kind == "application/pdf":
            return await self._convert_pdf(document, document.data, deadline, tenant)
        if kind.startswith("text/") or kind in _TEXT_TYPES:
            return await self._convert_text(document, document.data)
        return _unreadable(document, "text is extracted only from PDF and text files")

    async def _convert_text(self, document: DocumentBlock, data: str) -> DocumentText:
        content = await run_in_thread(len(data), lambda: decode_base64(data))
        return self._build(describe_document(document), content.decode("utf-8", "replace"), False)

    async def _convert_pdf(
        self, document: DocumentBlock, data: str, deadline: float, tenant: str
    ) -> DocumentText:
        if base64_size(data) > MAX_PDF_BYTES:
            return _unreadable(document, f"the file is larger than {MAX_PDF_BYTES} bytes")
        content = await run_in_thread(len(data), lambda: decode_base64(data))
        found = None
        with suppress(TimeoutError):
            async with asyncio.timeout(min(MAX_PDF_SECONDS, deadline - time.monotonic())):
                found = await self._extract(content, self._max_chars, tenant)
        if found is None:
            return _unreadable(document, "reading the file took too long")
        if found.error is not None:
            return _unreadable(document, _FAILURES[found.error])
        pages = f"{found.pages} page{'' if found.pages == 1 else 's'}"
        return self._build(
            describe_document(document, pages), "\n".join(_pages(found)), found.truncated
        )

    def _build(self, head: str, text: str, truncated: bool) -> DocumentText:
        if truncated or len(text) > self._max_chars:
            text = f"{text[: self._max_chars]}\n[the rest of the document is omitted]"
            return DocumentText(f"{head}\n{text}", DOCUMENTS_TRUNCATED)
        return DocumentText(f"{head}\n{text}", DOCUMENTS_EXTRACTED)


class PdfProcesses:
    """Extracts the text of PDF files in child processes, few at a time.

    A tenant whose files take long does not delay the files of other tenants.
    """

    def __init__(self) -> None:
        self._slots = TenantSlots(_MAX_PROCESSES, _MAX_TENANT_PROCESSES)

    async def extract(self, data: bytes, max_chars: int, tenant: str) -> PdfText | None:
        """Extract the text of a file. Returns None if the process was ended by its time limit."""
        async with self._slots.hold(tenant):
            return await _run_process(data, max_chars)


async def _run_process(data: bytes, max_chars: int) -> PdfText | None:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    command = (sys.executable, "-m", "dovetail.prompt.pdf_text", str(MAX_PDF_PAGES), str(max_chars))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=null
        )
    except OSError:
        return PdfText(error="too_complex")  # no resources for a process
    try:
        output, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    code = process.returncode or 0
    if code != 0:
        return None if code < 0 else PdfText(error="too_complex")
    try:
        return msgspec.json.decode(output, type=PdfText)
    except msgspec.MsgspecError:
        return PdfText(error="damaged")


def find_media(request: Request) -> list[ImageBlock | DocumentBlock]:
    """Return the images of a request and its documents without text."""
    found = _media(request.system)
    for turn in request.turns:
        found += _media(turn.blocks)
    return found


def _media(blocks: Iterable[Block]) -> list[ImageBlock | DocumentBlock]:
    found: list[ImageBlock | DocumentBlock] = []
    for block in blocks:
        if isinstance(block, ImageBlock):
            found.append(block)
        elif isinstance(block, DocumentBlock):
            found += [block] if block.text is None else []
        elif isinstance(block, ToolResultBlock):
            found += _media(block.blocks)
    return found


def lacks_text(block: Block) -> bool:
    """Return whether a block of a turn is an image, or a document without text."""
    return not isinstance(block, ToolResultBlock) and bool(_media((block,)))


def _with_texts(request: Request, texts: Mapping[int, str]) -> Request:
    """Return the request with these texts of its documents. Other turns are the same objects."""
    turns = tuple(
        Turn(turn.role, _replace_blocks(turn.blocks, texts)) if _media(turn.blocks) else turn
        for turn in request.turns
    )
    system = _replace_blocks(request.system, texts)
    return msgspec.structs.replace(request, system=system, turns=turns)


def _replace_blocks(blocks: Iterable[Block], texts: Mapping[int, str]) -> tuple[Block, ...]:
    return tuple(_replace_block(block, texts) for block in blocks)


def _replace_block(block: Block, texts: Mapping[int, str]) -> Block:
    if isinstance(block, DocumentBlock):
        return _replace_document(block, texts)
    if isinstance(block, ToolResultBlock):
        inner = tuple(
            _replace_document(one, texts) if isinstance(one, DocumentBlock) else one
            for one in block.blocks
        )
        return msgspec.structs.replace(block, blocks=inner)
    return block


def _replace_document(block: DocumentBlock, texts: Mapping[int, str]) -> DocumentBlock:
    text = texts.get(id(block))
    return block if text is None else msgspec.structs.replace(block, text=text)


def _pages(found: PdfText) -> Iterator[str]:
    for number, text in enumerate(found.texts, 1):
        if text is None:
            yield f"[page {number}: unreadable]"
        else:
            yield f"[page {number}]\n{text}" if text.strip() else f"[page {number}: no text]"


def _unreadable(document: DocumentBlock, reason: str) -> DocumentText:
    return DocumentText(describe_document(document, f"no text: {reason}"), DOCUMENTS_UNREADABLE)


def _too_long() -> ContextOverflow:
    return ContextOverflow(
        "prompt is too long: the text of its documents has more than "
        f"{MAX_REQUEST_CHARS} characters",
        param="messages",
    )


def _text_chars(found: DocumentText) -> int:
    return len(found.text) + 200


def _digest(document: DocumentBlock) -> bytes:
    """Compute a digest of everything that the text depends on."""
    return blake2b(msgspec.msgpack.encode(document), digest_size=16).digest()
