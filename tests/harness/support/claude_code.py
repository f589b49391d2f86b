"""Run Claude Code headless: a prompt, and the events it prints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from client_sandbox import ClientResult, Sandbox

from dovetail.engines.scripted.engine import RecordedGeneration

HEADLESS = ("--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions")


@dataclass(frozen=True)
class ClaudeRun:
    """The printed events, the result last."""

    events: tuple[Mapping[str, Any], ...]

    @property
    def result(self) -> str:
        """The text of the result, which must be a success."""
        last = self.events[-1]
        assert (last["type"], last["subtype"], last["is_error"]) == ("result", "success", False)
        return str(last["result"])

    @property
    def session(self) -> str:
        return str(self.events[-1]["session_id"])

    @property
    def tools(self) -> list[str]:
        """The names of the calls in order, including a subagent's."""
        return [block["name"] for block in self._blocks("assistant", "tool_use")]

    @property
    def failed(self) -> list[str]:
        """The output of failed tools."""
        blocks = self._blocks("user", "tool_result")
        return [str(block["content"]) for block in blocks if block.get("is_error")]

    def _blocks(self, kind: str, block: str) -> list[Mapping[str, Any]]:
        contents = [one["message"]["content"] for one in self.events if one["type"] == kind]
        lists = [content for content in contents if isinstance(content, list)]
        return [one for content in lists for one in content if one["type"] == block]


def continues_after_system_text(before: RecordedGeneration, after: RecordedGeneration) -> bool:
    """Whether a prompt continues an earlier one exactly, except for its system message.

    The token that ended the earlier output also ends messages: the first of them is the system's.
    """
    end, whole = before.output[-1], before.prompt + before.output
    expected = whole[whole.index(end) :]
    start = after.prompt.index(end)
    return after.prompt[start : start + len(expected)] == expected


def ignore_in_git(sandbox: Sandbox, name: str) -> None:
    """Exclude a file from Git's status, which Claude Code renders again when it resumes."""
    (sandbox.work / ".git" / "info" / "exclude").write_text(f"{name}\n")


def claude(
    sandbox: Sandbox,
    url: str,
    prompt: str,
    *arguments: str,
    flags: tuple[str, ...] = (),
    **more: str,
) -> ClaudeRun:
    """Run a prompt to its end."""
    result = sandbox.run("claude", url, "-p", prompt, *HEADLESS, *arguments, flags=flags, **more)
    assert result.status == 0, f"{result.out[-3000:]}\n{result.err[-3000:]}"
    return parse_run(result)


def parse_run(result: ClientResult) -> ClaudeRun:
    return ClaudeRun(
        tuple(json.loads(line) for line in result.out.splitlines() if line.startswith("{"))
    )
