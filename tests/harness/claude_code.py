"""Claude Code without its screen: a prompt given, and what it told of its session."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox import Ran, Sandbox

from dovetail.engines.scripted.generation_log import RecordedGeneration

HEADLESS = ("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")


@dataclass(frozen=True)
class Told:
    """What it printed: an event a line, the result last."""

    events: tuple[Mapping[str, Any], ...]

    @property
    def result(self) -> str:
        """Its last words. It must have ended well."""
        last = self.events[-1]
        assert (last["type"], last["subtype"], last["is_error"]) == ("result", "success", False)
        return str(last["result"])

    @property
    def session(self) -> str:
        return str(self.events[-1]["session_id"])

    @property
    def tools(self) -> list[str]:
        """The calls that it was given, by name and in their order, a subagent's too."""
        return [block["name"] for block in self._blocks("assistant", "tool_use")]

    @property
    def failed(self) -> list[str]:
        """What tools said that failed."""
        blocks = self._blocks("user", "tool_result")
        return [str(block["content"]) for block in blocks if block.get("is_error")]

    def _blocks(self, kind: str, block: str) -> list[Mapping[str, Any]]:
        contents = [one["message"]["content"] for one in self.events if one["type"] == kind]
        lists = [content for content in contents if isinstance(content, list)]
        return [one for content in lists for one in content if one["type"] == block]


def behind_the_system_text(before: RecordedGeneration, after: RecordedGeneration) -> bool:
    """Whether a prompt goes on exactly from an earlier one, but for its system message.

    The token that ended the earlier answer also ends messages: the first of them is the system's.
    """
    end, whole = before.output[-1], before.prompt + before.output
    kept = whole[whole.index(end) :]
    start = after.prompt.index(end)
    return after.prompt[start : start + len(kept)] == kept


def hide(place: Sandbox, name: str) -> None:
    """Git does not tell of this file. Claude Code tells its status anew when it resumes."""
    (place.work / ".git" / "info" / "exclude").write_text(f"{name}\n")


def claude(
    place: Sandbox, url: str, prompt: str, *arguments: str, flags: tuple[str, ...] = (), **more: str
) -> Told:
    """A prompt, worked on to its end."""
    ran = place.run("claude", url, "-p", prompt, *HEADLESS, *arguments, flags=flags, **more)
    assert ran.status == 0, f"{ran.out[-3000:]}\n{ran.err[-3000:]}"
    return told(ran)


def told(ran: Ran) -> Told:
    return Told(tuple(json.loads(line) for line in ran.out.splitlines() if line.startswith("{")))
