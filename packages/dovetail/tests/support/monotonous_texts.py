"""Texts that repeat themselves for a reason, and loops of a model that do not.

All texts are generated with seeds, so that every run has the same ones.
"""

import base64
import json
import random
from collections.abc import Iterator

_WORDS = (
    *("the", "build", "server", "reads", "every", "file", "of", "a", "project", "and"),
    *("compares", "it", "with", "an", "earlier", "version", "before", "tests", "start"),
    *("so", "that", "only", "changed", "modules", "run", "again", "while", "others", "wait"),
)
_LICENSE = """\
# Copyright (c) 2026 The Example Authors.
#
# Permission to use, copy, modify and distribute this example for any purpose is granted,
# provided that this notice appears in all copies. The example is provided as it is, without
# warranty of any kind.
"""


def _sentence(random_words: random.Random, words: int) -> str:
    return " ".join(random_words.choice(_WORDS) for _ in range(words)).capitalize() + "."


def _paragraph(seed: int, words: int) -> str:
    return _sentence(random.Random(seed), words) + "\n\n"


def purposeful_texts() -> Iterator[tuple[str, str]]:
    """Yield names and texts of output that must not be mistaken for a loop."""
    rng = random.Random(23)
    rows = "".join(f"| {n} | {rng.choice(('ok', 'failed'))} | {n % 7} ms |\n" for n in range(400))
    yield "table", "| n | result | time |\n|---|---|---|\n" + rows
    yield "table of equal rows", "| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 150
    yield "wide separator", "|" + "-" * 120 + "|\n" + ("|" + " " * 120 + "|\n") * 40
    yield (
        "log",
        "".join(
            f"2026-11-16T10:{n // 60:02}:{n % 60:02}Z INFO worker={n % 4} request served\n"
            for n in range(600)
        ),
    )
    yield "log of equal lines", "INFO health check passed\n" * 250
    yield "base64", base64.encodebytes(rng.randbytes(9000)).decode()
    yield "base64 of zeros", base64.encodebytes(bytes(2200)).decode()
    yield (
        "hex dump of zeros",
        "".join(f"{n * 16:08x}  {'00 ' * 16} |................|\n" for n in range(120)),
    )
    yield (
        "code with repetition",
        "".join(
            f"    def test_case_{n}(self):\n        self.assertEqual(parse({n}), {n})\n\n"
            for n in range(300)
        ),
    )
    yield "equal cases of code", "    assert queue.pop() is None\n" * 180
    yield "assembly", "    nop\n" * 450
    yield "ascii art", "\n".join("".join(rng.choice(" .:*#") for _ in range(70)) for _ in range(60))
    yield "ascii frame", "+" + "=" * 76 + "+\n" + ("|" + " " * 76 + "|\n") * 60
    yield "chess boards", ("+---" * 8 + "+\n" + "|   " * 8 + "|\n") * 24
    yield "json of equal objects", json.dumps([{"x": 0, "y": 0, "set": False}] * 110)
    yield "json of zeros", json.dumps([[0] * 28] * 28)
    yield "csv of zeros", ("0," * 19 + "0\n") * 48
    yield "csv of records", "".join(f"{n},Berlin,0.0,0.0,0.0,active\n" for n in range(700))
    yield "markdown separators", "\n---\n".join(_sentence(rng, 12) for _ in range(120))
    yield "only separators", "---\n" * 400
    yield (
        "license headers",
        "".join(f"{_LICENSE}\nVALUE_{n} = {n}\n" if n % 2 else _LICENSE for n in range(24)),
    )
    yield "equal license headers", _LICENSE * 20
    yield "run of equals", "=" * 9000
    yield "run of spaces", "x" + " " * 9000 + "y"
    yield "run of newlines", "\n" * 1800
    yield "nested lists", "".join("  " * (n % 9) + "- item\n" for n in range(700))
    yield "song", (_paragraph(5, 40) + "La la la la la.\n" * 4) * 12
    yield "svg path", "<path d='M0 0 L10 10 Z' fill='none'/>\n" * 90
    yield (
        "sql inserts",
        "".join(f"INSERT INTO t (id, name) VALUES ({n}, NULL);\n" for n in range(500)),
    )
    yield "yaml of defaults", "- name: job\n  retries: 0\n  enabled: true\n" * 110


def loops() -> Iterator[tuple[str, str]]:
    """Yield names and texts of output that repeats itself without end."""
    start = _paragraph(1, 60)
    yield "one token", start + "!" * 200_000
    yield "two tokens", start + "ha " * 12_000
    yield "a sentence", start + "Let me check the file again. " * 2_500
    yield "fifty words", start + _paragraph(2, 50) * 400
    yield "a paragraph of 400 words", start + _paragraph(3, 400) * 30
    yield "paragraphs of 1400 words", start + (_paragraph(4, 900) + _paragraph(5, 500)) * 12
    yield "a paragraph with a long run", start + (_paragraph(6, 80) + "= " * 300) * 40
    call = (
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/main.py"}}\n</tool_call>\n'
    )
    yield "call blocks", "I read the file.\n" + call * 600
    yield "lines of a list", start + "- Check the tests\n- Check the build\n" * 1_500
