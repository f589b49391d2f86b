"""Probe the thinking switches that a template reads, and the reasoning span that it opens."""

import re
from collections.abc import Mapping
from typing import Any

from dovetail.models.template_probe.context import ProbeContext, common_prefix
from dovetail.models.template_probe.history_policy import keeps_reasoning_at_user

Switches = Mapping[str, Any]

#: Switches that turn thinking on and off, in order of preference.
_THINKING_SWITCHES: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning", True, False),
    ("include_thinking", True, False),
    ("skip_thinking", False, True),
)
#: Effort levels that may disable thinking, if they change the beginning of a turn.
_NO_REASONING_EFFORTS = ("none", "no_think", "minimal")

#: Switches that keep the reasoning of earlier turns.
_KEEP_SWITCHES: tuple[Switches, ...] = (
    {"truncate_history_thinking": False},
    {"clear_thinking": False},
    {"preserve_thinking": True},
    {"keep_past_thinking": True},
    {"drop_thinking": False},
    {"preserved_thinking": True},
    {"think_render_option": "all"},
    {"keep_thinking": True},
    {"include_thinking": True},
)
_EFFORT_SWITCHES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
#: Every switch that may change the handling of a history.
HISTORY_SWITCHES = frozenset(
    [name for name, _, _ in _THINKING_SWITCHES]
    + [name for one in _KEEP_SWITCHES for name in one]
    + [*_EFFORT_SWITCHES]
)
_DEFAULT_EFFORTS = ("low", "medium", "high")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def detect_thinking_switches(context: ProbeContext) -> dict[bool, Switches]:
    """Detect the switches that turn thinking on and off. Returns {} if there are none."""
    messages = [context.user_message()]
    for name, on, off in _THINKING_SWITCHES:
        shown = [context.render(messages, switches={name: value}) for value in (on, off)]
        if None not in shown and shown[0] != shown[1]:
            return {True: {name: on}, False: {name: off}}
    for name in _EFFORT_SWITCHES:
        for silent in _NO_REASONING_EFFORTS:
            loud = _generation_prompt(context, {name: "high"})
            if loud is not None and _generation_prompt(context, {name: silent}) not in (None, loud):
                return {True: {name: "high"}, False: {name: silent}}
    return {}


def detect_effort(context: ProbeContext, thinking: Switches) -> tuple[str, tuple[str, ...]]:
    """Detect the switch for the reasoning effort, and the levels to use with it.

    These are the levels that the template accepts. If it prints any word, they are the levels that
    every model with effort levels was trained on.
    """
    messages = [context.user_message()]
    for name in _EFFORT_SWITCHES:
        shown = {n: context.render(messages, switches={**thinking, name: n}) for n in _EFFORTS}
        taken = tuple(level for level, text in shown.items() if text is not None)
        if len({shown[level] for level in taken}) > 1:
            word = context.marks["effort"]
            prints = word in (context.render(messages, switches={**thinking, name: word}) or "")
            return name, (_DEFAULT_EFFORTS if prints else taken)
    return "", ()


def detect_budget_switch(context: ProbeContext) -> str:
    """Detect the switch that limits thinking to a number of tokens."""
    name = "thinking_budget"
    few, many = (context.render([context.user_message()], switches={name: n}) for n in (512, 4096))
    return name if few is not None and many is not None and few != many else ""


def detect_keep_switches(context: ProbeContext, thinking: Switches) -> Switches:
    """Detect the switch under which reasoning survives a user turn. {} if none is needed."""
    if keeps_reasoning_at_user(context, thinking):
        return {}
    tried = (s for s in _KEEP_SWITCHES if keeps_reasoning_at_user(context, {**thinking, **s}))
    return next(tried, {})


def detect_reasoning_opener(context: ProbeContext) -> str:
    """Detect the end of the generation prompt that opens reasoning. Empty if it does not."""
    prompt = context.render([context.user_message()], tools=False)
    if prompt is None:
        return ""
    thinking = context.render(
        [context.user_message(), context.assistant_message("answer", reasoning="reasoning")],
        tools=False,
        add_generation_prompt=False,
    )
    before, found, _ = (thinking or "").partition(context.marks["reasoning"])
    rest = _after_header(context, prompt)
    inside = bool(found and context.reasoning_field) and prompt.rstrip() == before.rstrip()
    if rest.strip():
        return rest if inside or _opens_reasoning(rest) else ""
    last = _OPENER.search(prompt)
    return last[0] if last and (inside or _is_closed_next(context, prompt)) else ""


#: A closing tag: the generation prompt contains complete reasoning after the header.
_CLOSING_TAG = re.compile(r"</|\[/|◁/")
#: Words of an opener, for templates that never render reasoning to compare with.
_REASONING_WORD = re.compile(r"think|thought|reason", re.IGNORECASE)
_TAG = r"(?:<[^<>]+>|\[[^\[\]]+\])"
_TAGS = re.compile(_TAG)
_OPENER = re.compile(rf"{_TAG}\w+{_TAG}\s*\Z|{_TAG}\s*\Z")


def _opens_reasoning(text: str) -> bool:
    """Return whether the text opens reasoning without closing it by `</` or a second tag."""
    return (
        bool(_REASONING_WORD.search(text))
        and not _CLOSING_TAG.search(text)
        and len(_TAGS.findall(text)) < 2
    )


def _is_closed_next(context: ProbeContext, prompt: str) -> bool:
    """Return whether a turn without reasoning begins by closing the end of the prompt."""
    messages = [context.user_message(), context.assistant_message("answer")]
    text = context.render(messages, tools=False, add_generation_prompt=False) or ""
    return text.startswith(prompt) and bool(_CLOSING_TAG.match(text[len(prompt) :].lstrip()))


def _after_header(context: ProbeContext, prompt: str) -> str:
    """Return the text of the prompt after the header that a turn without reasoning also has.

    If such turns begin with empty reasoning, its opener counts as a part of the header.
    """
    messages = [context.user_message(), context.assistant_message("answer")]
    plain = (
        context.render(messages, tools=False, add_generation_prompt=False),
        context.render([*messages, context.user_message("more")], tools=False),
    )
    headers = [common_prefix(prompt, text) for text in plain if text is not None]
    return prompt[min(map(len, headers), default=len(prompt)) :]


def _generation_prompt(context: ProbeContext, switches: Switches) -> str | None:
    """Return the text that `add_generation_prompt` adds to the conversation."""
    prompt = context.render([context.user_message()], switches=switches)
    plain = context.render([context.user_message()], switches=switches, add_generation_prompt=False)
    if prompt is None or plain is None:
        return None
    return prompt[len(common_prefix(prompt, plain)) :]
