"""Thinking in a template's hands: the switches it reads and the thought it opens by itself."""

import re
from collections.abc import Mapping
from typing import Any

from dovetail.models.template_probe.context import Bench, shared
from dovetail.models.template_probe.history_policy import keeps_at_user

Switches = Mapping[str, Any]

#: What turns thinking on and off, in the order of preference.
_THINKING: tuple[tuple[str, Any, Any], ...] = (
    ("enable_thinking", True, False),
    ("thinking", True, False),
    ("thinking_mode", "enabled", "disabled"),
    ("reasoning", True, False),
    ("include_thinking", True, False),
    ("skip_thinking", False, True),
)
#: Levels of effort of which the last means not to think, where it changes how a turn begins.
_SILENT_EFFORTS = ("none", "no_think", "minimal")

#: What keeps the thoughts of earlier turns.
_KEEPING: tuple[Switches, ...] = (
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
_EFFORT_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
#: Every switch that may change what a template does with a history.
SWITCHES = frozenset(
    [name for name, _, _ in _THINKING]
    + [name for one in _KEEPING for name in one]
    + [*_EFFORT_NAMES]
)
_USUAL_EFFORTS = ("low", "medium", "high")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def thinking_switches(bench: Bench) -> dict[bool, Switches]:
    """What to pass to have thoughts and to have none; empty if the template leaves no choice."""
    ask = [bench.user()]
    for name, on, off in _THINKING:
        shown = [bench.render(ask, switches={name: value}) for value in (on, off)]
        if None not in shown and shown[0] != shown[1]:
            return {True: {name: on}, False: {name: off}}
    for name in _EFFORT_NAMES:
        for silent in _SILENT_EFFORTS:
            loud = _beginning(bench, {name: "high"})
            if loud is not None and _beginning(bench, {name: silent}) not in (None, loud):
                return {True: {name: "high"}, False: {name: silent}}
    return {}


def effort(bench: Bench, thinking: Switches) -> tuple[str, tuple[str, ...]]:
    """The switch that sets how hard to think, and the levels to use with it.

    They are those that the template does not refuse; of one that would print any word at all,
    those that every model with levels was trained on.
    """
    ask = [bench.user()]
    for name in _EFFORT_NAMES:
        shown = {n: bench.render(ask, switches={**thinking, name: n}) for n in _EFFORTS}
        taken = tuple(level for level, text in shown.items() if text is not None)
        if len({shown[level] for level in taken}) > 1:
            word = bench.marks["effort"]
            prints = word in (bench.render(ask, switches={**thinking, name: word}) or "")
            return name, (_USUAL_EFFORTS if prints else taken)
    return "", ()


def budget_switch(bench: Bench) -> str:
    """The switch that limits thinking to a number of tokens."""
    name = "thinking_budget"
    few, many = (bench.render([bench.user()], switches={name: n}) for n in (512, 4096))
    return name if few is not None and many is not None and few != many else ""


def keep_switches(bench: Bench, thinking: Switches) -> Switches:
    """The switch under which thoughts survive a user turn; empty if there is none or no need."""
    if keeps_at_user(bench, thinking):
        return {}
    tried = (s for s in _KEEPING if keeps_at_user(bench, {**thinking, **s}))
    return next(tried, {})


def opens_thought(bench: Bench) -> str:
    """The end of the generation prompt that leaves a thought open; empty if none is open."""
    prompt = bench.render([bench.user()], tools=False)
    if prompt is None:
        return ""
    thinking = bench.render(
        [bench.user(), bench.says("answer", thought="thought")], tools=False, generation=False
    )
    before, found, _ = (thinking or "").partition(bench.marks["thought"])
    rest = _behind_header(bench, prompt)
    inside = bool(found and bench.field) and prompt.rstrip() == before.rstrip()
    if rest.strip():
        return rest if inside or _opens(rest) else ""
    last = _OPENER.search(prompt)
    return last[0] if last and (inside or _closed_next(bench, prompt)) else ""


#: A closing tag: what the generation prompt put behind the header is a finished thought.
_CLOSED = re.compile(r"</|\[/|◁/")
#: What an opener says where the template never shows a thought that could be compared with it.
_NAMED = re.compile(r"think|thought|reason", re.IGNORECASE)
_TAG = r"(?:<[^<>]+>|\[[^\[\]]+\])"
_TAGS = re.compile(_TAG)
_OPENER = re.compile(rf"{_TAG}\w+{_TAG}\s*\Z|{_TAG}\s*\Z")


def _opens(text: str) -> bool:
    """Whether this names a thought and does not close it: neither by `</` nor by a second tag."""
    return bool(_NAMED.search(text)) and not _CLOSED.search(text) and len(_TAGS.findall(text)) < 2


def _closed_next(bench: Bench, prompt: str) -> bool:
    """Whether a turn without thoughts goes on with closing what the prompt ends with."""
    said = [bench.user(), bench.says("answer")]
    text = bench.render(said, tools=False, generation=False) or ""
    return text.startswith(prompt) and bool(_CLOSED.match(text[len(prompt) :].lstrip()))


def _behind_header(bench: Bench, prompt: str) -> str:
    """What the prompt says beyond the assistant's header, which a turn without thoughts has too.

    Where such turns begin with an empty thought, its opener counts as a part of the header.
    """
    said = [bench.user(), bench.says("answer")]
    plain = (
        bench.render(said, tools=False, generation=False),
        bench.render([*said, bench.user("more")], tools=False),
    )
    headers = [shared(prompt, text) for text in plain if text is not None]
    return prompt[min(map(len, headers), default=len(prompt)) :]


def _beginning(bench: Bench, switches: Switches) -> str | None:
    """How the model's turn begins: what asking for it adds to the conversation."""
    prompt = bench.render([bench.user()], switches=switches)
    plain = bench.render([bench.user()], switches=switches, generation=False)
    if prompt is None or plain is None:
        return None
    return prompt[len(shared(prompt, plain)) :]
