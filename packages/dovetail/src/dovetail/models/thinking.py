"""Translate the thinking settings of a request into the switches that the template reads.

In increasing precedence: the defaults with a reasoning parser, `--default-thinking-mode`, the
template switches of the server, the thinking settings of the request, its template arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.prompt.template import TemplateProfile
from dovetail_model import Thinking

#: Used with a reasoning parser, unless the client disables thinking.
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


def ignores_effort(thinking: Thinking, profile: TemplateProfile) -> bool:
    """Return whether a request sets an effort that the template does not read."""
    effort = (thinking.effort or "none").lower()
    return effort != "none" and thinking.enabled is not False and not profile.effort_switch


def merge_thinking(previous: Thinking | None, current: Thinking) -> Thinking:
    """Fill in the missing settings of a request from the previous turn.

    Templates render these switches into the head of the prompt: a switch that changes between two
    turns would invalidate the whole prefix.
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
    """Return the common switch, which templates may ignore, and the template's own switch."""
    return {"enable_thinking": on, **profile.thinking_switches.get(on, {})}


def _effort_switches(thinking: Thinking, profile: TemplateProfile) -> dict[str, Any]:
    """Return the switches for effort and budget."""
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
    """Return the nearest level that the template supports; the lower one of two."""
    levels = [level for level in known if level != "none"]
    if not levels or effort in levels or effort not in _EFFORT_LEVELS:
        return effort
    place = _EFFORT_LEVELS.index(effort)
    return min(
        levels,
        key=lambda level: (abs(_EFFORT_LEVELS.index(level) - place), _EFFORT_LEVELS.index(level)),
    )


_UNSET_THINKING = Thinking()
