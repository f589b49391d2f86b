"""What the documents show is run, and what is generated is current."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail_parsers.families import solar

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def run_page(page: Path) -> dict[str, Any]:
    """Runs the code of a page, one block after the other, and gives what it defined."""
    names: dict[str, Any] = {"__name__": "__document__"}
    for code in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(code, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path) -> None:
    run_page(page)


def test_the_family_that_the_walk_through_builds_is_the_real_one() -> None:
    assert run_page(ROOT / "docs" / "adding-a-family.md")["FAMILY"] == solar.FAMILY


def test_every_diagnostic_is_explained() -> None:
    source = ROOT / "packages" / "parsers" / "src"
    text = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    codes = set(re.findall(r'(?:diagnose|append)\(\s*"([a-z_]{5,})"', text))
    codes |= set(re.findall(r'_fail\([^"\n]*"([a-z_]+)"', text))
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    assert len(codes) > 15
    assert not [code for code in codes if f"`{code}`" not in page]


def test_the_models_page_is_current() -> None:
    run("tools/render_models_doc.py", "--check")


def test_the_table_of_settings_is_current() -> None:
    run("tools/render_settings_doc.py", "--check")


def test_the_demo_dispatches_every_call_and_keeps_every_turn() -> None:
    shown = run("-m", "dovetail", "demo", "--fast")
    assert shown.count("⚡ dispatched") == 3
    assert len(re.findall(r"exact \(grown\)", shown)) == 2
    assert "token for token, in the next prompt: yes" in shown


def run(script: str, *arguments: str) -> str:
    """What a script of this repository prints; `-m` runs a module instead."""
    name = script if script == "-m" else str(ROOT / script)
    command = [sys.executable, "-X", "utf8", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
