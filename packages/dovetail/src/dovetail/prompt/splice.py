"""Render the messages after an assistant turn without rendering the turn itself.

A placeholder replaces the turn: the same calls by name and id, with a nonce as argument, or the
nonce as text. The text after the last nonce consists of the closing of the turn, its stop token,
the following messages and the generation prompt. The part from the stop token on is the suffix that
is appended to the generated tokens of the turn.

The position of the stop token is determined once, when the model is loaded. If the placeholder is
not rendered like a natural turn, turns are not spliced.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.prompt.messages import ChatMessage, format_content, format_tool_call
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile

FollowingRole = Literal["tool", "user", "system"]
ContextDependency = Literal["nothing", "calls", "history"]


@dataclass(frozen=True)
class SpliceShape:
    """The kind of a splice: a turn with or without calls, and the role of the next message."""

    calls: bool
    following_role: FollowingRole


@dataclass(frozen=True)
class SplicePoint:
    """How turns of a shape end.

    `stop`: the stop token.
    `closings`: the possible texts before the stop token.
    `placeholder`: the form of the placeholder.
    `depends_on`: the part of the earlier messages that affects the suffix: nothing, only the calls
    (a few templates number them across the history), or the complete history.
    """

    stop: str
    closings: frozenset[str]
    placeholder: Literal["calls", "one call", "content"]
    depends_on: ContextDependency


class StopTokenMatcher:
    """Matches the texts that may end a turn, the most certain first."""

    def __init__(self, ends: Sequence[str], controls: Sequence[str], markers: frozenset[str]):
        inner = [c for c in controls if any(c in marker for marker in markers)]
        outer = [c for c in controls if c not in inner]
        self._patterns = [
            _compile_alternatives(ends),
            _compile_alternatives(outer),
            _compile_alternatives(controls),
        ]

    def find_first(self, tail: str, before: str) -> str | None:
        """Find the first stop token in a tail, which must end before the text `before`."""
        limit = tail.find(before)
        for pattern in self._patterns:
            found = pattern.search(tail) if pattern is not None else None
            if found is not None and (limit < 0 or found.end() <= limit):
                return found[0]
        return None


class Splicer:
    """Renders the suffixes of turns with one template."""

    def __init__(
        self,
        template: ChatTemplate,
        profile: TemplateProfile,
        stops: StopTokenMatcher,
        switches: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._profile = profile
        self.switches = switches or {}
        self.tools = STUB_TOOL if profile.renders_tools else []
        self._nonce = create_nonce()
        self._stub_history = _adapt_history(profile, _STUB_HISTORY)
        self.points: dict[SpliceShape, SplicePoint] = {}
        for calls in (False, True):
            for follower in ("tool", "user", "system"):
                shape = SpliceShape(calls, follower)
                point = _find_point(self, shape, stops)
                if point is not None:
                    self.points[shape] = point

    @property
    def stop_tokens(self) -> frozenset[str]:
        """The stop tokens of turns of any shape."""
        return frozenset(point.stop for point in self.points.values())

    @property
    def strongest_dependency(self) -> ContextDependency:
        """The strongest dependency of all splice points, for a suffix with assistant turns."""
        orders: tuple[ContextDependency, ...] = ("history", "calls", "nothing")
        found = {point.depends_on for point in self.points.values()}
        return next((one for one in orders if one in found), "nothing")

    @property
    def profile(self) -> TemplateProfile:
        return self._profile

    def render_suffix(
        self,
        point: SplicePoint,
        calls: Sequence[tuple[str, str]],
        before: Sequence[ChatMessage],
        after: Sequence[ChatMessage],
        tools: Sequence[ChatMessage],
        switches: Mapping[str, Any],
    ) -> str | None:
        """Render the stop token and the text after it.

        Returns None if the template renders another closing than at load. `before` contains only
        the messages that the splice point depends on.
        """
        previous = [*self._stub_history, *before] if point.depends_on != "history" else before
        shown = tools if point.depends_on == "history" else self.tools if tools else ()
        tail = self.render_after_nonce(point.placeholder, calls, previous, after, shown, switches)
        if tail is None:
            return None
        stop_index = tail.find(point.stop)
        if stop_index < 0 or tail[:stop_index] not in format_closings(point, calls):
            return None
        return tail[stop_index:]

    def render_after_nonce(
        self,
        form: str,
        calls: Sequence[tuple[str, str]],
        before: Sequence[ChatMessage],
        after: Sequence[ChatMessage],
        tools: Sequence[ChatMessage],
        switches: Mapping[str, Any],
    ) -> str | None:
        """Render the text after the last nonce of the placeholder."""
        placeholder = self._placeholder_turn(form, calls)
        try:
            text = self._template.render(
                [*before, placeholder, *after], tools, add_generation_prompt=True, switches=switches
            )
        except RenderError:
            return None
        _, found, tail = text.rpartition(self._nonce)
        return tail if found else None

    def is_natural_suffix(
        self,
        form: str,
        calls: Sequence[tuple[str, str]],
        before: Sequence[ChatMessage],
        after: Sequence[ChatMessage],
        suffix: str,
    ) -> bool:
        """Return whether a natural turn also ends with this suffix."""
        natural = self._placeholder_turn(form, calls)
        for call in natural.get("tool_calls", ()):
            arguments = {"city": "Oslo", "days": 2}
            as_text = self._profile.arguments == "string"
            call["function"]["arguments"] = json.dumps(arguments) if as_text else arguments
        if not natural.get("tool_calls"):
            natural["content"] = format_content(self._profile, "Sure.")
        try:
            text = self._template.render(
                [*before, natural, *after], self.tools, switches=self.switches
            )
        except RenderError:
            return False
        return text.endswith(suffix)

    def _placeholder_turn(self, form: str, calls: Sequence[tuple[str, str]]) -> ChatMessage:
        if form == "content" or not calls:
            return {"role": "assistant", "content": format_content(self._profile, self._nonce)}
        argument: Any = {"x": self._nonce}
        if self._profile.arguments == "string":
            argument = f'{{"x": "{self._nonce}"}}'
        shown = calls[:1] if form == "one call" else calls
        tool_calls = [format_tool_call(id, name, argument) for id, name in shown]
        empty = None if self._profile.wants_null else format_content(self._profile, "")
        return {"role": "assistant", "content": empty, "tool_calls": tool_calls}


def format_closings(point: SplicePoint, calls: Sequence[tuple[str, str]]) -> set[str]:
    """Return the closings of a turn with these calls. Some contain the id of the last call."""
    id, name = calls[-1] if calls else ("", "")
    return {
        text.replace(_ID_PLACEHOLDER, id).replace(_NAME_PLACEHOLDER, name)
        for text in point.closings
    }


def create_nonce() -> str:
    """Create a nonce of letters and digits: several templates escape other characters."""
    return "Q" + secrets.token_hex(8) + "z"


_STUB_HISTORY: list[ChatMessage] = [{"role": "user", "content": "x"}]
_ID_PLACEHOLDER, _NAME_PLACEHOLDER = "\0id", "\0name"  # stand for the last call in a closing
_STUB_TOOL_NAME = "read_x7q"  # unique, so that no other text of a template contains it
STUB_TOOL: list[ChatMessage] = [
    {
        "type": "function",
        "function": {
            "name": _STUB_TOOL_NAME,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": ""}},
                "required": ["x"],
            },
        },
    }
]
_LONG_HISTORY: list[ChatMessage] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Three."},
]
_PLACEHOLDER_FORMS: tuple[Literal["calls", "one call", "content"], ...] = (
    "calls",
    "one call",
    "content",
)


def _compile_alternatives(spellings: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, spellings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _generalize_closing(text: str, calls: Sequence[tuple[str, str]]) -> str:
    """Replace the id and the name of the last call in a closing with placeholders."""
    for id, name in calls[-1:]:
        text = text.replace(id, _ID_PLACEHOLDER).replace(name, _NAME_PLACEHOLDER)
    return text


def _find_point(
    splicer: Splicer, shape: SpliceShape, stops: StopTokenMatcher
) -> SplicePoint | None:
    """Find the splice point of a shape, if the template has one."""
    forms = _PLACEHOLDER_FORMS if shape.calls else _PLACEHOLDER_FORMS[2:]
    return next((s for form in forms if (s := _try_point(splicer, shape, stops, form))), None)


def _try_point(
    splicer: Splicer, shape: SpliceShape, stops: StopTokenMatcher, form: Any
) -> SplicePoint | None:
    mark = create_nonce()
    counts = (1, 2) if form == "calls" else (1,)
    before = _adapt_history(splicer.profile, _STUB_HISTORY)
    found: dict[str, str] = {}
    for count in counts if shape.calls else (0,):
        calls = _sample_calls(splicer.profile, count)
        following = _following_messages(splicer.profile, shape, calls, mark)
        tail = splicer.render_after_nonce(
            form, calls, before, following, splicer.tools, splicer.switches
        )
        stop = stops.find_first(tail, mark) if tail is not None else None
        if tail is None or stop is None or mark not in tail:
            return None
        suffix = tail[tail.find(stop) :]
        if not splicer.is_natural_suffix(form, calls, before, following, suffix):
            return None
        found[_generalize_closing(tail[: tail.find(stop)], calls)] = stop
    stops_found = set(found.values())
    if len(stops_found) != 1:
        return None
    return SplicePoint(
        stops_found.pop(), frozenset(found), form, _find_dependency(splicer, shape, form)
    )


def _find_dependency(splicer: Splicer, shape: SpliceShape, form: str) -> ContextDependency:
    """Find which part of a longer history, with calls and other tools, changes the suffix."""
    profile, mark = splicer.profile, create_nonce()
    calls = _sample_calls(profile, 1 if shape.calls else 0)
    following = _following_messages(profile, shape, calls, mark)
    looped = [*_LONG_HISTORY, *_sample_loop(profile)]
    histories = [
        (_STUB_HISTORY, 1),
        (_LONG_HISTORY, 2),
        (looped, 1),
        ([*_STUB_HISTORY, *keep_calls_only(looped)], 1),
    ]
    alone, longer, with_calls, thin = (
        splicer.render_after_nonce(
            form,
            calls,
            _adapt_history(profile, before),
            following,
            splicer.tools * tools,
            splicer.switches,
        )
        for before, tools in histories
    )
    if alone is None or alone != longer:
        return "history"
    if with_calls in (alone, None):  # None: the template receives calls only as plain text
        return "nothing"
    return "calls" if with_calls == thin else "history"


def keep_calls_only(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Reduce a history to its calls and results, without content."""
    return [
        {**message, "content": ""}
        for message in messages
        if message.get("tool_calls") or message["role"] == "tool"
    ]


def _sample_loop(profile: TemplateProfile) -> list[ChatMessage]:
    """Return a call, its result, a final message and another user message."""
    arguments: Any = '{"x": 1}' if profile.arguments == "string" else {"x": 1}
    id, name = _sample_calls(profile, 8)[7]
    return [
        {"role": "assistant", "content": "", "tool_calls": [format_tool_call(id, name, arguments)]},
        {"role": "tool", "content": "four", "tool_call_id": id, "name": name},
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": "Six."},
    ]


def _adapt_history(profile: TemplateProfile, messages: list[ChatMessage]) -> list[ChatMessage]:
    accepted = [m for m in messages if m["role"] != "system" or profile.system == "kept"]
    return [{**m, "content": format_content(profile, m["content"])} for m in accepted]


def _sample_calls(profile: TemplateProfile, count: int) -> list[tuple[str, str]]:
    styles = {"kimi": f"functions.{_STUB_TOOL_NAME}:{{}}", "nine": "call0000{}", "any": "call_{}"}
    return [(styles[profile.call_ids].format(at), _STUB_TOOL_NAME) for at in range(count)]


def _following_messages(
    profile: TemplateProfile, shape: SpliceShape, calls: list[tuple[str, str]], mark: str
) -> list[ChatMessage]:
    content = format_content(profile, mark)
    if shape.following_role != "tool":
        return [{"role": shape.following_role, "content": content}]
    result_calls = calls or [("call00000", _STUB_TOOL_NAME)]
    return [
        {"role": "tool", "content": content, "tool_call_id": id, "name": name}
        for id, name in result_calls
    ]
