"""What the scripted engine writes down about its requests."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from scripted_fixture import END, engine, ids, play, request

from dovetail.engines.scripted.generation_log import read_generation_log
from dovetail.engines.token_stream import iter_deltas


def test_prompt_and_answer_are_written_as_tokens_and_text(tmp_path: Path) -> None:
    file = tmp_path / "record"
    playing = engine("- text: naïve", record=str(file))
    play(playing, request("<think>what", session="s"))
    (heard,) = read_generation_log(file)
    assert list(heard.prompt) == ids("<think>what")
    assert list(heard.output) == [*ids("naïve"), END]
    assert (heard.text, heard.output_text, heard.session) == ("<think>what", "naïve<|end|>", "s")


def test_what_was_cached_is_written(tmp_path: Path) -> None:
    file = tmp_path / "record"
    playing = engine("- text: indeed", record=str(file))
    for _ in range(2):
        play(playing, request("x" * 40))
    assert [heard.cached for heard in read_generation_log(file)] == [0, 32]


def test_an_answer_that_nobody_wanted_to_the_end_is_written_as_far_as_it_had_left(
    tmp_path: Path,
) -> None:
    file = tmp_path / "record"
    playing = engine("- text: abcdef\n  delay: {between: 0.01}", record=str(file))

    async def hang_up() -> None:
        async with aclosing(iter_deltas(playing, request())) as deltas:
            await anext(deltas)

    asyncio.run(hang_up())
    (heard,) = read_generation_log(file)
    assert heard.output_text == "a"


def test_an_answer_that_fails_is_written_too(tmp_path: Path) -> None:
    file = tmp_path / "record"
    playing = engine("- text: abcdef\n  fail: {after: 3}", record=str(file))
    with pytest.raises(Exception, match="fails"):
        play(playing, request())
    assert [heard.output_text for heard in read_generation_log(file)] == ["abc"]


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        engine("- text: x", record=str(tmp_path / "no such folder" / "record"))


def test_nothing_was_heard_before_the_file_is_there(tmp_path: Path) -> None:
    assert read_generation_log(tmp_path / "none") == []
