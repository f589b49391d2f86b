"""The vocabulary check: its findings in identifiers and in prose, and its exceptions."""

from pathlib import Path

import pytest
from tools.check_vocabulary import (
    ROOT,
    duplicate_classes,
    retired_classes,
    retired_identifiers,
    retired_phrases,
    unused_exceptions,
)


@pytest.mark.parametrize(
    "source",
    [
        "told_ids = []",
        "def f(told): ...",
        "import re as told",
        "with open('x') as told: ...",
        "try: ...\nexcept OSError as told: ...",
        "match 1:\n    case int() as told: ...",
        "match []:\n    case [*told]: ...",
        "match {}:\n    case {**told}: ...",
        "replace(record, told=1)",
    ],
)
def test_retired_word_is_found_wherever_a_name_is_defined(tmp_path: Path, source: str) -> None:
    _write(tmp_path / "packages/a/src/a/module.py", source)
    (finding,) = retired_identifiers(tmp_path)
    assert finding.startswith("packages/a/src/a/module.py:")
    assert finding.endswith("instead of 'told'")


def test_only_whole_words_are_retired(tmp_path: Path) -> None:
    _write(tmp_path / "packages/a/src/a/module.py", "untold = toldness = cutoff = 1")
    assert list(retired_identifiers(tmp_path)) == []


def test_retired_class_is_found_in_tests_and_in_functions(tmp_path: Path) -> None:
    _write(tmp_path / "packages/a/tests/test_a.py", "def f():\n    class _Visit: ...")
    assert list(retired_classes(tmp_path)) == [
        "packages/a/tests/test_a.py:2: class _Visit: use RateLimitLease"
    ]


def test_class_defined_twice_is_found(tmp_path: Path) -> None:
    for module in ("one", "two", "wire"):  # modules of wire types may repeat a name
        _write(tmp_path / f"packages/a/src/a/{module}.py", "class Same: ...\nclass _Private: ...")
    _write(tmp_path / "packages/b/src/b/one.py", "class Same: ...")  # of another distribution
    assert list(duplicate_classes(tmp_path)) == ["class Same is defined in a.one and a.two"]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/page.md", "The server tells you."),
        ("README.md", "First line\n\nNobody is believed."),
        ("packages/a/src/a/module.py", '"""Hear nothing."""'),
        ("packages/a/src/a/module.py", "x = 1  # it goes on"),
        ("packages/a/src/a/module.py", 'raise ValueError(f"at least {1} is wanted")'),
        ("packages/a/tests/test_a.py", 'def test_a():\n    """What is asked."""'),
    ],
)
def test_retired_phrase_is_found_in_prose(tmp_path: Path, path: str, text: str) -> None:
    _write(tmp_path / path, text)
    findings = list(retired_phrases(tmp_path))
    assert findings
    assert all(finding.startswith(f"{path}:") for finding in findings)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/page.md", "Send `ask`.\n\n```text\nit says\n```\n"),
        ("packages/a/src/a/module.py", '"""Return what `told` holds."""'),
        ("packages/a/tests/test_a.py", 'PROMPT = "Tell me the weather, as I asked."'),
        ("docs/page.md", "The untold story of answerable questions is essential."),
    ],
)
def test_code_and_test_data_are_not_prose(tmp_path: Path, path: str, text: str) -> None:
    _write(tmp_path / path, text)
    assert list(retired_phrases(tmp_path)) == []


def test_every_exception_is_in_use() -> None:
    assert not unused_exceptions(ROOT)


def _write(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
