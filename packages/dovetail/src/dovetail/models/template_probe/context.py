"""The bench on which a template is tried: small conversations, every part of them to be found."""

import json
import random
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.prompt.rendering_template import ChatTemplate, ChatMessages, RenderError

Message = dict[str, Any]


class Marks:
    """A word for every part of a conversation, found nowhere else in what a template writes.

    The words are drawn with a fixed seed: two probes of one template agree to the byte.
    """

    __slots__ = ("_avoid", "_draw", "_words")

    def __init__(self, avoid: str) -> None:
        self._avoid = avoid
        self._draw = random.Random(68)
        self._words: dict[str, str] = {}

    def __getitem__(self, part: str) -> str:
        if part not in self._words:
            self._words[part] = self._fresh()
        return self._words[part]

    def _fresh(self) -> str:
        while True:
            letters = self._draw.choices(string.ascii_lowercase, k=4)
            rest = self._draw.choices(string.ascii_lowercase + string.digits, k=5)
            word = "".join((*letters, *rest))
            if word not in self._avoid:
                return word


@dataclass(frozen=True)
class Bench:
    """A template, and the form in which it takes messages as far as that is known.

    Nothing here raises: a conversation that the template refuses renders as None.
    """

    template: ChatTemplate
    switches: Mapping[str, Any]
    marks: Marks
    content: Literal["string", "parts"] = "string"
    arguments: Literal["object", "string"] = "object"
    field: str = "reasoning_content"
    inline: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    needs_tools: bool = False
    wants_null: bool = False
    tools: Sequence[Mapping[str, Any]] = ()

    def render(
        self,
        messages: ChatMessages,
        *,
        tools: bool = True,
        generation: bool = True,
        switches: Mapping[str, Any] | None = None,
    ) -> str | None:
        """What the template makes of it; None if it refuses."""
        try:
            return self.template.render(
                messages,
                self.tools if tools or self.needs_tools else None,
                add_generation_prompt=generation,
                switches={**self.switches, **(switches or {})},
            )
        except RenderError:
            return None

    def user(self, part: str = "user") -> Message:
        return {"role": "user", "content": self._content(self.marks[part])}

    def system(self, part: str = "system", role: str = "system") -> Message:
        return {"role": role, "content": self._content(self.marks[part])}

    def says(self, part: str, thought: str = "") -> Message:
        """An assistant turn of text, behind a thought if one is named."""
        said: Message = {"role": "assistant", "content": self._content(self.marks[part])}
        return self._thinking(said, thought)

    def calls(self, *parts: str, text: str = "", thought: str = "") -> Message:
        """An assistant turn with a call for each part, which is its argument and names its id."""
        said: Message = {
            "role": "assistant",
            "content": self._content(self.marks[text]) if text else self._nothing(),
            "tool_calls": [self._call(part) for part in parts],
        }
        return self._thinking(said, thought)

    def result(self, call: str, part: str = "") -> Message:
        """The result of a call, by default with a word of its own."""
        return {
            "role": "tool",
            "tool_call_id": self.call_id(call),
            "name": self.marks["tool"],
            "content": self._content(self.marks[part or "result of " + call]),
        }

    def call_id(self, part: str) -> str:
        """Nine letters and digits: the one form that no template refuses."""
        return self.marks["id of " + part]

    def _call(self, part: str) -> Message:
        values = {"x": self.marks[part]}
        given = json.dumps(values) if self.arguments == "string" else values
        return {
            "id": self.call_id(part),
            "type": "function",
            "function": {"name": self.marks["tool"], "arguments": given},
        }

    def _thinking(self, message: Message, thought: str) -> Message:
        """With a thought in the template's field for it, or in the text where it has none."""
        if not thought:
            return message
        return with_thought(message, self.field, self.marks[thought], self.inline)

    def _nothing(self) -> str | list[Message] | None:
        return None if self.wants_null else self._content("")

    def _content(self, text: str) -> str | list[Message]:
        return text if self.content == "string" else [{"type": "text", "text": text}]


def with_thought(
    message: Message, field: str, thought: str, inline: tuple[str, str] = ("", "")
) -> Message:
    """The message with a thought: in a field, as a part of the content, or inside the text."""
    if field not in ("", "content"):
        return {**message, field: thought}
    content = message["content"] or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if field == "content":
        return {**message, "content": [{"type": "thinking", "thinking": thought}, *parts]}
    text = f"{inline[0]}{thought}{inline[1]}" + "".join(part["text"] for part in parts)
    return {
        **message,
        "content": text if isinstance(content, str) else [{"type": "text", "text": text}],
    }


def bench(template: ChatTemplate, switches: Mapping[str, Any]) -> Bench:
    """A fresh bench with one tool on it."""
    marks = Marks(template.text)
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
    return Bench(template, switches, marks, tools=({"type": "function", "function": function},))


def shared(one: str, other: str) -> str:
    """The beginning that two texts have in common, cut before a tag that only begins alike."""
    differs = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    common = one[: next(differs, min(len(one), len(other)))]
    return _HALF_TAG.sub("", common)


_HALF_TAG = re.compile(r"<[^<>\s]*\Z")
