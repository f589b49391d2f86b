"""What the documents show is run, and what is generated is current."""

import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail_parsers.families import FAMILIES, solar

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]
PAGES += [*ROOT.glob("examples/*.md"), *ROOT.glob("deploy/*.md")]
LINKED_PAGES = [*PAGES, *ROOT.glob("packages/*/CHANGELOG.md")]
LINK = re.compile(r"\]\(([^()\s:]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.M)
SHELL_BLOCK = re.compile(r"^<!-- run -->\n```sh\n(.*?)^```", re.M | re.S)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
INLINE_CODE = re.compile(r"`([^`\n]+)`")
FILE_NAME = re.compile(r"[\w./-]+\.py\b")
TEST_NAME = re.compile(r"\btest_\w+")
DOTTED_NAME = re.compile(r"(?<![\w./-])dovetail\w*(?:\.\w+)+")
CLASS_MEMBER = re.compile(r"(?<![\w.])([A-Z]\w*[a-z]\w*)\.([a-z_]\w+)")

EXAMPLE_FILES = {"my_module.py", "hello.py"}  # written by the reader
#: Dotted names that are not Python: an entry-point group, files, a schema, a span attribute.
OTHER_NAMES = {
    "dovetail.diagnostics",
    "dovetail.families",
    "dovetail.request",
    "dovetail.request.id",
    "dovetail.service",
    "dovetail.toml",
}


def run_page(page: Path) -> dict[str, Any]:
    """Run the code blocks of a page in order, and return the names that they define."""
    names: dict[str, Any] = {"__name__": "__document__"}
    for code in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(code, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_page_runs(page: Path) -> None:
    run_page(page)


@pytest.mark.parametrize(
    "page",
    sorted(page for page in PAGES if SHELL_BLOCK.search(page.read_text(encoding="utf-8"))),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_shell_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """Runs the blocks after `<!-- run -->` comments in order, in one empty folder."""
    script = "\n".join(SHELL_BLOCK.findall(page.read_text(encoding="utf-8")))
    folder = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as the documentation site makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in HEADING.findall(text)}


def slug(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@pytest.mark.parametrize("page", sorted(LINKED_PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_resolve(page: Path) -> None:
    dead = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in headings(target)):
            dead.append(link)
    assert not dead


def test_tutorial_builds_the_real_family() -> None:
    assert run_page(ROOT / "docs" / "adding-a-family.md")["FAMILY"] == solar.FAMILY


def test_guided_decoding_lists_every_family_with_tool_calls() -> None:
    page = (ROOT / "docs" / "guided-decoding.md").read_text(encoding="utf-8")
    table = page.partition("| notation of calls | families |")[2].partition("\n\n")[0]
    cells = [row.split("|")[2] for row in table.strip().splitlines()[1:]]
    listed = [name.strip() for cell in cells for name in cell.split(",")]
    assert sorted(listed) == sorted(family.name for family in FAMILIES if family.tools)


def inline_code() -> Iterator[tuple[str, str]]:
    """Yield every page with each inline code of its prose."""
    for page in sorted(PAGES):
        for code in INLINE_CODE.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            yield page.relative_to(ROOT).as_posix(), code


def source_files() -> list[Path]:
    command = ["git", "ls-files", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split() if (ROOT / name).exists()]


def is_defined(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_files_that_pages_name_exist() -> None:
    paths = [f"/{path.relative_to(ROOT).as_posix()}" for path in source_files()]
    named = {(page, name) for page, code in inline_code() for name in FILE_NAME.findall(code)}
    assert len(named) > 20
    assert not [
        f"{page}: {name}"
        for page, name in sorted(named)
        if name not in EXAMPLE_FILES and not any(path.endswith(f"/{name}") for path in paths)
    ]


def test_tests_that_pages_name_exist() -> None:
    files = source_files()
    known = {path.stem for path in files}
    for path in files:
        known.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
    named = {(page, name) for page, code in inline_code() for name in TEST_NAME.findall(code)}
    assert len(named) > 5
    assert not [f"{page}: {name}" for page, name in sorted(named) if name not in known]


def test_modules_and_attributes_that_pages_name_exist() -> None:
    named = {
        (page, name)
        for page, code in inline_code()
        for name in DOTTED_NAME.findall(code)
        if name not in OTHER_NAMES and not name.endswith(".py")
    }
    assert len(named) > 50
    assert not [f"{page}: {name}" for page, name in sorted(named) if not is_defined(name)]


def test_members_of_classes_that_pages_name_exist() -> None:
    """A member counts as defined if the module of its class mentions it."""
    modules = [path.read_text(encoding="utf-8") for path in source_files()]
    named = {
        (page, owner, member)
        for page, code in inline_code()
        for owner, member in CLASS_MEMBER.findall(code)
    }
    assert len(named) > 5
    assert not [
        f"{page}: {owner}.{member}"
        for page, owner, member in sorted(named)
        if not any(
            re.search(rf"^class {owner}\b", text, re.M) and re.search(rf"\b{member}\b", text)
            for text in modules
        )
    ]


def test_every_diagnostic_is_explained() -> None:
    source = ROOT / "packages" / "parsers" / "src"
    text = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    codes = set(re.findall(r'(?:diagnose|append)\(\s*"([a-z_]{5,})"', text))
    codes |= set(re.findall(r'_fail\([^"\n]*"([a-z_]+)"', text))
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    assert len(codes) > 15
    assert not [code for code in codes if f"`{code}`" not in page]


def test_models_page_is_current() -> None:
    run("tools/render_models_doc.py", "--check")


def test_settings_table_is_current() -> None:
    run("tools/render_settings_doc.py", "--check")


def test_field_tables_are_current() -> None:
    run("tools/render_fields_doc.py", "--check")


def test_demo_dispatches_every_call_and_preserves_every_turn() -> None:
    shown = run("-m", "dovetail", "demo", "--fast")
    assert shown.count("⚡ dispatched") == 3
    assert shown.count("tokens: exact") == 2
    assert re.search(r"http://127\.0\.0\.1:\d+/ui", shown)
    assert "in the next prompt, token for token: yes" in shown


def run(script: str, *arguments: str) -> str:
    """Run a script of this repository, and return its output; `-m` runs a module instead."""
    name = script if script == "-m" else str(ROOT / script)
    command = [sys.executable, "-X", "utf8", name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
