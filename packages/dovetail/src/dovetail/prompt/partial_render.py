"""Render a conversation with the template from a user turn on, not from the beginning.

If a template drops the reasoning of a finished tool loop, the loop must be rendered again when the
next user turn arrives. The prompt before the loop has not changed: it is known, and ends with the
user turn and a generation prompt. Therefore only the loop is rendered, after a placeholder for the
user text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.prompt.messages import ChatMessage, format_content, format_tool_call
from dovetail.prompt.splice import STUB_TOOL, create_nonce
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile


class PartialRenderer:
    """Renders from a user turn on. `supported`: the result equals that of a full render."""

    def __init__(
        self,
        template: ChatTemplate,
        profile: TemplateProfile,
        switches: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = template
        self._switches = switches or {}
        self._tools = STUB_TOOL if profile.renders_tools else []
        self._profile = profile
        self._nonce = create_nonce()
        self.supported = all(map(self._matches_full_render, (True, False)))

    def render_after_user(
        self, messages: Sequence[ChatMessage], tools: bool, switches: Mapping[str, Any]
    ) -> str | None:
        """Render the text after a user text that is followed by these messages."""
        user = {"role": "user", "content": format_content(self._profile, self._nonce)}
        try:
            text = self._template.render(
                [user, *messages], self._tools if tools else (), switches=switches
            )
        except RenderError:
            return None
        _, found, tail = text.partition(self._nonce)
        return tail if found else None

    def _matches_full_render(self, with_reasoning: bool) -> bool:
        """Return whether a render from the second of two loops equals the render of both."""
        first, second = (
            self._sample_loop(with_reasoning, "a"),
            self._sample_loop(with_reasoning, "b"),
        )
        new = {"role": "user", "content": format_content(self._profile, "Last.")}
        try:
            known = self._render([*first, second[0]])
            whole = self._render([*first, *second, new])
        except RenderError:
            return False
        opening = self.render_after_user([], True, self._switches)
        rest = self.render_after_user([*second[1:], new], True, self._switches)
        if not opening or rest is None or not known.endswith(opening):
            return False
        return known.removesuffix(opening) + rest == whole

    def _render(self, messages: Sequence[ChatMessage]) -> str:
        return self._template.render(messages, self._tools, switches=self._switches)

    def _sample_loop(self, with_reasoning: bool, mark: str) -> list[ChatMessage]:
        """Return a user message, a call, its result and a final message."""
        profile = self._profile
        arguments: Any = '{"x": 1}' if profile.arguments == "string" else {"x": 1}
        call = format_tool_call(f"call0000{ord(mark) % 10}", "f", arguments)
        calls: ChatMessage = {
            "role": "assistant",
            "content": None if profile.wants_null else format_content(profile, ""),
            "tool_calls": [call],
        }
        final: ChatMessage = {
            "role": "assistant",
            "content": format_content(profile, f"Final {mark}."),
        }
        if with_reasoning:
            calls |= dict.fromkeys(profile.reasoning_fields, f"Reasoning {mark}.")
            final |= dict.fromkeys(profile.reasoning_fields, f"Second reasoning {mark}.")
        result = {
            "role": "tool",
            "content": format_content(profile, f"Result {mark}."),
            "tool_call_id": call["id"],
            "name": "f",
        }
        user = {"role": "user", "content": format_content(profile, f"Question {mark}?")}
        return [user, calls, result, final]
