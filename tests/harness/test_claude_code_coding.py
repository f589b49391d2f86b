"""The real Claude Code at a coding task: tools run, files are there, turns are exact."""

import subprocess
from pathlib import Path

import pytest
from claude_code import behind_the_system_text, claude
from claude_coding import COMMIT, TASK, coding, project
from exactness import Row, Tell, was_exact
from sandbox import Sandbox
from stage import QWEN3_5, QWEN3_CODER, Stage, stage

from dovetail.engines.scripted.generation_log import RecordedGeneration

#: A line for each turn; the one with Read and Bash is the subagent's.
TOOLS = """
    Bash Bash
    Write
    Write Write
    Bash Read
    Edit Edit
    Agent
    Read Bash
    Bash
"""


def test_claude_code_codes(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    where = stage(tmp_path / "stage", QWEN3_CODER)
    with where.server(coding(QWEN3_CODER, place.work)) as server:
        tell(_codes(where, place, server.url))


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_claude_code_codes_and_goes_on(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    where = stage(tmp_path / "stage", QWEN3_CODER)
    before, after = _codes_and_commits(where, place)
    assert behind_the_system_text(before, after)
    # Begin anew: the conversation, the subagent's, and the second prompt if Claude Code tells the
    # status of the repository anew, inside of its system text: 2.1.197 does when it resumes.
    tell(was_exact(where.heard, new=2 + (_system_text(before) != _system_text(after))))


@pytest.mark.harness
@pytest.mark.timeout(300)
def test_claude_code_codes_with_thoughts_let_go(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    """This model's template opens each thought, and lets thoughts before the last prompt go."""
    where = stage(tmp_path / "stage", QWEN3_5)
    before, after = _codes_and_commits(where, place)
    for one, thought in ((before, True), (after, False)):
        assert "I write the table." in one.text
        assert ("I write it in one go." in one.text) is thought
    tell(was_exact(where.heard, new=3))


def _codes(where: Stage, place: Sandbox, url: str) -> list[Row]:
    """The task, worked on to its end."""
    told = claude(place, url, TASK)
    assert told.result == "The table is written, and its tests pass: ✓"
    assert told.failed == []
    assert told.tools == TOOLS.split()
    assert _files(place.work) == project()
    assert max(len(one.output) for one in where.heard) > 4_000
    return was_exact(where.heard, new=2)  # the conversation's first, and the subagent's


def _codes_and_commits(
    where: Stage, place: Sandbox
) -> tuple[RecordedGeneration, RecordedGeneration]:
    """The task and a second prompt. Gives the requests on both sides of it."""
    with where.server(coding(where.family, place.work)) as server:
        done = len(_codes(where, place, server.url))
        assert claude(place, server.url, COMMIT, "--continue").result == "Committed."
    assert _git(place, "log", "--format=%s") == "Zahlwörter\nbegin\n"
    assert _git(place, "status", "--short") == ""
    return where.heard[done - 1], where.heard[done]


def _system_text(one: RecordedGeneration) -> str:
    return one.text.partition("<|im_end|>")[0]


def _files(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes().decode() for path in paths}


def _git(place: Sandbox, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=place.work, capture_output=True, text=True, check=True
    )
    return done.stdout
