"""Sessions of the real Claude Code that go on on another server.

What a server knows of a session is in its store; what it needs to open the seals that the client
brings back is its key. Both outlive it, or the key alone, or neither.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from claude_code import claude, hide
from exactness import Tell, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, Stage, call, say, stage, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
SUMMARY: Sequence[OutputBlock] = [think("Both are there."), say("Two files: ä and ö.")]
JOINED: Sequence[Sequence[OutputBlock]] = (
    [think("Now I join them."), call("Bash", command="cat out/a out/b", description="Join")],
    [think("That is all."), say("eins zwei")],
)


def test_claude_code_resumes_with_the_store(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    where = _resumed(place, tmp_path)
    tell(was_exact(where.heard, new=1, cold=[2]))


def test_claude_code_resumes_with_the_key(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    where = _resumed(place, tmp_path, "turns.sqlite*")
    resumed = where.heard[2].text
    for said in (_wrote(place.work), SUMMARY):
        assert f"assistant\n{FAMILY.spell(*said)}<|im_end|>" in resumed
    # The seals hold so much that nothing is lost: each carries the end of the turn before it, too.
    tell(was_exact(where.heard, new=1, cold=[2]))


def test_claude_code_resumes_with_nothing(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    """What the client's copy alone gives: every word, and not as the model wrote it."""
    where = _resumed(place, tmp_path, "turns.sqlite*", "seal.key")
    resumed = where.heard[2].text
    for word in ("I look at", "später", "Both at once", "eins > out/a", "zwei > out/b", "Both are"):
        assert resumed.count(word) == 1, word
    assert f"cd {place.work} && echo" not in resumed
    tell(was_exact(where.heard, new=1, again=1, cold=[2]))


def _resumed(place: Sandbox, folder: Path, *forgotten: str) -> Stage:
    """A session with a restart of the server in it, which forgets these files of its data."""
    where = stage(folder / "stage", FAMILY)
    (place.work / "out").mkdir()
    hide(place, "out")
    first = turns(FAMILY, _wrote(place.work), SUMMARY)
    with where.server({"turns": first, "end": "fail"}) as server:
        told = claude(place, server.url, "Write two files.")
        assert told.result == "Two files: ä and ö."
    kept = {path.name for path in where.data.iterdir()}
    assert {"turns.sqlite", "seal.key"} <= kept
    for pattern in forgotten:
        for path in where.data.glob(pattern):
            path.unlink()
    with where.server({"turns": turns(FAMILY, *JOINED), "end": "fail"}) as server:
        told = claude(place, server.url, "Join them.", "--resume", told.session)
        assert told.result == "eins zwei"
    assert (place.work / "out" / "b").read_text() == "zwei\n"
    return where


def _wrote(work: Path) -> Sequence[OutputBlock]:
    """Two calls with a thought and a text between them."""
    return (
        think("I look at the folder."),
        # Claude Code takes `cd <here> &&` away when it sends the call back.
        call("Bash", command=f"cd {work} && echo eins > out/a", description="Write"),
        think("And write another — später."),
        say("Both at once."),
        call("Bash", description="Write more", command="echo zwei > out/b"),
    )
