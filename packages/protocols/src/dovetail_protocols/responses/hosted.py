"""Items of hosted tools: shell, patch, search. None of them is supported here.

A history may still contain them, from another server or an older client. Items with separate
results become calls and results under the tool's plain name; the others become a line of text.
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
"""Item type -> the tool's name and the field with its arguments."""

PAIRED_RESULTS = (
    "local_shell_call_output",
    "shell_call_output",
    "apply_patch_call_output",
    "computer_call_output",
)
"""Item types of the results of those calls."""

DESCRIBED_CALLS = {
    "web_search_call": ("action",),
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": ("revised_prompt",),
}
"""Item type -> the fields to describe. Image data is omitted."""


def arguments_json(value: object) -> str:
    """Return arguments as JSON text, verbatim if they are text already."""
    if isinstance(value, str):
        return value
    return to_json({} if value is None else value)


def describe_call(item: dict[str, Any]) -> str:
    """Describe a call in one line."""
    kind: str = item["type"]
    fields = {name: item[name] for name in DESCRIBED_CALLS[kind] if item.get(name) is not None}
    return f"[{kind} {to_json(fields)}]"
