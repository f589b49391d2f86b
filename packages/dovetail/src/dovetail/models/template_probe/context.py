"""Render probe conversations in which every part can be found in the rendered text."""

import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.prompt.template import ChatMessages, ChatTemplate, RenderError

ProbeMessage = dict[str, Any]


class MarkerWords:
    """A unique word per part of a conversation, which occurs nowhere else in rendered text.

    The words are drawn with a fixed seed, so that probes of a template are reproducible.
    """

    __slots__ = ("_avoid", "_random", "_words")

    def __init__(self, avoid: str) -> None:
        self._avoid = avoid
        self._random = random.Random(68)
        self._words: dict[str, str] = {}

    def __getitem__(self, part: str) -> str:
        if part not in self._words:
            self._words[part] = self._new_word()
        return self._words[part]

    def _new_word(self) -> str:
        while True:
            letters = self._random.choices(string.ascii_lowercase, k=4)
            rest = self._random.choices(string.ascii_lowercase + string.digits, k=5)
            word = "".join((*letters, *rest))
            if word not in self._avoid:
                return word


@dataclass(frozen=True)
class ProbeContext:
    """A template, and the message forms that it accepts, as far as known.

    Methods do not raise: a conversation that the template rejects renders as None.
    """

    template: ChatTemplate
    switches: Mapping[str, Any]
    marks: MarkerWords
    content: Literal["string", "parts"] = "string"
    arguments: Literal["object", "string"] = "object"
    reasoning_field: str = "reasoning_content"
    reasoning_markers: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    needs_tools: bool = False
    requires_null_content: bool = False
    tools: Sequence[Mapping[str, Any]] = ()

    def render(
        self,
        messages: ChatMessages,
        *,
        tools: bool = True,
        add_generation_prompt: bool = True,
        switches: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Render messages, or return None if the template rejects them."""
        try:
            return self.template.render(
                messages,
                self.tools if tools or self.needs_tools else None,
                add_generation_prompt=add_generation_prompt,
                switches={**self.switches, **(switches or {})},
            )
        except RenderError:
            return None

    def user_message(self, part: str = "user") -> ProbeMessage:
        return {"role": "user", "content": self._content(self.marks[part])}

    def system_message(self, part: str = "system", role: str = "system") -> ProbeMessage:
        return {"role": role, "content": self._content(self.marks[part])}

    def assistant_message(self, part: str, reasoning: str = "") -> ProbeMessage:
        """Return an assistant turn with text, and with reasoning if that part is named."""
        message: ProbeMessage = {"role": "assistant", "content": self._content(self.marks[part])}
        return self._add_reasoning(message, reasoning)

    def call_message(self, *parts: str, text: str = "", reasoning: str = "") -> ProbeMessage:
        """Return an assistant turn with one call per part: its argument and the name of its id."""
        message: ProbeMessage = {
            "role": "assistant",
            "content": self._content(self.marks[text]) if text else self._empty_content(),
            "tool_calls": [self._tool_call(part) for part in parts],
        }
        return self._add_reasoning(message, reasoning)

    def result_message(self, call: str, part: str = "") -> ProbeMessage:
        """Return the result of a call, by default with a separate word."""
        return {
            "role": "tool",
            "tool_call_id": self.call_id(call),
            "name": self.marks["tool"],
            "content": self._content(self.marks[part or "result of " + call]),
        }

    def call_id(self, part: str) -> str:
        """Return the id of a call: nine letters and digits, which all templates accept."""
        return self.marks["id of " + part]

    def _tool_call(self, part: str) -> ProbeMessage:
        values = {"x": self.marks[part]}
        given = json.dumps(values) if self.arguments == "string" else values
        return {
            "id": self.call_id(part),
            "type": "function",
            "function": {"name": self.marks["tool"], "arguments": given},
        }

    def _add_reasoning(self, message: ProbeMessage, reasoning: str) -> ProbeMessage:
        """Add reasoning in the field of the template, or in the text if there is none."""
        if not reasoning:
            return message
        return add_reasoning(
            message, self.reasoning_field, self.marks[reasoning], self.reasoning_markers
        )

    def _empty_content(self) -> str | list[ProbeMessage] | None:
        return None if self.requires_null_content else self._content("")

    def _content(self, text: str) -> str | list[ProbeMessage]:
        return text if self.content == "string" else [{"type": "text", "text": text}]


def add_reasoning(
    message: ProbeMessage, field: str, reasoning: str, markers: tuple[str, str] = ("", "")
) -> ProbeMessage:
    """Add reasoning to a message: in a field, as a content part, or inside the text."""
    if field not in ("", "content"):
        return {**message, field: reasoning}
    content = message["content"] or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if field == "content":
        return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}
    text = f"{markers[0]}{reasoning}{markers[1]}" + "".join(part["text"] for part in parts)
    return {
        **message,
        "content": text if isinstance(content, str) else [{"type": "text", "text": text}],
    }


def create_context(template: ChatTemplate, switches: Mapping[str, Any]) -> ProbeContext:
    """Create a context with one tool."""
    marks = MarkerWords(template.text)
    schema = {
        "type": "object",
        "properties": {"x": {"type": "string", "description": marks["what x is"]}},
        "required": ["x"],
    }
    function = {
        "name": marks["tool"],
        "description": marks["what the tool does"],
        "parameters": schema,
    }
    return ProbeContext(
        template, switches, marks, tools=({"type": "function", "function": function},)
    )


def common_prefix(one: str, other: str) -> str:
    """Return the common prefix of two texts, without a partly equal tag at its end."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    common = one[: next(differs, min(len(one), len(other)))]
    return _PARTIAL_TAG.sub("", common)


_PARTIAL_TAG = re.compile(r"<[^<>\s]*\Z")
