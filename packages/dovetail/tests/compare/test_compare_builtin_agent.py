"""The tools of the built-in agent: commands, limits of results, files that are no text."""

from pathlib import Path

import pytest

from dovetail.compare.builtin_agent import (
    AgentWorkspace,
    FindTextTruncated,
    ReadFileTruncated,
    RunCommand,
)
from dovetail.eval.tools import ToolError


def test_command_runs_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    found = RunCommand("ls; exit 3").run(AgentWorkspace(tmp_path, 100))
    assert found == "a.txt\n\n(exit status 3)"


def test_long_results_lose_their_middle(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefghij" * 10)
    workspace = AgentWorkspace(tmp_path, 10)
    assert ReadFileTruncated("a.txt").run(workspace) == "abcde\n[90 characters truncated]\nfghij"
    assert "characters truncated" in FindTextTruncated("abc").run(workspace)
    assert "characters truncated" in RunCommand("cat a.txt").run(workspace)
    (tmp_path / "b.txt").write_text("0123456789")
    assert ReadFileTruncated("b.txt").run(workspace) == "0123456789"


def test_binary_file_is_an_error_for_the_model(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe")
    with pytest.raises(ToolError, match="is not a text file"):
        ReadFileTruncated("a.bin").run(AgentWorkspace(tmp_path, 10))


def test_command_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.compare.builtin_agent._COMMAND_TIMEOUT_SECONDS", 0.2)
    with pytest.raises(ToolError, match=r"did not finish within 0\.2 seconds"):
        RunCommand("sleep 100").run(AgentWorkspace(tmp_path, 10))
