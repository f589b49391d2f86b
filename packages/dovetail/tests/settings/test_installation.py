"""Optional dependencies: the install command is valid, and all packages declare them alike."""

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dovetail.server.build import open_ledger
from dovetail.settings.config import Config
from dovetail.settings.installation import install_command

PACKAGES = Path(__file__).parents[3]


def _extras(package: str) -> dict[str, list[str]]:
    project: dict[str, Any] = tomllib.loads((PACKAGES / package / "pyproject.toml").read_text())
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    return extras


def test_install_command_is_quoted_for_a_shell() -> None:
    """Without quotes, some shells treat the brackets as a pattern."""
    assert shlex.split(install_command("otel")) == ["pip", "install", "dovetail[otel]"]
    assert "'" in install_command("otel")


def test_no_extra_requires_another_package_of_ours() -> None:
    """A clone has no index to install it from, so an extra lists the dependencies themselves."""
    wanted = [one for extra in _extras("dovetail").values() for one in extra]
    assert not [one for one in wanted if one.startswith("dovetail")]
    assert _extras("dovetail")["tiktoken"] == _extras("tokenizers")["tiktoken"]


def test_store_without_its_library_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dovetail.server.build.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'dovetail\[redis\]'") as error:
        open_ledger(Config(store="redis://:secret@127.0.0.1:1"), tmp_path)
    assert "secret" not in str(error.value)
