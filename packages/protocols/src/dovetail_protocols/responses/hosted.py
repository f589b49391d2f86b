"""Items of tools that the API brings itself: shell, patch, search. None of them is served here.

A history may still hold them, from another server or an older client. Those with a result of their
own become calls and results under the tool's plain name; the others become a line of text.
"""

from typing import Any

from dovetail_protocols.responses.content import to_json

PAIRED_CALLS = {
    "tool_search_call": ("tool_search", "arguments"),
    "local_shell_call": ("local_shell", "action"),
    "shell_call": ("shell", "action"),
    "apply_patch_call": ("apply_patch", "operation"),
    "computer_call": ("computer", "action"),
}
"""Item type to the tool's name and the field that holds its arguments."""

PAIRED_RESULTS = (
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "computer_call_output",
)
"""What came back from those."""

DESCRIBED_CALLS = {
    "web_search_call": ("action",),
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": ("revised_prompt",),
}
"""Item type to the fields to describe. An image's own data is not text."""


def arguments_json(value: object) -> str:
    """Arguments as JSON text: verbatim where they are text already, whatever they look like."""
    if isinstance(value, str):
        return value
    return to_json({} if value is None else value)


def describe_call(item: dict[str, Any]) -> str:
    """A line that says what was done."""
    kind: str = item["type"]
    fields = {name: item[name] for name in DESCRIBED_CALLS[kind] if item.get(name) is not None}
    return f"[{kind} {to_json(fields)}]"


def tool_names(tools: object) -> list[str]:
    """The names of tools that a search found, those inside namespaces too."""
    found: list[str] = []
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict):
            inner = tool.get("tools")
            found += tool_names(inner) if isinstance(inner, list) else [str(tool.get("name"))]
    return found
