"""The project that the model builds in Codex: a phrase book, its tests, and the patches."""

import subprocess
import sys
from pathlib import Path

COUNT = 160
GREETING = "Grüß Gott №{} — 你好，世界 · नमस्ते · 'שלום' 👋🏽"
"""In scripts whose characters tokens cut in the middle."""
PHRASES = (
    "PHRASES = {\n"
    + "".join(f'    {number}: "{GREETING.format(number)}",\n' for number in range(COUNT))
    + "}\n"
)
"""Long on purpose: thousands of tokens in one call."""

DRAFT = '''"""A phrase book, für alle."""

from phrasebook.phrases import PHRASES


def greet(number: int) -> str:
    """A greeting with its number."""
    return PHRASES[number]
'''
SHOUTS = DRAFT.replace("return PHRASES[number]\n", 'return PHRASES[number] + "!"\n')
TAKES_LEAVE = SHOUTS + '\n\ndef leave() -> str:\n    return "Auf Wiedersehen 👋"\n'
TESTS = """import unittest

import phrasebook


class Greets(unittest.TestCase):
    def test_all(self) -> None:
        for number in range(160):  # all of them
            self.assertIn(f"№{number} ", phrasebook.greet(number))

    def test_it_is_loud(self) -> None:
        self.assertTrue(phrasebook.greet(7).endswith("👋🏽!"))


if __name__ == "__main__":
    unittest.main()
"""
RUN_TESTS = "python3 -B -m unittest test_phrasebook"


def adds(path: str, text: str) -> str:
    """Return a patch that adds a file."""
    lines = "".join(f"+{line}\n" for line in text.splitlines())
    return f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"


def updates(path: str, *lines: str) -> str:
    """Return a patch that changes a file. The first character of each line is its operation."""
    changed = "".join(f"{line}\n" for line in lines)
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n{changed}*** End Patch\n"


SHOUT = updates(
    "phrasebook/__init__.py",
    '     """A greeting with its number."""',
    "-    return PHRASES[number]",
    '+    return PHRASES[number] + "!"',
)
TAKE_LEAVE = updates(
    "phrasebook/__init__.py",
    '     return PHRASES[number] + "!"',
    "+",
    "+",
    "+def leave() -> str:",
    '+    return "Auf Wiedersehen 👋"',
)


def check_project(work: Path, module: str, tests: str = TESTS) -> None:
    """Check that the files are what the model wrote, to the byte, and that the tests pass."""
    expected = {
        "phrasebook/__init__.py": module,
        "phrasebook/phrases.py": PHRASES,
        "test_phrasebook.py": tests,
    }
    files = (path for path in work.rglob("*.py") if path.is_file())
    found = {str(path.relative_to(work)): path.read_bytes() for path in files}
    assert found == {path: text.encode() for path, text in expected.items()}
    ran = subprocess.run(
        [sys.executable, "-B", "-m", "unittest", "test_phrasebook"],
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
