"""From what a client asks about thinking to the switches that its model's template reads.

From the weakest to the strongest: what is usual with a reasoning parser, the server's
`--default-thinking-mode`, the server's own switches, the request, the request's template arguments.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dovetail.rendering.facts import Facts
from dovetail_model import Thinking

#: With a reasoning parser, and unless the client wants no thoughts.
USUAL: Mapping[str, Any] = {"enable_thinking": True, "truncate_history_thinking": False}

_LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def switches(
    thinking: Thinking,
    facts: Facts,
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
        chosen |= USUAL
    if by_default is not None:
        chosen |= _turned(by_default, facts)
    chosen |= server_switches or {}
    if wanted is not None:
        chosen |= _turned(wanted, facts)
    if thinks is not False:
        chosen |= _measured(thinking, facts)
    if thinking.keep == "all":
        chosen |= facts.keep_switches
    return {**chosen, **thinking.template_kwargs}


class ThinkingMemory:
    """What sessions said about thinking: a request that says nothing means what was said before.

    Templates write these switches into the head of the prompt, so that forgetting one between two
    turns would cost the whole prefix.
    """

    __slots__ = ("_limit", "_said")

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._said: OrderedDict[str, Thinking] = OrderedDict()

    def recall(self, session: str | None, thinking: Thinking) -> Thinking:
        """The request's controls, those it leaves out as the session last had them."""
        if session is None:
            return thinking
        merged = _merge(self._said.get(session), thinking)
        self._said[session] = merged
        self._said.move_to_end(session)
        if len(self._said) > self._limit:
            self._said.popitem(last=False)
        return merged


def _turned(on: bool, facts: Facts) -> dict[str, Any]:
    """The common switch, harmless where it is not read, and the template's own."""
    return {"enable_thinking": on, **facts.thinking_switches.get(on, {})}


def _measured(thinking: Thinking, facts: Facts) -> dict[str, Any]:
    """How hard and how long to think."""
    chosen: dict[str, Any] = {}
    effort = (thinking.effort or "").lower()
    if effort and effort != "none":
        level = _nearest(effort, facts.efforts)
        chosen["reasoning_effort"] = level
        if facts.effort_switch:
            chosen[facts.effort_switch] = level
    if facts.budget_switch and thinking.budget is not None:
        chosen[facts.budget_switch] = thinking.budget
    return chosen


def _nearest(effort: str, known: tuple[str, ...]) -> str:
    """The level that the template knows, the higher one of two that are as near."""
    levels = [level for level in known if level != "none"]
    if not levels or effort in levels or effort not in _LEVELS:
        return effort
    place = _LEVELS.index(effort)
    return min(levels, key=lambda level: (abs(_LEVELS.index(level) - place), -_LEVELS.index(level)))


def _merge(before: Thinking | None, now: Thinking) -> Thinking:
    if before is None:
        return now
    unsaid = {
        name: getattr(before, name)
        for name in Thinking.__struct_fields__
        if getattr(now, name) == getattr(_SILENT, name)
    }
    return msgspec.structs.replace(now, **unsaid)


_SILENT = Thinking()
