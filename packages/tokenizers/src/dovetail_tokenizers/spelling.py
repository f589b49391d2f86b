"""Convert token names in a `tokenizer.json` to bytes.

Vocabularies write bytes as text in two ways: byte-level vocabularies map each byte to a printable
character; SentencePiece vocabularies write a space as `▁` and a byte as `<0x0A>`. The definition's
decoder specifies which one applies.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SpellingReader = Callable[[str, int], bytes]


def byte_alphabet() -> dict[str, int]:
    """Return the byte-level alphabet: printable bytes map to themselves, others are shifted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + n): byte for n, byte in enumerate(others)})
    return alphabet


def spelling_reader(definition: Mapping[str, Any], added: Set[int]) -> SpellingReader:
    """Return the function that converts a token's name and id to its bytes."""
    steps = list(_steps(definition.get("decoder")))
    if any(step["type"] == "ByteLevel" for step in steps):
        return _byte_level(added)
    return _sentence_piece(steps)


def _byte_level(added: Set[int]) -> SpellingReader:
    alphabet = byte_alphabet()

    def read(name: str, id: int) -> bytes:
        # Added tokens are spelled literally.
        if id in added or not all(character in alphabet for character in name):
            return name.encode("utf-8", "replace")
        return bytes([alphabet[character] for character in name])

    return read


def _sentence_piece(steps: list[Mapping[str, Any]]) -> SpellingReader:
    replacements = [pair for step in steps for pair in _replacement(step)]
    has_bytes = any(step["type"] == "ByteFallback" for step in steps)

    def read(name: str, id: int) -> bytes:
        byte = BYTE_TOKEN.fullmatch(name) if has_bytes else None
        if byte:
            return bytes.fromhex(byte[1])
        for old, new in replacements:
            name = name.replace(old, new)
        return name.encode("utf-8", "replace")

    return read


def _replacement(step: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if step["type"] == "Metaspace":
        yield step.get("replacement", "▁"), " "
    elif step["type"] == "Replace" and "String" in step["pattern"]:
        yield step["pattern"]["String"], step["content"]


def _steps(decoder: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder
