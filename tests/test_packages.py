"""The public names and the version of each package."""

import re
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

PACKAGES = sorted(
    path.parent for path in Path(__file__).parents[1].glob("packages/*/pyproject.toml")
)


@pytest.mark.parametrize("home", PACKAGES, ids=lambda home: home.name)
def test_dunder_all_equals_the_exports(home: Path) -> None:
    package = import_module(_name(home).replace("-", "_"))
    names = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert names == set(package.__all__)


@pytest.mark.parametrize("home", PACKAGES, ids=lambda home: home.name)
def test_changelog_begins_with_this_version(home: Path) -> None:
    text = (home / "CHANGELOG.md").read_text(encoding="utf-8")
    opened = re.findall(r"^## \[(\d[^]]*)\]", text, re.MULTILINE)[0]
    assert opened == version(_name(home))


def _name(home: Path) -> str:
    return "dovetail" if home.name == "dovetail" else f"dovetail-{home.name}"
