"""Script files, and the replies they define."""

from pathlib import Path
from typing import Any

import pytest
from scripted_fixture import END, RETURN, TOKENIZER, engine, ids, play, play_text, request

from dovetail.engines.scripted import ScriptedEngine, ScriptError, load_script, parse_script
from dovetail_model import Sampling


def chunks_of(script: str, **fields: Any) -> list[str]:
    """Return the deltas as text, with the finish after the last one."""
    deltas = play(engine(script), request(**fields))
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    texts = [TOKENIZER.decode(delta.ids) for delta in deltas]
    return [*texts, str(deltas[-1].finish)]


@pytest.mark.parametrize(
    ("script", "deltas"),
    [
        ("[{text: abc}]", ["a", "b", "c", "<|end|>", "stop"]),
        ("turns: [{text: abc}]", ["a", "b", "c", "<|end|>", "stop"]),
        ("[{text: abc, stop: false}]", ["a", "b", "c", "stop"]),
        ("[{text: '', stop: false}]", ["", "stop"]),
        ("[{text: ''}]", ["<|end|>", "stop"]),
        ("[{text: abc, finish: length}]", ["a", "b", "c", "length"]),
        ("[{text: abc, stop: <|return|>}]", ["a", "b", "c", "<|return|>", "stop"]),
        (f"[{{text: a, stop: {RETURN}}}]", ["a", "<|return|>", "stop"]),
        ("[{text: 'ab<|end|>cd'}]", ["a", "b", "<|end|>", "stop"]),
        ("[{text: 'ab<|end|>cd', finish: length}]", ["a", "b", "<|end|>", "stop"]),
        ("[{text: '<think>a</think>'}]", ["<think>", "a", "</think>", "<|end|>", "stop"]),
        ("[{tokens: [104, 105]}]", ["h", "i", "<|end|>", "stop"]),
        ("[{text: abcde, chunks: 2}]", ["ab", "cd", "e<|end|>", "stop"]),
        ("[{text: abcde, chunks: 100}]", ["abcde<|end|>", "stop"]),
        ("[{text: abcdef, chunks: [3, 1]}]", ["abc", "d", "e", "f", "<|end|>", "stop"]),
        ("[{chunks: [ab, [99, 100], '', e]}]", ["ab", "cd", "", "e<|end|>", "stop"]),
        ("[{chunks: [ab, 'c<|end|>d', e]}]", ["ab", "c<|end|>", "stop"]),
    ],
)
def test_reply_is_split_into_deltas(script: str, deltas: list[str]) -> None:
    assert chunks_of(script) == deltas


@pytest.mark.parametrize(
    ("script", "limit", "deltas"),
    [
        ("[{text: abcd}]", 2, ["a", "b", "length"]),
        ("[{text: abcd}]", 4, ["a", "b", "c", "d", "length"]),
        ("[{text: abcd}]", 5, ["a", "b", "c", "d", "<|end|>", "stop"]),
        ("[{text: abcd, stop: false}]", 4, ["a", "b", "c", "d", "stop"]),
        ("[{text: abcd, chunks: 3}]", 4, ["abc", "d", "length"]),
        ("[{text: abcd, chunks: 3}]", 3, ["abc", "length"]),
        ("[{text: abcd}]", 0, ["", "length"]),
    ],
)
def test_max_tokens_is_enforced(script: str, limit: int, deltas: list[str]) -> None:
    assert chunks_of(script, max_tokens=limit) == deltas


@pytest.mark.parametrize(
    ("prompt", "stop_ids", "own", "stop"),
    [
        ("hi", {RETURN}, (), "<|return|>"),
        ("hi", {END, RETURN}, (), "<|end|>"),
        ("hi<|return|>ask", {END, RETURN}, (), "<|return|>"),
        ("hi<|return|>ask", {END, RETURN}, (END, RETURN), "<|end|>"),
        ("hi", set(), (RETURN,), "<|return|>"),
        ("hi", set(), (), ""),
        ("hi", {END}, (RETURN,), "<|end|>"),
    ],
)
def test_stop_token_of_a_turn(
    prompt: str, stop_ids: set[int], own: tuple[int, ...], stop: str
) -> None:
    scripted = engine("[{text: a}]", own)
    assert play_text(scripted, request(prompt, stop_ids=frozenset(stop_ids))) == f"a{stop}"


@pytest.mark.parametrize(
    ("when", "prompt", "fields", "taken"),
    [
        ("{text: sun}", "the sun is up", {}, True),
        ("{text: sun}", "the moon is up", {}, False),
        ("{text: sun, tail: 5}", "the sun is up", {}, False),
        ("{text: is up, tail: 5}", "the sun is up", {}, True),
        ("{text: '漢 up', tail: 4}", "漢漢漢 up", {}, True),
        ("{text: '漢漢 up', tail: 4}", "漢漢漢 up", {}, False),
        ("{regex: 's.n'}", "the sun is up", {}, True),
        ("{regex: 'up$'}", "the sun is up", {}, True),
        ("{regex: '^up', tail: 2}", "the sun is up", {}, True),
        ("{regex: '^sun'}", "the sun is up", {}, False),
        ("{text: sun, regex: moon}", "sun", {}, False),
        ("{shorter: 4}", "abc", {}, True),
        ("{shorter: 3}", "abc", {}, False),
        ("{longer: 2}", "abc", {}, True),
        ("{longer: 3}", "abc", {}, False),
        ("{session: s1}", "abc", {"session": "s1"}, True),
        ("{session: s1}", "abc", {"session": "s2"}, False),
        ("{session: s1}", "abc", {}, False),
        ("{text: '<think>'}", "abc<think>", {}, True),
    ],
)
def test_rule_conditions(when: str, prompt: str, fields: dict[str, Any], taken: bool) -> None:
    scripted = engine(f"[{{when: {when}, text: rule}}, {{text: turn}}]")
    assert (
        play_text(scripted, request(prompt, **fields)) == ("rule" if taken else "turn") + "<|end|>"
    )


def test_first_matching_rule_applies_until_used_up() -> None:
    script = """
    rules:
      - {times: 2, text: first}
      - {when: {text: b}, text: second}
    turns: [{text: turn 1}, {text: turn 2}]
    """
    scripted = engine(script)
    prompts = ["b", "a", "b", "a", "aa"]
    replies = [play_text(scripted, request(prompt)) for prompt in prompts]
    assert replies == [f"{t}<|end|>" for t in ("first", "first", "second", "turn 1", "turn 2")]


def test_logprobs_are_reported_when_requested() -> None:
    script = "[{text: abc, logprobs: [-1.5, -0.5], chunks: 2}]"
    with_logprobs = request(sampling=Sampling(logprobs=1))
    logprobs = [one for delta in play(engine(script), with_logprobs) for one in delta.logprobs]
    assert [(one.token, one.logprob) for one in logprobs] == [
        ("a", -1.5),
        ("b", -0.5),
        ("c", -0.5),
        ("<|end|>", -0.5),
    ]
    assert logprobs[0].top == (("a", -1.5),)
    assert not any(delta.logprobs for delta in play(engine(script), request()))


@pytest.mark.parametrize(
    ("script", "location", "message"),
    [
        ("[", "s.yaml", "not YAML"),
        ("[]", "s.yaml, line 1", "must contain turns or rules"),
        ("hello", "s.yaml, line 1", "Expected `object`"),
        ("turns:\n- text: a\n- txet: b\n", "line 3, turns[1]", "unknown field `txet`"),
        ("- text: a\n- text: 5\n", "line 2, [1].text", "got `int`"),
        ("- text: a\n  tokens: [1]\n", "line 1, [0]", "only one of text, tokens"),
        ("- delay: 1\n", "line 1, [0]", "a reply is required"),
        ("- text: a\n  delay: -1\n", "line 2, [0].delay", ">= 0"),
        ("- text: a\n  chunks: 0\n", "line 2, [0].chunks", ">= 1"),
        ("- text: a\n  chunks: [b]\n", "line 2, [0].chunks", "cannot be combined with text"),
        ("- chunks: [b, 1]\n", "line 1, [0].chunks", "either all sizes or all pieces"),
        ("- text: a\n  finish: end\n", "line 2, [0].finish", "Invalid enum value 'end'"),
        ("- text: a\n  die: true\n  hang: 3\n", "line 1, [0]", "only one of die, hang"),
        ("- text: a\n  when:\n    regex: '('\n", "line 3, [0].when.regex", "regular expression"),
        ("turns:\n- text: a\n  when: {text: b}\n", "line 2, turns[0]", "use a rule"),
        ("rules:\n- text: a\n  turns: [{text: b}]\n", "line 2, rules[0]", "not both"),
        ("- text: a\n- file: gone.txt\n", "line 2, [1].file", "cannot be read"),
        (
            "- text: a\n- {when: {text: x}, turns: [{}]}\n",
            "line 2, [1].turns[0]",
            "a reply is required",
        ),
    ],
)
def test_errors_name_their_location(script: str, location: str, message: str) -> None:
    with pytest.raises(ScriptError) as error:
        parse_script(script, "s.yaml")
    assert str(error.value).startswith("s.yaml")
    assert location in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("- text: a\n- tokens: [1, 99999]\n", "line 2, [1]: token id 99999 is not in the"),
        ("- {text: a, stop: '<|nope|>'}\n", "line 1, [0]: '<|nope|>' is not a single token"),
        ("- {text: a, stop: 99999}\n", "line 1, [0]: 99999 is not a single token"),
    ],
)
def test_unknown_tokens_fail_at_the_start(script: str, message: str) -> None:
    with pytest.raises(ScriptError) as error:
        ScriptedEngine(TOKENIZER, parse_script(script))
    assert message in str(error.value)


def test_plain_file_is_the_reply_to_every_request(tmp_path: Path) -> None:
    path = tmp_path / "answer.txt"
    path.write_text("turns: []\n<think>é</think>\n\n", "utf-8")
    scripted = ScriptedEngine(TOKENIZER, load_script(path))
    for prompt in ("a", "ab", "abc"):
        assert play_text(scripted, request(prompt)) == "turns: []\n<think>é</think>\n<|end|>"


def test_reply_may_be_in_a_separate_file(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("from a file\n", "utf-8")
    (tmp_path / "s.yml").write_text("- file: long.txt\n", "utf-8")
    scripted = ScriptedEngine(TOKENIZER, load_script(tmp_path / "s.yml"))
    assert play_text(scripted, request()) == "from a file<|end|>"


def test_missing_script_file(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=r"gone\.txt: cannot be read"):
        load_script(tmp_path / "gone.txt")


def test_ids_are_those_of_the_tokenizer() -> None:
    deltas = play(engine("[{text: 'a<think>é', chunks: 99}]"), request())
    assert deltas[0].ids == [*ids("a<think>é"), END]
