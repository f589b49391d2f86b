"""The package as others see it: its public names and its version."""

import re
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import dovetail_protocols

PACKAGE = Path(__file__).resolve().parent.parent


def test_all_is_exactly_what_is_exported() -> None:
    names = {
        name
        for name, value in vars(dovetail_protocols).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert names == set(dovetail_protocols.__all__)


def test_the_changelog_opens_with_this_version() -> None:
    text = (PACKAGE / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## \[(\d[^]]*)\]", text, re.MULTILINE)[0] == version("dovetail-protocols")
