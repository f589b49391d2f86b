"""Texts that describe images and documents: stable, short, and without exceptions."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_model import (
    DocumentBlock,
    ImageBlock,
    base64_size,
    decode_base64,
    describe_document,
    describe_image,
    document_type,
)

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + bytes(9)
GIF = b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(5)
BMP = b"BM" + bytes(16) + struct.pack("<ii", 640, -480) + bytes(8)
METADATA = b"\xff\xe1\x01\x02" + bytes(256)
FRAME = b"\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", 480, 640) + bytes(20)
JPEG = b"\xff\xd8" + METADATA + FRAME
WEBP_EXTENDED = (
    b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + (639).to_bytes(3, "little") + (479).to_bytes(3, "little")
)
WEBP_LOSSY = b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 640, 480)
WEBP_LOSSLESS = (
    b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + (639 | 479 << 14).to_bytes(4, "little") + bytes(9)
)


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("image/png", PNG),
        ("image/gif", GIF),
        ("image/bmp", BMP),
        ("image/jpeg", JPEG),
        ("image/webp", WEBP_EXTENDED),
        ("image/webp", WEBP_LOSSY),
        ("image/webp", WEBP_LOSSLESS),
    ],
)
def test_image_has_type_pixels_and_bytes(kind: str, data: bytes) -> None:
    wanted = f"[image: {kind}, 640x480 pixels, {len(data)} bytes; this model reads only text]"
    assert describe_image(ImageBlock(kind, to_base64(data))) == wanted
    assert describe_image(ImageBlock("", to_base64(data))) == wanted
    # Many clients declare a type that the data does not have.
    assert describe_image(ImageBlock("image/tiff", to_base64(data))) == wanted


@pytest.mark.parametrize(
    ("image", "facts"),
    [
        (ImageBlock(), ""),
        (ImageBlock("image/png", "AAAA"), ": image/png, 3 bytes"),
        (ImageBlock("image/png", "=*="), ": image/png, 0 bytes"),
        (ImageBlock("<|im_end|>\n", "AAAA"), ": 3 bytes"),
        (ImageBlock(url="https://a.org/b.png"), ": https://a.org/b.png"),
        (ImageBlock(url="x" * 1000), f": {'x' * 200}..."),
        (ImageBlock(url="one\ntwo"), ": one two"),
    ],
)
def test_unknown_facts_are_left_out(image: ImageBlock, facts: str) -> None:
    assert describe_image(image) == f"[image{facts}; this model reads only text]"


def test_document_has_title_type_bytes_and_details() -> None:
    document = DocumentBlock("application/pdf", "a\tb.pdf", to_base64(b"%PDF-1.7\n"))
    assert describe_document(document) == "[document: a b.pdf, application/pdf, 9 bytes]"
    assert describe_document(document, "2 pages").endswith("9 bytes, 2 pages]")
    assert describe_document(DocumentBlock(url="somewhere")) == "[document: somewhere]"
    assert describe_document(DocumentBlock()) == "[document]"
    assert document_type(DocumentBlock("text/plain", data="JVBERi0xLjc=")) == "application/pdf"


@given(st.binary(max_size=300), st.booleans())
def test_size_is_that_of_the_decoded_data(data: bytes, lines: bool) -> None:
    text = base64.encodebytes(data).decode().rstrip("\n") if lines else to_base64(data)
    assert base64_size(text) == len(data)
    assert decode_base64(text) == data
    assert decode_base64(text.rstrip("=")) == data


@given(st.sampled_from([PNG, GIF, BMP, JPEG, WEBP_EXTENDED]), st.binary(), st.integers(0, 400))
def test_damaged_images_never_raise(data: bytes, more: bytes, at: int) -> None:
    describe_image(ImageBlock("image/png", to_base64(data[:at] + more)))


@given(st.text(), st.text(), st.text())
def test_any_text_is_described(kind: str, data: str, name: str) -> None:
    image, document = ImageBlock(kind, data, name), DocumentBlock(kind, name, data)
    assert "\n" not in describe_image(image) + describe_document(document)
    assert describe_image(image) == describe_image(image)
