"""How to install what only some need: one place says it, so that it is said rightly everywhere."""


def install_command(extra: str) -> str:
    """A command for any shell. Who reads it has Dovetail: pip adds to the one that is there."""
    return f"pip install 'dovetail[{extra}]'"
