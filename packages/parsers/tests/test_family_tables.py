"""Lint of the tables: the properties that the machine and the writer rely on."""

import json
import pkgutil
from importlib import import_module

import pytest

from dovetail_parsers import families, parse, write_message
from dovetail_parsers.family import Family
from dovetail_parsers.grammar import Channel, Grammar, Mode
from dovetail_parsers.registry import load_grammar

FAMILIES = families()
TOOL_FAMILIES = [family for family in FAMILIES if family.tools]


def table_of(family: Family) -> Grammar:
    return load_grammar(family.tool_parser, family.reasoning_parser)


def exits(mode: Mode) -> set[str]:
    """Return the modes that a mode can lead to."""
    found = {edge.mode for edge in mode.edges.values()}
    found |= {edge.mode for edge in (mode.otherwise, mode.end) if edge is not None}
    if mode.channel is Channel.GAP and mode.otherwise is None:
        found.add("text")
    if mode.route is not None:
        headers = ("analysis", "commentary to=functions.f", "to=self", "to=tool", "final")
        found |= {route.mode for route in map(mode.route, headers) if route is not None}
    return found


def reachable(table: Grammar, start: str) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        for name in exits(table.states[todo.pop()].mode) - seen:
            seen.add(name)
            todo.append(name)
    return seen


def test_list_of_families_matches_the_folder() -> None:
    folder = import_module("dovetail_parsers.families")
    modules = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    in_folder = [import_module(f"dovetail_parsers.families.{name}").FAMILY for name in modules]
    assert list(FAMILIES) == in_folder


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_table(family: Family) -> None:
    table = table_of(family)
    names = set(table.states)
    from_entry = reachable(table, table.entry) | reachable(table, "text")
    for name, state in table.states.items():
        assert "" not in state.edges
        assert exits(state.mode) <= names, f"{name} leads nowhere"
        if name == "lost" or state.channel is Channel.FREE_TEXT:
            continue  # entered on failure, left by any of the family's edges
        assert "text" in reachable(table, name), f"{name} cannot return"
        assert name in from_entry, f"{name} cannot be reached"
        assert (state.mode.body is not None) == (state.channel is Channel.BODY)
        assert (state.mode.end is not None) == (state.channel is Channel.BODY)


@pytest.mark.parametrize("family", TOOL_FAMILIES, ids=lambda family: family.name)
def test_sample_equals_the_output_of_the_writer(family: Family) -> None:
    message = parse(
        family.sample,
        tool_parser=family.tool_parser,
        reasoning_parser=family.reasoning_parser,
        in_reasoning=False,
    )
    calls = [block for block in message.blocks if block.type == "tool_call"]
    assert [(call.name, json.loads(call.arguments)["city"]) for call in calls[:1]] == [
        ("get_weather", "Paris")
    ]
    assert message.diagnostics == ()
    assert write_message(message, family) == family.sample


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_lists_its_models(family: Family) -> None:
    assert family.name in (*family.tool_names, *family.reasoning_names)
    assert family.name not in family.aliases
