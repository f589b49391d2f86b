"""Texts of server tools' results that clients return in readable form.

The server writes these texts into the prompt when it runs a tool, and a decoder writes them again
from what the client returns: both must be the same text. Everything else that the model read is
returned sealed.
"""

from dovetail_model import ServerToolKind

NO_RESULTS_TEXT = "No results."


def write_tool_error(kind: ServerToolKind, code: str) -> str:
    """Write the error of a call, with the code of Anthropic's API."""
    return f"Error: {kind} failed: {code}"


def write_page(url: str, title: str, text: str) -> str:
    """Write a fetched page."""
    return "\n".join(part for part in (title, url, text) if part)
