"""A coding task for Claude Code: the model's scripted output, and the resulting project.

The model writes a table of German numbers with one mistake in it, tests it, fixes it, has it
reviewed by a subagent and tests again. All effects of its tools are real.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from server_setup import Family, call, text, think, turns

from dovetail_model import OutputBlock

TASK = "Write me the German words for the numbers up to 399, with tests. Grüße!"
COMMIT = "Now commit it, please."
#: Only the subagent gets this prompt, by which the script matches its requests.
REVIEW = "Look over README.md and say whether a reader understands it."

_ONES = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
_ONE_AND = {1: "ein"}
_TEENS = {10: "zehn", 11: "elf", 12: "zwölf", 16: "sechzehn", 17: "siebzehn"}
_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")


def german(number: int) -> str:
    """Return the word for a number below 1,000."""
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return f"{_ONES[hundreds].removesuffix('s')}hundert" + (german(rest) if rest else "")
    tens, ones = divmod(number, 10)
    if tens == 0:
        return _ONES[ones]
    if tens == 1:
        return _TEENS.get(number, f"{_ONES[ones]}zehn")
    return (f"{_ONE_AND.get(ones, _ONES[ones])}und" if ones else "") + _TENS[tens - 2]


WRONG, RIGHT = '    16: "sechszehn",\n', '    16: "sechzehn",\n'
TABLE = "".join(
    [
        '"""Zahlwörter — von null bis dreihundertneunundneunzig. 🧮"""\n\nZAHLEN = {\n',
        *(f'    {number}: "{german(number)}",\n' for number in range(400)),
        "}\n",
    ]
)
TESTS = """import unittest

from zahlen import ZAHLEN


class Zahlen(unittest.TestCase):
    def test_irregular(self):
        found = [ZAHLEN[n] for n in (1, 16, 17, 21, 30, 101)]
        said = "eins sechzehn siebzehn einundzwanzig dreißig einhunderteins"
        self.assertEqual(said.split(), found)

    def test_all(self):
        self.assertEqual(list(range(400)), list(ZAHLEN))
"""
README = """# Zahlwörter

`ZAHLEN[12]` ist "zwölf" & `ZAHLEN[30]` ist "dreißig" → naïve façade, 日本語, 🎉, a\\tb.
A call ends with </parameter>, a thought with </think>: here they are text.
"""
SOLD = README.replace("# Zahlwörter", "# Zahlwörter 0–399")


def coding_script(family: Family, work: Path) -> dict[str, Any]:
    """Return the script of the session in this folder."""
    return {
        "rules": [
            {
                # In the main conversation the prompt is an argument of the call.
                "when": {"regex": f"(?<!<parameter=prompt>\n){re.escape(REVIEW)}"},
                "turns": turns(family, *_review(work)),
            },
            {"when": {"text": f"user\n{COMMIT}"}, "turns": turns(family, *_commit())},
        ],
        "turns": turns(family, *_look(work), *_write(work), *_fix(work)),
        "end": "fail",
    }


def project_files() -> Mapping[str, str]:
    """Return every file of the finished project, by name."""
    return {"zahlen.py": TABLE, "test_zahlen.py": TESTS, "README.md": SOLD, "ergebnis.txt": "OK\n"}


def _look(work: Path) -> Sequence[Sequence[OutputBlock]]:
    return (
        # Claude Code removes `cd <here> &&` when it sends the call back.
        [
            think("First I look at what is there."),
            _bash(f"cd {work} && ls -a", "List files"),
            think("And at what Python there is."),
            _bash("python3 -c 'print(\"grüße\")'", "Try Python"),
        ],
    )


def _write(work: Path) -> Sequence[Sequence[OutputBlock]]:
    return (
        [
            think("The table is long: I write it in one go."),
            text("I write the table."),
            call("Write", file_path=str(work / "zahlen.py"), content=TABLE.replace(RIGHT, WRONG)),
        ],
        # Text after a call: Claude Code sends the calls back after all of it.
        [
            think("Tests and a README do not depend on each other."),
            text("Now the tests."),
            call("Write", file_path=str(work / "test_zahlen.py"), content=TESTS),
            think("The README has odd signs."),
            text("And the README."),
            call("Write", content=README, file_path=str(work / "README.md")),
        ],
    )


def _fix(work: Path) -> Sequence[Sequence[OutputBlock]]:
    table, readme = str(work / "zahlen.py"), str(work / "README.md")
    test = "python3 -B -m unittest 2>&1 | tail -1"
    return (
        [
            think("Do they pass?"),
            _bash(test, "Run the tests"),
            call("Read", file_path=table, offset=18, limit=5),
        ],
        [
            think("It is *sechzehn*, without the s."),
            call("Edit", file_path=table, old_string=WRONG.strip(), new_string=RIGHT.strip()),
            think("The title can say how far it goes."),
            call(
                "Edit", file_path=readme, old_string="# Zahlwörter", new_string="# Zahlwörter 0–399"
            ),
        ],
        [
            think("Somebody else should read it."),
            _agent(REVIEW),
        ],
        [
            think("It is understood. Once more the tests."),
            _bash(f"{test} | tee ergebnis.txt", "Run the tests again"),
        ],
        [think("They pass."), text("The table is written, and its tests pass: ✓")],
    )


def _review(work: Path) -> Sequence[Sequence[OutputBlock]]:
    return (
        [
            think("I read it."),
            call("Read", file_path=str(work / "README.md")),
            think("How long is the table?"),
            _bash("wc -l zahlen.py", "Count lines"),
        ],
        [think("Short, and clear."), text("A reader understands it.")],
    )


def _commit() -> Sequence[Sequence[OutputBlock]]:
    name = "git -c user.name=t -c user.email=t@localhost"
    return (
        [
            think("What has changed?"),
            _bash("git status --short", "Show the status"),
            think("I take all of it."),
            _bash(f"git add -A && {name} commit -qm 'Zahlwörter' && git log --oneline", "Commit"),
        ],
        [think("It is in."), text("Committed.")],
    )


def _bash(command: str, description: str) -> OutputBlock:
    return call("Bash", command=command, description=description)


def _agent(prompt: str) -> OutputBlock:
    """A subagent that runs in the foreground."""
    return call(
        "Agent",
        description="Review it",
        prompt=prompt,
        subagent_type="general-purpose",
        run_in_background=False,
    )
