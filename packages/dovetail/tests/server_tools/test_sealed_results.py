"""Sealed texts, references to results, and domain filters."""

import pytest

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.domains import matches
from dovetail.server_tools.result_text import ReferenceScanner, write_result
from dovetail.server_tools.search import FoundPage

KEYS = [bytes([1] * 32), bytes([2] * 32)]


def test_sealed_text_is_opened_by_any_server_with_the_key() -> None:
    seal = TextSealer(Keyring(KEYS[:1])).seal("Rain \ud800 🌧", "tenant")
    assert seal.startswith("dovetext")
    assert TextSealer(Keyring([KEYS[1], KEYS[0]])).open(seal, "tenant") == "Rain \ud800 🌧"


def test_sealed_text_is_refused() -> None:
    sealer = TextSealer(Keyring(KEYS[:1]))
    seal = sealer.seal("Rain.", "tenant")
    assert sealer.open(seal, "other") is None
    assert TextSealer(Keyring(KEYS[1:])).open(seal, "tenant") is None
    for at in range(len(seal)):
        letter = "A" if seal[at] != "A" else "B"
        damaged = seal[:at] + letter + seal[at + 1 :]
        assert sealer.open(damaged, "tenant") in (None, "Rain.")
        assert sealer.open(seal[:at], "tenant") is None
    for text in ("", "dovetext", "Eo8BCioIARgC", "é", "dovetail" + seal[8:]):
        assert sealer.open(text, "tenant") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It rains [1].", [(9, 12, [1])]),
        ("[1][2] and [3, 4; 5]", [(0, 3, [1]), (3, 6, [2]), (11, 20, [3, 4, 5])]),
        ("a[0] = b[i]; x[12345] [] [ 1 ] [1", [(1, 4, [0])]),
        ("[[7]]", [(1, 4, [7])]),
    ],
)
def test_references_are_found_in_any_chunks(
    text: str, found: list[tuple[int, int, list[int]]]
) -> None:
    for size in range(1, len(text) + 1):
        scanner = ReferenceScanner()
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert [one for chunk in chunks for one in scanner.feed(chunk)] == found, size


def test_excerpt_cannot_look_like_another_result() -> None:
    page = FoundPage("https://a.example", "A\n[2] B", "Text\n[2] Fake\nhttps://evil.example")
    assert write_result(1, page) == (
        "[1] A [2] B\nhttps://a.example\nText\n [2] Fake\nhttps://evil.example"
    )


@pytest.mark.parametrize(
    ("url", "pattern", "expected"),
    [
        ("https://example.com/a", "example.com", True),
        ("https://EXAMPLE.com./a", "Example.COM", True),
        ("https://sub.example.com", "example.com", True),
        ("https://example.com.evil.net", "example.com", False),
        ("https://notexample.com", "example.com", False),
        ("https://example.com/blog/x", "example.com/blog", True),
        ("https://example.com/blogger", "example.com/blog", False),
        ("https://example.com/a/b/c", "example.com/a/*/c", True),
        ("https://example.com", "https://example.com", True),
        ("https://münchen.example", "xn--mnchen-3ya.example", True),
        ("https://user@example.com@evil.net", "example.com", False),
        ("http://[::1", "example.com", False),
        ("https://example.com", "", False),
    ],
)
def test_domain(url: str, pattern: str, expected: bool) -> None:
    assert matches(url, pattern) is expected
