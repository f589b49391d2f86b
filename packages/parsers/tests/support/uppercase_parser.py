"""A third-party parser, as an entry point would name it."""

from typing import Any

from dovetail_model import Event, TextDelta


class Uppercase:
    """Converts all output to upper-case text."""

    def __init__(self, tools: Any, in_reasoning: bool | None) -> None:
        self.tools = tools

    def feed(self, text: str, special: bool | None = None) -> list[Event]:
        return [TextDelta(text.upper(), text)]

    def finish(self) -> list[Event]:
        return []
