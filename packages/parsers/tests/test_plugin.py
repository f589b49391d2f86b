"""Plugins register families and factories of parsers by entry point."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest

from dovetail_parsers import parse, plugin, registry, resolve_family, write_message


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Return the list of installed entry points, to be filled by the test."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(plugin, "entry_points", lambda group: found)
    caches = (
        plugin.load_plugins,
        registry.families,
        registry._tool_names,
        registry._reasoning_names,
        registry.load_grammar,
    )
    for cached in caches:
        cached.cache_clear()
    yield found
    for cached in caches:
        cached.cache_clear()


def entry_point(name: str, target: str) -> EntryPoint:
    return EntryPoint(name, target, plugin.ENTRY_POINT_GROUP)


def test_a_factory_is_used_by_its_name(points: list[EntryPoint]) -> None:
    points.append(entry_point("shout", "uppercase_parser:Uppercase"))
    assert parse("hey", tool_parser="shout").blocks[0].raw == "hey"
    assert getattr(parse("hey", tool_parser="shout").blocks[0], "text", "") == "HEY"


def test_a_family_is_found_by_name_model_and_template(points: list[EntryPoint]) -> None:
    points.append(entry_point("acme", "acme_family:FAMILY"))
    family = resolve_family("acme")
    assert family is not None
    assert family.name == "acme"
    assert resolve_family("some-org/Acme-7B") is not None
    assert resolve_family("{{ '<acme_call>' }}") is not None
    message = parse(family.sample, tool_parser="acme")
    assert [block.type for block in message.blocks] == ["tool_call"]
    assert write_message(message.blocks, family) == family.sample


@pytest.mark.parametrize("target", ["uppercase_parser:Uppercase", "acme_family:FAMILY"])
def test_a_built_in_name_cannot_be_registered_again(points: list[EntryPoint], target: str) -> None:
    points.append(entry_point("hermes", target))
    with pytest.raises(ValueError, match=r"'hermes'.*already registered"):
        parse("hey", tool_parser="hermes")


def test_two_plugins_of_one_name_are_an_error(points: list[EntryPoint]) -> None:
    points += [entry_point("shout", "uppercase_parser:Uppercase")] * 2
    with pytest.raises(ValueError, match=r"'shout'.*already registered"):
        parse("hey", tool_parser="shout")


def test_a_plugin_that_fails_to_load_is_named(points: list[EntryPoint]) -> None:
    points.append(entry_point("broken", "no_such_module:FAMILY"))
    with pytest.raises(ValueError, match=r"'broken'.*failed to load.*no_such_module"):
        parse("hey", tool_parser="hermes")
