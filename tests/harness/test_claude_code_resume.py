"""Sessions of the real Claude Code that continue on another server.

A server stores its sessions in its data folder; to open the seals that the client sends back it
needs its key. The tests retain both, only the key, or neither.
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
    # No token is re-prefilled: each seal also contains the end of the turn before it.
    report_run(assert_exact(setup.generations, new=1, cold=[2]))


def test_claude_code_resumes_without_store_and_key(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    """With only the client's copy, all text is present, but not in the model's own tokens."""
    setup = _resumed(sandbox, tmp_path, "turns.sqlite*", "seal.key")
    resumed = setup.generations[2].text
    for word in ("I look at", "später", "Both at once", "eins > out/a", "zwei > out/b", "Both are"):
        assert resumed.count(word) == 1, word
    assert f"cd {sandbox.work} && echo" not in resumed
    report_run(assert_exact(setup.generations, new=1, again=1, cold=[2]))


def _resumed(sandbox: Sandbox, folder: Path, *forgotten: str) -> ServerSetup:
    """Run a session with a server restart, which deletes these files of its data folder."""
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
    """Two calls with reasoning and a text between them."""
    return (
        think("I look at the folder."),
        # Claude Code removes `cd <here> &&` when it sends the call back.
        call("Bash", command=f"cd {work} && echo eins > out/a", description="Write"),
        think("And write another — später."),
        text("Both at once."),
        call("Bash", description="Write more", command="echo zwei > out/b"),
    )
