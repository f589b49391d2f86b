"""How a chat template writes one tool of its tool list.

A tool that arrives later is shown in the middle of a conversation in the notation that the model
was trained on. The notation is found by rendering a list with and without the tool: the inserted
text is the tool.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from dovetail.prompt.messages import ChatMessage, format_content, format_tools
from dovetail.prompt.splice import STUB_TOOL
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail_model import ToolSpec

_SEPARATORS = ", \t\r\n"  # between the tools of a list


class ToolNotation:
    """Writes tools as one template does. `controls` are the spellings of control tokens."""

    def __init__(
        self, template: ChatTemplate, profile: TemplateProfile, controls: Sequence[str]
    ) -> None:
        self._template = template
        self._profile = profile
        self._controls = tuple(controls)
        self._base: str | None = self._render(()) if profile.renders_tools else None
        self._write = lru_cache(256)(self._write_encoded)

    def write(self, tool: ToolSpec) -> tuple[str, bool]:
        """Return the definition of a tool, and whether it is in the template's notation.

        If the template's notation cannot be isolated, or if it contains control tokens, which must
        not be part of a tool result, the definition is JSON.
        """
        definition = format_tools((tool,), _identity)[0]
        encoded = json.dumps(definition, ensure_ascii=False)
        native = self._write(encoded)
        return (native, True) if native is not None else (encoded, False)

    def _write_encoded(self, encoded: str) -> str | None:
        definition = json.loads(encoded)
        if self._base is None:
            return None
        text = self._render((definition,))
        found = _find_insertion(self._base, text) if text is not None else None
        if found is None or any(control in found for control in self._controls):
            return None
        return found if _is_complete(found, definition["function"]) else None

    def _render(self, more: Sequence[ChatMessage]) -> str | None:
        user: ChatMessage = {"role": "user", "content": format_content(self._profile, "x")}
        try:
            return self._template.render([user], [*STUB_TOOL, *more])
        except RenderError:
            return None


def _find_insertion(base: str, text: str) -> str | None:
    """Return what was inserted into `base` to give `text`, without separators."""
    start = next((at for at, (a, b) in enumerate(zip(base, text, strict=False)) if a != b), None)
    start = min(len(base), len(text)) if start is None else start
    length = len(text) - len(base)
    if length <= 0 or base[start:] != text[start + length :]:
        return None
    # The marker after the list may begin like the one of a tool: the beginning belongs to the tool.
    while _is_inside_marker(text, start) and text[start - 1] == text[start + length - 1]:
        start -= 1
    return text[start : start + length].strip(_SEPARATORS)


def _is_inside_marker(text: str, start: int) -> bool:
    if start == 0 or text[start - 1] in "\r\n":
        return False
    return text[start].isalnum() or text[start - 1] in "<[|"


def _is_complete(found: str, function: Mapping[str, Any]) -> bool:
    """Return whether a definition contains the names of the tool and of all its parameters."""
    properties = function["parameters"].get("properties")
    names = [function["name"], *(properties if isinstance(properties, Mapping) else ())]
    return all(name in found for name in names)


def _identity(text: str, /) -> str:
    return text
