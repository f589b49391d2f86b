"""Scripted mode without a server: rendering of scripts and reading of recordings."""

import asyncio
from pathlib import Path

import pytest

from dovetail_verify.check import CheckFailed
from dovetail_verify.scripted import FileRecording, render_script


@pytest.mark.parametrize("family", ["qwen3", "no_such_parser"])
def test_render_script_rejects_unknown_tool_call_parsers(family: str) -> None:
    with pytest.raises(ValueError, match="no tool call parser"):
        render_script(family)


def test_missing_prompt_fails_the_check(tmp_path: Path) -> None:
    recording = FileRecording(tmp_path / "none", timeout_seconds=0.0)
    with pytest.raises(CheckFailed, match="0 prompts"):
        asyncio.run(recording.find_requests("x"))


def test_recording_is_read_while_the_engine_writes_it(tmp_path: Path) -> None:
    def line(began: float, text: str) -> str:
        fields = '"prompt":[1,2],"cached":1,"output":[3],"session":null,"said":"out"'
        return f'{{"began":{began},"text":"{text}",{fields}}}\n'

    path = tmp_path / "record.jsonl"
    recording = FileRecording(path, timeout_seconds=5.0)
    later, earlier = line(2.0, "a marker"), line(1.0, "a marker")
    path.write_text(later + earlier[:20], "utf-8")
    (found,) = asyncio.run(recording.find_requests("marker"))
    assert (found.prompt_tokens, found.output_tokens, found.cached_count) == ((1, 2), (3,), 1)
    path.write_text(later + earlier, "utf-8")
    both = asyncio.run(recording.find_requests("marker", 2))
    assert [request.started_at for request in both] == [1.0, 2.0]
