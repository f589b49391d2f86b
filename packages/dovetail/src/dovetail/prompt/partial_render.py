"""The template's own rendering, taken up again at a user turn instead of from the beginning.

Where a template drops the thoughts of a finished loop, that loop is rendered once more when the
next user turn comes. What stands before the loop has not changed: its prompt is known, and ends
with the user's turn and a generation prompt. So only the loop is rendered, behind a stand-in for
the user's text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.prompt.facts import Facts
from dovetail.prompt.messages import Message, content_of, tool_call
from dovetail.prompt.rendering_template import ChatTemplate, RenderError
from dovetail.prompt.splice import STUB_TOOL, nonce


class Resumption:
    """Renders from a user turn on, for templates that allow it."""

    def __init__(
        self, template: ChatTemplate, facts: Facts, switches: Mapping[str, Any] | None = None
    ) -> None:
        self._template = template
        self._switches = switches or {}
        self._tools = STUB_TOOL if facts.renders_tools else []
        self._facts = facts
        self._nonce = nonce()
        self.possible = all(self._agrees(thoughts) for thoughts in (True, False))

    def behind_user(
        self, messages: Sequence[Message], tools: bool, switches: Mapping[str, Any]
    ) -> str | None:
        """What follows a user's text when these messages come behind it."""
        user = {"role": "user", "content": content_of(self._facts, self._nonce)}
        try:
            text = self._template.render(
                [user, *messages], self._tools if tools else (), switches=switches
            )
        except RenderError:
            return None
        _, found, tail = text.partition(self._nonce)
        return tail if found else None

    def _agrees(self, thoughts: bool) -> bool:
        """Whether two loops rendered whole are the same as taken up again at the second."""
        first, second = self._loop(thoughts, "a"), self._loop(thoughts, "b")
        new = {"role": "user", "content": content_of(self._facts, "Last.")}
        try:
            known = self._render([*first, second[0]])
            whole = self._render([*first, *second, new])
        except RenderError:
            return False
        opening = self.behind_user([], True, self._switches)
        rest = self.behind_user([*second[1:], new], True, self._switches)
        if not opening or rest is None or not known.endswith(opening):
            return False
        return known.removesuffix(opening) + rest == whole

    def _render(self, messages: Sequence[Message]) -> str:
        return self._template.render(messages, self._tools, switches=self._switches)

    def _loop(self, thoughts: bool, mark: str) -> list[Message]:
        """A question, a call, its result and an answer."""
        facts = self._facts
        arguments: Any = '{"x": 1}' if facts.arguments == "string" else {"x": 1}
        call = tool_call(f"call0000{ord(mark) % 10}", "f", arguments)
        calls: Message = {
            "role": "assistant",
            "content": None if facts.wants_null else content_of(facts, ""),
            "tool_calls": [call],
        }
        answer: Message = {"role": "assistant", "content": content_of(facts, f"Answer {mark}.")}
        if thoughts:
            calls |= dict.fromkeys(facts.reasoning_fields, f"Thought {mark}.")
            answer |= dict.fromkeys(facts.reasoning_fields, f"Second thought {mark}.")
        result = {
            "role": "tool",
            "content": content_of(facts, f"Result {mark}."),
            "tool_call_id": call["id"],
            "name": "f",
        }
        user = {"role": "user", "content": content_of(facts, f"Question {mark}?")}
        return [user, calls, result, answer]
