"""Precedence of thinking settings, and their inheritance within a session."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.models.thinking import DEFAULT_SWITCHES, merge_thinking, resolve_switches
from dovetail.prompt.template import TemplateProfile
from dovetail_model import Thinking

MODE = TemplateProfile(
    thinking_switches={True: {"thinking_mode": "on"}, False: {"thinking_mode": "off"}},
    keep_switches={"clear_thinking": False},
    effort_switch="thinking_effort",
    efforts=("low", "high"),
    budget_switch="thinking_budget",
)
ON = {"enable_thinking": True, "thinking_mode": "on"}
OFF = {"enable_thinking": False, "thinking_mode": "off"}


def _switches(
    thinking: Thinking = Thinking(),  # noqa: B008 - it is frozen
    facts: TemplateProfile = MODE,
    **more: Any,
) -> dict[str, Any]:
    return resolve_switches(thinking, facts, **more)


def test_without_a_parser_the_template_decides() -> None:
    assert _switches() == {}


def test_defaults_with_a_reasoning_parser() -> None:
    assert _switches(reasoning_parser="qwen3") == DEFAULT_SWITCHES
    assert _switches(Thinking(enabled=False), reasoning_parser="qwen3") == OFF
    assert _switches(reasoning_parser="qwen3", default_mode="disabled") == OFF


@pytest.mark.parametrize(
    ("thinking", "more", "expected"),
    [
        (Thinking(), {"default_mode": "enabled"}, ON),
        (Thinking(), {"default_mode": "disabled"}, OFF),
        (Thinking(enabled=True), {"default_mode": "disabled"}, ON),
        (Thinking(enabled=False), {"default_mode": "enabled"}, OFF),
        (Thinking(), {"server_switches": {"enable_thinking": 7}}, {"enable_thinking": 7}),
        (Thinking(enabled=True), {"server_switches": OFF}, ON),
        (
            Thinking(enabled=False, template_kwargs={"thinking_mode": "on"}),
            {"default_mode": "disabled"},
            {"enable_thinking": False, "thinking_mode": "on"},
        ),
        (Thinking(keep="all"), {}, {"clear_thinking": False}),
        (Thinking(keep=3), {}, {}),
        (Thinking(budget=9), {}, {"thinking_budget": 9}),
        (Thinking(enabled=False, budget=9, effort="high"), {}, OFF),
    ],
)
def test_precedence(thinking: Thinking, more: dict[str, Any], expected: dict[str, Any]) -> None:
    assert _switches(thinking, **more) == expected


@pytest.mark.parametrize(
    ("requested", "known", "given"),
    [
        ("high", ("low", "high"), "high"),
        ("medium", ("low", "high"), "low"),
        ("minimal", ("low", "high"), "low"),
        ("max", ("low", "medium", "high"), "high"),
        ("xhigh", ("high", "max"), "high"),
        ("strange", ("low", "high"), "strange"),
        ("low", (), "low"),
        ("low", ("none",), "low"),
    ],
)
def test_effort_is_mapped_to_the_levels_of_the_template(
    requested: str, known: tuple[str, ...], given: str
) -> None:
    facts = TemplateProfile(effort_switch="thinking_effort", efforts=known)
    found = _switches(Thinking(effort=requested), facts)
    assert found == {"reasoning_effort": given, "thinking_effort": given}


def test_effort_none_sets_no_level() -> None:
    assert _switches(Thinking(effort="none", enabled=False)) == OFF


def test_an_effort_switch_that_disables_thinking() -> None:
    facts = TemplateProfile(
        thinking_switches={True: {"reasoning_effort": "high"}, False: {"reasoning_effort": "no"}},
        effort_switch="reasoning_effort",
        efforts=("low", "high"),
    )
    assert _switches(Thinking(enabled=False), facts)["reasoning_effort"] == "no"
    assert _switches(Thinking(enabled=True), facts)["reasoning_effort"] == "high"
    assert _switches(Thinking(enabled=True, effort="low"), facts)["reasoning_effort"] == "low"


def test_unset_values_are_inherited() -> None:
    previous = Thinking(enabled=True, effort="high", keep="all", template_kwargs={"a": 1})
    assert merge_thinking(None, previous) == previous
    assert merge_thinking(previous, Thinking()) == previous
    assert merge_thinking(previous, Thinking(effort="low")).effort == "low"
    assert merge_thinking(previous, Thinking(enabled=False)).enabled is False
    assert merge_thinking(None, Thinking()) == Thinking()


SETTINGS = st.builds(
    Thinking,
    enabled=st.none() | st.booleans(),
    effort=st.none() | st.sampled_from(["low", "high", "max"]),
    budget=st.none() | st.integers(0, 9),
    keep=st.sampled_from(["all", "template"]),
)


@given(st.lists(SETTINGS, min_size=1, max_size=5))
def test_turns_without_settings_never_change_the_switches(settings: list[Thinking]) -> None:
    merged: Thinking | None = None
    for thinking in settings:
        merged = merge_thinking(merged, thinking)
    assert merged is not None
    assert _switches(merge_thinking(merged, Thinking())) == _switches(merged)
