"""Run Codex headless: a prompt, and the events it prints."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from client_sandbox import ClientResult, Sandbox
from real_models import TEMPLATES
from server_setup import Family

HEADLESS = ("--json", "--dangerously-bypass-approvals-and-sandbox", "-c", "features.plugins=false")
PLANS = ("-c", "tools.update_plan={enabled=true}")  # disabled in Codex by default
AGENTS = ("--enable", "multi_agent_v2")  # sub-agents with names, which a script can know
_KIMI_ID = re.compile(r"(<\|tool_call_begin\|>functions\.\w+:)\d+")


@dataclass(frozen=True)
class CodexRun:
    """The printed events and the exit status."""

    events: tuple[Mapping[str, Any], ...]
    status: int
    err: str

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """The completed items, in order."""
        return [one["item"] for one in self.events if one["type"] == "item.completed"]

    @property
    def result(self) -> str:
        """The text of the last message of a successful run."""
        assert (self.status, self.events[-1]["type"]) == (0, "turn.completed"), self
        return str(self.messages[-1])

    @property
    def messages(self) -> list[str]:
        return [item["text"] for item in self.items if item["type"] == "agent_message"]

    @property
    def kinds(self) -> list[str]:
        """The kinds of items other than messages, in order."""
        return [item["type"] for item in self.items if item["type"] != "agent_message"]

    @property
    def errors(self) -> list[str]:
        """The reported errors, of tools and of Codex itself."""
        own = [one["message"] for one in self.events if one["type"] == "error"]
        items = [item for item in self.items if item["type"] == "error"]
        return own + [str(item["message"]) for item in items]

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """The items of failed tools."""
        return [item for item in self.items if item.get("status") == "failed"]


def codex(
    sandbox: Sandbox,
    url: str,
    prompt: str,
    *arguments: str,
    flags: tuple[str, ...] = (),
    **more: str,
) -> CodexRun:
    """Run a prompt to its end. `flags` are those of `dovetail launch`, `more` variables."""
    result = sandbox.run("codex", url, "exec", *HEADLESS, *arguments, prompt, flags=flags, **more)
    return _parse_run(result)


def codex_resume(
    sandbox: Sandbox, url: str, prompt: str, *arguments: str, flags: tuple[str, ...] = ()
) -> CodexRun:
    """Run another prompt in the last session."""
    resumed = ("exec", "resume", "--last", *HEADLESS, *arguments, prompt)
    return _parse_run(sandbox.run("codex", url, *resumed, flags=flags))


def has_template(family: Family) -> bool:
    """Whether the family's own template is available, not only its tokenizer's."""
    return (TEMPLATES / f"{family.template}.jinja").is_file()


def number_calls(turns: list[dict[str, Any]], before: int = 0) -> list[dict[str, Any]]:
    """Number the calls of turns in Kimi's notation through the session, as Kimi does."""
    number = count(before)
    return [
        {**turn, "text": _KIMI_ID.sub(lambda found: f"{found[1]}{next(number)}", turn["text"])}
        for turn in turns
    ]


def _parse_run(result: ClientResult) -> CodexRun:
    lines = [line for line in result.out.splitlines() if line.startswith("{")]
    return CodexRun(tuple(json.loads(line) for line in lines), result.status, result.err)
