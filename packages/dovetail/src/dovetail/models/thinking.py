"""From what a client asks about thinking to the switches that its model's template reads.

From the weakest to the strongest: what is usual with a reasoning parser, the server's
`--default-thinking-mode`, the server's own switches, the request, the request's template arguments.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.prompt.template import TemplateProfile
from dovetail_model import Thinking

#: With a reasoning parser, and unless the client wants no thoughts.
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
    """What to pass to the template."""
    wanted = thinking.enabled
    by_default = None if default_mode is None else default_mode == "enabled"
    thinks = wanted if wanted is not None else by_default
    chosen: dict[str, Any] = {}
    if reasoning_parser is not None and thinks is not False:
        chosen |= DEFAULT_SWITCHES
    if by_default is not None:
        chosen |= _thinking_switch(by_default, profile)
    chosen |= server_switches or {}
    if wanted is not None:
        chosen |= _thinking_switch(wanted, profile)
    if thinks is not False:
        chosen |= _effort_switches(thinking, profile)
    if thinking.keep == "all":
        chosen |= profile.keep_switches
    return {**chosen, **thinking.template_kwargs}


def merge_thinking(previous: Thinking | None, current: Thinking) -> Thinking:
    """What a request asks, and where it says nothing, what was asked on the turn before.

    Templates write these switches into the head of the prompt: forgetting one between two turns
    would cost the whole prefix.
    """
    if previous is None:
        return current
    unsaid = {
        name: getattr(previous, name)
        for name in Thinking.__struct_fields__
        if getattr(current, name) == getattr(_UNSET_THINKING, name)
    }
    return msgspec.structs.replace(current, **unsaid)


def _thinking_switch(on: bool, profile: TemplateProfile) -> dict[str, Any]:
    """The common switch, harmless where it is not read, and the template's own."""
    return {"enable_thinking": on, **profile.thinking_switches.get(on, {})}


def _effort_switches(thinking: Thinking, profile: TemplateProfile) -> dict[str, Any]:
    """How hard and how long to think."""
    chosen: dict[str, Any] = {}
    effort = (thinking.effort or "").lower()
    if effort and effort != "none":
        level = _nearest_effort(effort, profile.efforts)
        chosen["reasoning_effort"] = level
        if profile.effort_switch:
            chosen[profile.effort_switch] = level
    if profile.budget_switch and thinking.budget is not None:
        chosen[profile.budget_switch] = thinking.budget
    return chosen


def _nearest_effort(effort: str, known: tuple[str, ...]) -> str:
    """The level that the template knows, the higher one of two that are as near."""
    levels = [level for level in known if level != "none"]
    if not levels or effort in levels or effort not in _EFFORT_LEVELS:
        return effort
    place = _EFFORT_LEVELS.index(effort)
    return min(
        levels,
        key=lambda level: (abs(_EFFORT_LEVELS.index(level) - place), -_EFFORT_LEVELS.index(level)),
    )


_UNSET_THINKING = Thinking()
