"""What the documents show is run, and what is generated is current."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")]
BLOCKS = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in sorted(PAGES)
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    )
]


@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs(code: str) -> None:
    exec(compile(code, "<document>", "exec"), {"__name__": "__document__"})


def test_the_models_page_is_current() -> None:
    run("tools/render_models_doc.py", "--check")


def test_the_demo_shows_both_calls_before_the_turn_ends() -> None:
    shown = run("examples/demo.py", "--fast")
    marks = re.findall(r"⚡ complete at token (\d+) of (\d+)", shown)
    assert len(marks) == 2
    assert all(int(token) < int(total) for token, total in marks)
    assert "reasoning → tool_call → reasoning → tool_call → text" in shown
    assert "is what the model wrote: yes" in shown


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-X", "utf8", str(ROOT / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
