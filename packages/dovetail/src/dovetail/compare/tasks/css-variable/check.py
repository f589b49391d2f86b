"""Check the rules of the style sheet."""

import re
import sys
from pathlib import Path

EXPECTED = {
    ":root": ["--accent: #0a58ca", "--text: #222222"],
    "body": ["background: #fff", "color: #222222"],
    "a": ["color: var(--accent)"],
    "a:hover": ["border-bottom: 1px solid var(--accent)", "color: var(--accent)"],
    ".button": ["background: var(--accent)", "color: #fff"],
    ".note": ["border-color: #0a58cab0"],
}


def find_problem() -> str | None:
    text = re.sub(r"/\*.*?\*/", "", Path("style.css").read_text("utf-8"), flags=re.DOTALL)
    found = {}
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        rules = (" ".join(rule.split()) for rule in body.split(";"))
        found[selector.strip()] = sorted(
            re.sub(r"\s*:\s*", ": ", one, count=1) for one in rules if one
        )
    found[":root"] = [rule.lower() for rule in found.get(":root", [])]
    for selector in [*EXPECTED, *found]:
        if found.get(selector) != EXPECTED.get(selector):
            return f"{selector} has {found.get(selector)}, expected {EXPECTED.get(selector)}"
    return None


if __name__ == "__main__":
    try:
        problem = find_problem()
    except BaseException as error:  # the workspace's code may raise anything, even SystemExit
        problem = f"{type(error).__name__}: {error}"
    print(problem or "solved")
    sys.exit(1 if problem else 0)
