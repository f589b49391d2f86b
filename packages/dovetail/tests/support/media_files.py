"""Small images and PDF files for tests."""

import base64
import io
import struct
import zlib
from collections.abc import Sequence

from pypdf import PdfReader, PdfWriter


def png_file(width: int = 3, height: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(3 * width)) * height)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def pdf_file(pages: Sequence[str]) -> bytes:
    """Build a file with a line of text on each page, without a reference table."""
    kids = " ".join(f"{10 + 2 * at} 0 R" for at in range(len(pages)))
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for at, text in enumerate(pages):
        content = f"BT /F1 12 Tf 20 700 Td ({text}) Tj ET".encode()
        objects[10 + 2 * at] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (11 + 2 * at)
        )
        objects[11 + 2 * at] = b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content)
    return _write_objects(objects)


def _write_objects(objects: dict[int, bytes]) -> bytes:
    written = b"%PDF-1.4\n"
    offsets: dict[int, int] = {}
    for number, body in objects.items():
        offsets[number] = len(written)
        written += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = b"".join(b"%d 1\n%010d 00000 n \n" % (number, at) for number, at in offsets.items())
    size = max(objects) + 1
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, len(written))
    return written + b"xref\n0 1\n0000000000 65535 f \n" + table + trailer


def encrypted_pdf_file(pages: Sequence[str], password: str) -> bytes:
    writer = PdfWriter()
    for page in PdfReader(io.BytesIO(pdf_file(pages))).pages:
        writer.add_page(page)
    writer.encrypt(password, "owner", algorithm="AES-256")
    target = io.BytesIO()
    writer.write(target)
    return target.getvalue()


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
