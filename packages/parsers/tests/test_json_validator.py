"""The incremental validator: valid JSON passes verbatim, small errors are repaired forward."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_parsers import parse
from dovetail_parsers.arguments.json_validator import JSON, PYTHON, Dialect, JsonValidator

GEMMA = Dialect(quote='<|"|>', bare_keys=True)

REPAIRED = [
    ("raw_newline", JSON, '{"a": "x\ny"}', '{"a": "x\\ny"}', ["control_character_in_string"]),
    ("trailing_comma", JSON, '{"a": [1, 2, ], }', '{"a": [1, 2 ] }', ["trailing_comma"]),
    ("single_quotes", JSON, "{'a': 'say \"b\" it\\'s'}", '{"a": "say \\"b\\" it\'s"}',
     ["single_quotes"]),
    ("bare_key", JSON, "{a-b: 1}", '{"a-b": 1}', ["bare_key"]),
    ("python_literals", JSON, "[True, False, None]", "[true, false, null]", ["python_literal"]),
    ("invalid_escape", JSON, r'{"a": "\d \x41 \u12 \'"}', r'{"a": "\\d \u0041 \\u12 ' + "'\"}",
     ["invalid_escape"]),
    ("tuple", PYTHON, "{'a': (1, 2)}", '{"a": [1, 2]}', []),
    ("delimited", GEMMA, '{a:<|"|>x "y"\n<|"|>,b:[1,{c:true}]}',
     '{"a":"x \\"y\\"\\n","b":[1,{"c":true}]}', []),
    ("bare_string", GEMMA, "{a:Paris}", '{"a":"Paris"}', ["bare_string"]),
]  # fmt: skip

BROKEN = [
    ("missing_colon", '{"a" 1}', '{"a" '),
    ("missing_comma", '{"a": 1 "b": 2}', '{"a": 1 '),
    ("wrong_bracket", '{"a": [1}', '{"a": [1'),
    ("bare_word", '{"a": Paris}', '{"a": '),
    ("no_value", '{"a": }', '{"a": '),
    ("two_commas", "[1,,2]", "[1"),
    ("leading_zero", "[01]", "["),
    ("nan", "[NaN]", "["),
    ("markup", '{"a": <x>}', '{"a": '),
]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def read(text: str, dialect: Dialect = JSON, size: int = 10_000) -> tuple[str, JsonValidator]:
    """Feed the text in pieces as the machine does: unread text is fed again."""
    reader, out, held = JsonValidator(dialect), "", ""
    for at in range(0, len(text), size):
        if reader.done or reader.failed:
            break
        piece = held + text[at : at + size]
        made, end = reader.feed(piece)
        out, held = out + made, piece[end:]
    return out + reader.finish(), reader


@pytest.mark.parametrize("size", [1, 2, 10_000])
@pytest.mark.parametrize(
    ("dialect", "text", "expected", "repairs"),
    [row[1:] for row in REPAIRED],
    ids=[row[0] for row in REPAIRED],
)
def test_repaired(
    dialect: Dialect, text: str, expected: str, repairs: list[str], size: int
) -> None:
    out, reader = read(text, dialect, size)
    assert out == expected
    assert reader.done
    assert sorted(set(reader.repairs)) == repairs
    json.loads(out)


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("text", "out"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN]
)
def test_broken(text: str, out: str, size: int) -> None:
    made, reader = read(text, size=size)
    assert (made, reader.done, reader.failed) == (out, False, True)


@settings(deadline=None)
@given(value=VALUES, indent=st.sampled_from([None, 2]), ascii=st.booleans(), size=st.integers(1, 9))
def test_valid_json_passes_verbatim(value: Any, indent: int | None, ascii: bool, size: int) -> None:
    text = json.dumps({"v": value}, indent=indent, ensure_ascii=ascii)
    out, reader = read(text, size=size)
    assert out == text
    assert reader.done
    assert reader.repairs == []


@settings(deadline=None)
@given(text=st.text(st.sampled_from("{}[]:,\"'\\ \n\t01.-eEtrufalsn/ux<>|é🦜\x00"), max_size=40))
def test_complete_output_is_json_for_any_chunking(text: str) -> None:
    whole, reader = read("{" + text)
    piecewise, by_character = read("{" + text, size=1)
    assert (piecewise, by_character.done, by_character.failed) == (
        whole,
        reader.done,
        reader.failed,
    )
    if reader.done:
        json.loads(whole)


def test_endless_number_is_rejected() -> None:
    _, reader = read('{"a": ' + "1" * 100_000, size=4)
    assert reader.failed


def test_endless_nesting_is_rejected_without_an_exception() -> None:
    deep = "[" * 1500 + "]" * 1500
    assert read(deep)[1].failed
    for text in (
        f'<tool_call>{{"x": {deep}, "name": "f", "arguments": {{}}}}</tool_call>',
        f'<tool_call>{{"name": "f", "arguments": {{"a": {deep}}}}}</tool_call>',
    ):
        message = parse(text, tool_parser="hermes")
        assert not [b for b in message.blocks if b.type == "tool_call" and b.complete]
