"""Sessions of the real Claude Code that go on on another server.

What a server knows of a session is in its store; what it needs to open the seals that the client
brings back is its key. Both outlive it, or the key alone, or neither.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from claude_code import claude, ignore_in_git
from client_sandbox import Sandbox
from prefix_exactness import ReportRun, assert_exact
from server_setup import QWEN3_CODER, ServerSetup, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

FAMILY = QWEN3_CODER
SUMMARY: Sequence[OutputBlock] = [think("Both are there."), text("Two files: ä and ö.")]
JOINED: Sequence[Sequence[OutputBlock]] = (
    [think("Now I join them."), call("Bash", command="cat out/a out/b", description="Join")],
    [think("That is all."), text("eins zwei")],
)


def test_claude_code_resumes_with_the_store(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = _resumed(sandbox, tmp_path)
    report_run(assert_exact(setup.generations, new=1, cold=[2]))


def test_claude_code_resumes_with_the_key(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = _resumed(sandbox, tmp_path, "turns.sqlite*")
    resumed = setup.generations[2].text
    for output in (_wrote(sandbox.work), SUMMARY):
        assert f"assistant\n{FAMILY.spell(*output)}<|im_end|>" in resumed
    # The seals hold so much that nothing is lost: each carries the end of the turn before it, too.
    report_run(assert_exact(setup.generations, new=1, cold=[2]))


def test_claude_code_resumes_with_nothing(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """What the client's copy alone gives: every word, and not as the model wrote it."""
    setup = _resumed(sandbox, tmp_path, "turns.sqlite*", "seal.key")
    resumed = setup.generations[2].text
    for word in ("I look at", "später", "Both at once", "eins > out/a", "zwei > out/b", "Both are"):
        assert resumed.count(word) == 1, word
    assert f"cd {sandbox.work} && echo" not in resumed
    report_run(assert_exact(setup.generations, new=1, again=1, cold=[2]))


def _resumed(sandbox: Sandbox, folder: Path, *forgotten: str) -> ServerSetup:
    """A session with a restart of the server in it, which forgets these files of its data."""
    setup = server_setup(folder / "server", FAMILY)
    (sandbox.work / "out").mkdir()
    ignore_in_git(sandbox, "out")
    first = turns(FAMILY, _wrote(sandbox.work), SUMMARY)
    with setup.server({"turns": first, "end": "fail"}) as server:
        run = claude(sandbox, server.url, "Write two files.")
        assert run.result == "Two files: ä and ö."
    files = {path.name for path in setup.data.iterdir()}
    assert {"turns.sqlite", "seal.key"} <= files
    for pattern in forgotten:
        for path in setup.data.glob(pattern):
            path.unlink()
    with setup.server({"turns": turns(FAMILY, *JOINED), "end": "fail"}) as server:
        run = claude(sandbox, server.url, "Join them.", "--resume", run.session)
        assert run.result == "eins zwei"
    assert (sandbox.work / "out" / "b").read_text() == "zwei\n"
    return setup


def _wrote(work: Path) -> Sequence[OutputBlock]:
    """Two calls with a thought and a text between them."""
    return (
        think("I look at the folder."),
        # Claude Code takes `cd <here> &&` away when it sends the call back.
        call("Bash", command=f"cd {work} && echo eins > out/a", description="Write"),
        think("And write another — später."),
        text("Both at once."),
        call("Bash", description="Write more", command="echo zwei > out/b"),
    )
