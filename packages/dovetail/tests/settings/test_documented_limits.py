"""The page on limits states the limits of request bodies as they are."""

import re
from pathlib import Path

import pytest

from dovetail.settings.config import Config
from dovetail_protocols import DEFAULT_LIMITS, MAX_JSON_DEPTH
from dovetail_protocols.body_limits import MAX_ALL_NAMES_CHARS, MAX_NAME_CHARS
from dovetail_tokenizers.encoding import MAX_LIBRARY_CHARS

PAGE = Path(__file__).parents[4] / "docs" / "operations" / "limits.md"
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "KiB": 1 << 10, "MiB": 1 << 20}
#: The beginning of a row -> the limit.
FIXED = {
    "JSON values of a body": DEFAULT_LIMITS.max_values,
    "JSON values of one message": DEFAULT_LIMITS.max_item_values,
    "JSON of a field": DEFAULT_LIMITS.max_other_field_bytes,
    "nesting": MAX_JSON_DEPTH,
    "name or id of a tool call": MAX_NAME_CHARS,
    "names and ids": MAX_ALL_NAMES_CHARS,
    "a text that the tokenizer": MAX_LIBRARY_CHARS,
}


def rows() -> list[list[str]]:
    section = PAGE.read_text().partition("### Request body limits")[2].partition("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(text: str) -> int:
    digits, _, unit = text.partition(" ")
    return int(digits.replace(",", "")) * UNITS.get(unit.partition(" ")[0], 1)


@pytest.mark.parametrize("name", ["body_bytes", "tools", "tool_bytes", "messages", "blocks"])
def test_limits_with_a_flag_are_documented_with_their_default(name: str) -> None:
    flag = f"`--max-{name.replace('_', '-')}`"
    (default,) = [row[2] for row in rows() if row[1] == flag]
    assert number(default) == getattr(Config(), f"max_{name}")


@pytest.mark.parametrize("start", FIXED)
def test_fixed_limits_are_documented(start: str) -> None:
    (found,) = [row for row in rows() if re.match(re.escape(start), row[0])]
    assert (found[1], number(found[2])) == ("", FIXED[start])
