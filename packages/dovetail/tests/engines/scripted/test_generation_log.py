"""The scripted engine's log of generations."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from generation_log import read_generation_log
from scripted_fixture import END, engine, ids, play, request

from dovetail.engines.token_stream import iter_deltas
from dovetail_verify.target import FileRecording, RecordedRequest


def test_prompt_and_output_are_logged_as_tokens_and_text(tmp_path: Path) -> None:
    file = tmp_path / "record"
    scripted = engine("- text: naïve", record=str(file))
    play(scripted, request("<think>what", session="s"))
    (recorded,) = read_generation_log(file)
    assert list(recorded.prompt) == ids("<think>what")
    assert list(recorded.output) == [*ids("naïve"), END]
    assert (recorded.text, recorded.output_text, recorded.session) == (
        "<think>what",
        "naïve<|end|>",
        "s",
    )


def test_dovetail_verify_reads_what_the_engine_writes(tmp_path: Path) -> None:
    """The suite has its own struct for the lines, because it is installed without the engine."""
    file = tmp_path / "record"
    scripted = engine("- text: naïve", record=str(file))
    for _ in range(2):
        play(scripted, request("what" * 10, session="s"))
    written = read_generation_log(file)
    found = asyncio.run(FileRecording(file).find_requests("what", len(written)))
    assert [generation.cached for generation in written] == [0, 32]
    assert found == [
        RecordedRequest(
            started_at=generation.began,
            prompt_tokens=generation.prompt,
            cached_count=generation.cached,
            output_tokens=generation.output,
            prompt_text=generation.text,
            output_text=generation.output_text,
        )
        for generation in written
    ]


def test_cached_tokens_are_logged(tmp_path: Path) -> None:
    file = tmp_path / "record"
    scripted = engine("- text: indeed", record=str(file))
    for _ in range(2):
        play(scripted, request("x" * 40))
    assert [recorded.cached for recorded in read_generation_log(file)] == [0, 32]


def test_cancelled_generation_is_logged_as_far_as_sent(
    tmp_path: Path,
) -> None:
    file = tmp_path / "record"
    scripted = engine("- text: abcdef\n  delay: {between: 0.01}", record=str(file))

    async def hang_up() -> None:
        async with aclosing(iter_deltas(scripted, request())) as deltas:
            await anext(deltas)

    asyncio.run(hang_up())
    (recorded,) = read_generation_log(file)
    assert recorded.output_text == "a"


def test_failed_generation_is_logged(tmp_path: Path) -> None:
    file = tmp_path / "record"
    scripted = engine("- text: abcdef\n  fail: {after: 3}", record=str(file))
    with pytest.raises(Exception, match="makes this request fail"):
        play(scripted, request())
    assert [recorded.output_text for recorded in read_generation_log(file)] == ["abc"]


def test_unwritable_file_fails_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        engine("- text: x", record=str(tmp_path / "no such folder" / "record"))


def test_missing_log_is_empty(tmp_path: Path) -> None:
    assert read_generation_log(tmp_path / "none") == []
