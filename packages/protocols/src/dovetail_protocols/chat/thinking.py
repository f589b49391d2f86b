"""Thinking controls: all the fields by which clients and templates control reasoning.

The more specific field takes precedence: template arguments, then switches, then an effort, which
implies that thinking is on unless it is `none`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dovetail_model import Thinking
from dovetail_protocols.chat.wire import ChatRequest
from dovetail_protocols.hints import NvextOptions

_ON = frozenset({"enabled", "adaptive", "auto", "on", "true", "thinking", "think"})
_OFF = frozenset({"disabled", "none", "off", "false", "chat", "no_think"})


def decode_thinking(wire: ChatRequest, nvext: NvextOptions) -> Thinking:
    """Decode the thinking controls. Template arguments are passed on unchanged."""
    template = {**(wire.chat_template_args or {}), **(wire.chat_template_kwargs or {})}
    reasoning, switch = _fields(wire.reasoning, "enabled"), _fields(wire.thinking, "type")
    effort = _text(template.get("reasoning_effort"), wire.reasoning_effort, reasoning.get("effort"))
    switches = (
        template.get("enable_thinking"),
        template.get("thinking"),
        template.get("thinking_mode"),
        wire.enable_thinking,
        switch.get("type"),
        reasoning.get("enabled"),
    )
    budgets = (
        nvext.max_thinking_tokens,
        template.get("thinking_budget"),
        wire.thinking_budget,
        wire.thinking_token_budget,
        switch.get("budget_tokens"),
        reasoning.get("max_tokens"),
    )
    return Thinking(
        enabled=_enabled(switches, effort),
        effort=effort,
        budget=next((value for value in budgets if _is_budget(value)), None),
        keep=_keep(switch),
        summary=_text(reasoning.get("summary")),
        template_kwargs=template,
        retention=nvext.reasoning_retention,
    )


def _enabled(switches: Iterable[object], effort: str | None) -> bool | None:
    for switch in switches:
        if isinstance(switch, bool):
            return switch
        if isinstance(switch, str) and switch.lower() in _ON | _OFF:
            return switch.lower() in _ON
    return None if effort is None else effort.lower() not in _OFF


def _keep(switch: Mapping[str, Any]) -> Literal["all", "template"]:
    """Decode `clear_thinking`: if false, GLM's API retains the reasoning of earlier turns."""
    return "all" if switch.get("clear_thinking") is False else "template"


def _fields(value: object, switch: str) -> Mapping[str, Any]:
    """Return a control as an object; some clients send only the switch."""
    return value if isinstance(value, dict) else {switch: value}


def _text(*candidates: object) -> str | None:
    return next((value for value in candidates if isinstance(value, str) and value), None)


def _is_budget(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
