"""What a template writes behind an assistant turn, found without rendering the turn itself.

A stand-in takes the turn's place: the same calls by name and id, with a nonce as their argument,
or the nonce as its text. What follows the last nonce is the closing of the turn, the token that
ends it, the messages behind it and the generation prompt. From the end token on, that is the
suffix which continues what the model itself wrote, whatever it wrote.

How to find the end token is learned once, at load, and never chosen while serving: a template
whose stand-in does not behave like a natural turn is not spliced in that place.
"""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.prompt.facts import Facts
from dovetail.prompt.messages import Message, content_of, tool_call
from dovetail.prompt.rendering_template import ChatTemplate, RenderError

Follower = Literal["tool", "user", "system"]
HangsOn = Literal["nothing", "calls", "history"]


@dataclass(frozen=True)
class Shape:
    """Where a splice stands: behind a turn with or without calls, before a result or a user."""

    calls: bool
    follower: Follower


@dataclass(frozen=True)
class Seam:
    """How turns of a shape end: the end token, the closings before it, and the stand-in's form.

    `hangs_on` says what of the messages before the turn changes what follows it: nothing, or the
    calls alone (a few templates number them through the history), or anything.
    """

    stop: str
    closings: frozenset[str]
    stand_in: Literal["calls", "one call", "content"]
    hangs_on: HangsOn


class Stops:
    """The spellings that may end a turn, surest first."""

    def __init__(self, ends: Sequence[str], controls: Sequence[str], markers: frozenset[str]):
        inner = [c for c in controls if any(c in marker for marker in markers)]
        outer = [c for c in controls if c not in inner]
        self._ranks = [_any_of(ends), _any_of(outer), _any_of(controls)]

    def first(self, tail: str, before: str) -> str | None:
        """The first end token in a tail, in front of the text that must come behind it."""
        limit = tail.find(before)
        for pattern in self._ranks:
            found = pattern.search(tail) if pattern is not None else None
            if found is not None and (limit < 0 or found.end() <= limit):
                return found[0]
        return None


class Splicer:
    """The suffixes of one template."""

    def __init__(
        self,
        template: ChatTemplate,
        facts: Facts,
        stops: Stops,
        switches: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._facts = facts
        self.switches = switches or {}
        self.tools = STUB_TOOL if facts.renders_tools else []
        self._nonce = nonce()
        self._stub = _before(facts, _STUB)
        self.seams: dict[Shape, Seam] = {}
        for calls in (False, True):
            for follower in ("tool", "user", "system"):
                shape = Shape(calls, follower)
                seam = _learn(self, shape, stops)
                if seam is not None:
                    self.seams[shape] = seam

    @property
    def ends(self) -> frozenset[str]:
        """The tokens that end turns of any shape."""
        return frozenset(seam.stop for seam in self.seams.values())

    @property
    def strongest(self) -> HangsOn:
        """What a suffix hangs on that holds whole turns: as much as any seam does."""
        orders: tuple[HangsOn, ...] = ("history", "calls", "nothing")
        found = {seam.hangs_on for seam in self.seams.values()}
        return next((one for one in orders if one in found), "nothing")

    @property
    def facts(self) -> Facts:
        return self._facts

    def tail(
        self,
        seam: Seam,
        calls: Sequence[tuple[str, str]],
        before: Sequence[Message],
        behind: Sequence[Message],
        tools: Sequence[Message],
        switches: Mapping[str, Any],
    ) -> str | None:
        """The end token and all that follows it; None where the template did as never before.

        `before` is only what the seam hangs on.
        """
        previous = [*self._stub, *before] if seam.hangs_on != "history" else before
        shown = tools if seam.hangs_on == "history" else self.tools if tools else ()
        tail = self.behind_nonce(seam.stand_in, calls, previous, behind, shown, switches)
        if tail is None:
            return None
        cut = tail.find(seam.stop)
        if cut < 0 or tail[:cut] not in closings(seam, calls):
            return None
        return tail[cut:]

    def behind_nonce(
        self,
        form: str,
        calls: Sequence[tuple[str, str]],
        before: Sequence[Message],
        behind: Sequence[Message],
        tools: Sequence[Message],
        switches: Mapping[str, Any],
    ) -> str | None:
        """What the template writes behind the stand-in's last nonce."""
        stand_in = self._stand_in(form, calls)
        try:
            text = self._template.render(
                [*before, stand_in, *behind], tools, generation=True, switches=switches
            )
        except RenderError:
            return None
        _, found, tail = text.rpartition(self._nonce)
        return tail if found else None

    def ends_so(
        self,
        form: str,
        calls: Sequence[tuple[str, str]],
        before: Sequence[Message],
        behind: Sequence[Message],
        suffix: str,
    ) -> bool:
        """Whether a natural turn, too, ends with this suffix."""
        natural = self._stand_in(form, calls)
        for call in natural.get("tool_calls", ()):
            arguments = {"city": "Oslo", "days": 2}
            as_text = self._facts.arguments == "string"
            call["function"]["arguments"] = json.dumps(arguments) if as_text else arguments
        if not natural.get("tool_calls"):
            natural["content"] = content_of(self._facts, "Sure.")
        try:
            text = self._template.render(
                [*before, natural, *behind], self.tools, switches=self.switches
            )
        except RenderError:
            return False
        return text.endswith(suffix)

    def _stand_in(self, form: str, calls: Sequence[tuple[str, str]]) -> Message:
        if form == "content" or not calls:
            return {"role": "assistant", "content": content_of(self._facts, self._nonce)}
        argument: Any = {"x": self._nonce}
        if self._facts.arguments == "string":
            argument = f'{{"x": "{self._nonce}"}}'
        kept = calls[:1] if form == "one call" else calls
        made = [tool_call(id, name, argument) for id, name in kept]
        nothing = None if self._facts.wants_null else content_of(self._facts, "")
        return {"role": "assistant", "content": nothing, "tool_calls": made}


def closings(seam: Seam, calls: Sequence[tuple[str, str]]) -> set[str]:
    """How a turn with these calls may close. A few formats end with the last call's id."""
    id, name = calls[-1] if calls else ("", "")
    return {text.replace(_ID, id).replace(_CALLED, name) for text in seam.closings}


def nonce() -> str:
    """Letters and digits only: several templates escape anything else."""
    return "Q" + secrets.token_hex(8) + "z"


_STUB: list[Message] = [{"role": "user", "content": "x"}]
_ID, _CALLED = "\0id", "\0name"  # in a closing, for the last call's
_NAME = "read_x7q"  # of the probes' tool; found nowhere else in what a template writes
STUB_TOOL: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": ""}},
                "required": ["x"],
            },
        },
    }
]
_LONG: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One."},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "Three."},
]
_FORMS: tuple[Literal["calls", "one call", "content"], ...] = ("calls", "one call", "content")


def _any_of(spellings: Sequence[str]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, spellings), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _nameless(text: str, calls: Sequence[tuple[str, str]]) -> str:
    """A closing whatever its last call is named. The probe's names stand nowhere else."""
    for id, name in calls[-1:]:
        text = text.replace(id, _ID).replace(name, _CALLED)
    return text


def _learn(splicer: Splicer, shape: Shape, stops: Stops) -> Seam | None:
    """The seam of a shape, if the template has one."""
    forms = _FORMS if shape.calls else _FORMS[2:]
    return next((s for form in forms if (s := _seam(splicer, shape, stops, form))), None)


def _seam(splicer: Splicer, shape: Shape, stops: Stops, form: Any) -> Seam | None:
    mark = nonce()
    counts = (1, 2) if form == "calls" else (1,)
    before = _before(splicer.facts, _STUB)
    found: dict[str, str] = {}
    for count in counts if shape.calls else (0,):
        calls = _numbered(splicer.facts, count)
        behind = _behind(splicer.facts, shape, calls, mark)
        tail = splicer.behind_nonce(form, calls, before, behind, splicer.tools, splicer.switches)
        stop = stops.first(tail, mark) if tail is not None else None
        if tail is None or stop is None or mark not in tail:
            return None
        suffix = tail[tail.find(stop) :]
        if not splicer.ends_so(form, calls, before, behind, suffix):
            return None
        found[_nameless(tail[: tail.find(stop)], calls)] = stop
    stops_found = set(found.values())
    if len(stops_found) != 1:
        return None
    return Seam(stops_found.pop(), frozenset(found), form, _hangs_on(splicer, shape, form))


def _hangs_on(splicer: Splicer, shape: Shape, form: str) -> HangsOn:
    """What of a longer history, with a loop of calls in it and other tools, changes the suffix."""
    facts, mark = splicer.facts, nonce()
    calls = _numbered(facts, 1 if shape.calls else 0)
    behind = _behind(facts, shape, calls, mark)
    looped = [*_LONG, *_loop(facts)]
    histories = [(_STUB, 1), (_LONG, 2), (looped, 1), ([*_STUB, *thinned(looped)], 1)]
    alone, longer, with_calls, thin = (
        splicer.behind_nonce(
            form, calls, _before(facts, before), behind, splicer.tools * tools, splicer.switches
        )
        for before, tools in histories
    )
    if alone is None or alone != longer:
        return "history"
    if with_calls in (alone, None):  # None: it never gets calls but as plain text
        return "nothing"
    return "calls" if with_calls == thin else "history"


def thinned(messages: Sequence[Message]) -> list[Message]:
    """Only the calls and results of a history, with nothing in them."""
    return [
        {**message, "content": ""}
        for message in messages
        if message.get("tool_calls") or message["role"] == "tool"
    ]


def _loop(facts: Facts) -> list[Message]:
    """A call, its result, an answer and another question."""
    arguments: Any = '{"x": 1}' if facts.arguments == "string" else {"x": 1}
    id, name = _numbered(facts, 8)[7]
    return [
        {"role": "assistant", "content": "", "tool_calls": [tool_call(id, name, arguments)]},
        {"role": "tool", "content": "four", "tool_call_id": id, "name": name},
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": "Six."},
    ]


def _before(facts: Facts, messages: list[Message]) -> list[Message]:
    kept = [m for m in messages if m["role"] != "system" or facts.system == "kept"]
    return [{**m, "content": content_of(facts, m["content"])} for m in kept]


def _numbered(facts: Facts, count: int) -> list[tuple[str, str]]:
    styles = {"kimi": f"functions.{_NAME}:{{}}", "nine": "call0000{}", "any": "call_{}"}
    return [(styles[facts.call_ids].format(at), _NAME) for at in range(count)]


def _behind(facts: Facts, shape: Shape, calls: list[tuple[str, str]], mark: str) -> list[Message]:
    content = content_of(facts, mark)
    if shape.follower != "tool":
        return [{"role": shape.follower, "content": content}]
    answered = calls or [("call00000", _NAME)]
    return [
        {"role": "tool", "content": content, "tool_call_id": id, "name": name}
        for id, name in answered
    ]
