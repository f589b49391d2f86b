"""Codex without its screen: a prompt given, and what it told of its session."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from real_models import TEMPLATES
from sandbox import Ran, Sandbox
from stage import Family

HEADLESS = ("--json", "--dangerously-bypass-approvals-and-sandbox", "-c", "features.plugins=false")
PLANS = ("-c", "tools.update_plan={enabled=true}")  # Codex does not offer them by itself
AGENTS = ("--enable", "multi_agent_v2")  # sub-agents with names, which a script can know
_KIMI_ID = re.compile(r"(<\|tool_call_begin\|>functions\.\w+:)\d+")


@dataclass(frozen=True)
class Told:
    """What it printed: an event a line. `status` is the one that it ended with."""

    events: tuple[Mapping[str, Any], ...]
    status: int
    err: str

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """What was done and said, each when it was over."""
        return [one["item"] for one in self.events if one["type"] == "item.completed"]

    @property
    def result(self) -> str:
        """Its last words. It must have ended well."""
        assert (self.status, self.events[-1]["type"]) == (0, "turn.completed"), self
        return str(self.said[-1])

    @property
    def said(self) -> list[str]:
        return [item["text"] for item in self.items if item["type"] == "agent_message"]

    @property
    def kinds(self) -> list[str]:
        """What was done, by kind and in its order."""
        return [item["type"] for item in self.items if item["type"] != "agent_message"]

    @property
    def errors(self) -> list[str]:
        """What it told of errors, of tools and of its own."""
        own = [one["message"] for one in self.events if one["type"] == "error"]
        items = [item for item in self.items if item["type"] == "error"]
        return own + [str(item["message"]) for item in items]

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """The tools that did not do what they were asked to."""
        return [item for item in self.items if item.get("status") == "failed"]


def codex(
    place: Sandbox, url: str, prompt: str, *arguments: str, flags: tuple[str, ...] = (), **more: str
) -> Told:
    """A prompt, worked on to its end. `flags` are those of `dovetail launch`, `more` variables."""
    ran = place.run("codex", url, "exec", *HEADLESS, *arguments, prompt, flags=flags, **more)
    return _told(ran)


def codex_again(
    place: Sandbox, url: str, prompt: str, *arguments: str, flags: tuple[str, ...] = ()
) -> Told:
    """A prompt more for the last session."""
    resumed = ("exec", "resume", "--last", *HEADLESS, *arguments, prompt)
    return _told(place.run("codex", url, *resumed, flags=flags))


def template_at_hand(family: Family) -> bool:
    """Whether the family's own template is there, and not only the one that its tokenizer has."""
    return (TEMPLATES / f"{family.template}.jinja").is_file()


def counted(turns: list[dict[str, Any]], before: int = 0) -> list[dict[str, Any]]:
    """Turns in Kimi's notation with their calls counted through the session, as Kimi does it."""
    number = count(before)
    return [
        {**turn, "text": _KIMI_ID.sub(lambda found: f"{found[1]}{next(number)}", turn["text"])}
        for turn in turns
    ]


def _told(ran: Ran) -> Told:
    lines = [line for line in ran.out.splitlines() if line.startswith("{")]
    return Told(tuple(json.loads(line) for line in lines), ran.status, ran.err)
