"""Third parties bring parsers by entry point."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from dovetail_parsers import parse, plugin


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    found: list[EntryPoint] = []
    monkeypatch.setattr(plugin, "entry_points", lambda group: found)
    plugin.find_plugin.cache_clear()
    yield found
    plugin.find_plugin.cache_clear()


def test_a_name_that_is_not_ours_is_looked_up(points: list[EntryPoint]) -> None:
    points.append(EntryPoint("shout", "uppercase_parser:Uppercase", plugin.ENTRY_POINT_GROUP))
    assert parse("hey", tool_parser="shout").blocks[0].raw == "hey"
    assert getattr(parse("hey", tool_parser="shout").blocks[0], "text", "") == "HEY"


def test_a_name_of_ours_cannot_be_taken(points: list[EntryPoint]) -> None:
    points.append(EntryPoint("hermes", "uppercase_parser:Uppercase", plugin.ENTRY_POINT_GROUP))
    with pytest.raises(ValueError, match="registered twice"):
        parse("hey", tool_parser="hermes")


def test_two_plugins_of_one_name_are_an_error(points: list[EntryPoint]) -> None:
    points += [
        EntryPoint("shout", f"uppercase_parser:{name}", plugin.ENTRY_POINT_GROUP) for name in "AB"
    ]
    with pytest.raises(ValueError, match="registered twice"):
        parse("hey", tool_parser="shout")
