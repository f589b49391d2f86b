"""Cells of tables on the terminal."""

from rich.text import Text


def format_name(name: str) -> Text:
    """Return a name that a client may have chosen, without markup and escape sequences."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in name) or "-")
