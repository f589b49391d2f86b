"""Translate a request's thinking settings into the switches that its model's template reads.

From the weakest to the strongest: the defaults with a reasoning parser, the server's
`--default-thinking-mode`, the server's own switches, the request, the request's template arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.prompt.template import TemplateProfile
from dovetail_model import Thinking

#: With a reasoning parser, and unless the client disables thinking.
DEFAULT_SWITCHES: Mapping[str, Any] = {"enable_thinking": True, "truncate_history_thinking": False}

_EFFORT_LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def resolve_switches(
    thinking: Thinking,
    profile: TemplateProfile,
    *,
    reasoning_parser: str | None = None,
    default_mode: Literal["enabled", "disabled"] | None = None,
    server_switches: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resolve the switches to pass to the template."""
    requested = thinking.enabled
    by_default = None if default_mode is None else default_mode == "enabled"
    effective = requested if requested is not None else by_default
    switches: dict[str, Any] = {}
    if reasoning_parser is not None and effective is not False:
        switches |= DEFAULT_SWITCHES
    if by_default is not None:
        switches |= _thinking_switch(by_default, profile)
    switches |= server_switches or {}
    if requested is not None:
        switches |= _thinking_switch(requested, profile)
    if effective is not False:
        switches |= _effort_switches(thinking, profile)
    if thinking.keep == "all":
        switches |= profile.keep_switches
    return {**switches, **thinking.template_kwargs}


def merge_thinking(previous: Thinking | None, current: Thinking) -> Thinking:
    """Fill in settings that the request leaves out from those of the previous turn.

    Templates write these switches into the head of the prompt: losing one between two turns would
    cost the whole prefix.
    """
    if previous is None:
        return current
    inherited = {
        name: getattr(previous, name)
        for name in Thinking.__struct_fields__
        if getattr(current, name) == getattr(_UNSET_THINKING, name)
    }
    return msgspec.structs.replace(current, **inherited)


def _thinking_switch(on: bool, profile: TemplateProfile) -> dict[str, Any]:
    """The common switch, which has no effect where it is not read, and the template's own."""
    return {"enable_thinking": on, **profile.thinking_switches.get(on, {})}


def _effort_switches(thinking: Thinking, profile: TemplateProfile) -> dict[str, Any]:
    """Return the switches of effort and budget."""
    switches: dict[str, Any] = {}
    effort = (thinking.effort or "").lower()
    if effort and effort != "none":
        level = _nearest_effort(effort, profile.efforts)
        switches["reasoning_effort"] = level
        if profile.effort_switch:
            switches[profile.effort_switch] = level
    if profile.budget_switch and thinking.budget is not None:
        switches[profile.budget_switch] = thinking.budget
    return switches


def _nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """Return the nearest level that the template knows; of two, the higher."""
    levels = [level for level in known if level != "none"]
    if not levels or effort in levels or effort not in _EFFORT_LEVELS:
        return effort
    place = _EFFORT_LEVELS.index(effort)
    return min(
        levels,
        key=lambda level: (abs(_EFFORT_LEVELS.index(level) - place), -_EFFORT_LEVELS.index(level)),
    )


_UNSET_THINKING = Thinking()
