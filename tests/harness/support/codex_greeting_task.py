"""A short task for Codex: list, write, check, with reasoning before every call."""

from typing import Any

from codex_project import adds, updates
from server_setup import Family, call, text, think, turns

TASK = "Greet me in a file."
FILE = "grüße.txt"
TEXT = "Grüß Gott, 世界 👋!\nund <tool_call> auch.\n"
DONE = "The file greets you: grüße."
REASONING = ("I look at the folder first.", "And at its history.", "Now I write it, für dich.")


def greeting_turns(family: Family) -> list[dict[str, Any]]:
    """Four turns: two calls with reasoning before each, a patch, a patch and two parallel commands.

    The file's content looks like a call in the notation of some models.
    """
    first = adds(FILE, TEXT.replace("!", "?"))
    second = updates(FILE, "-Grüß Gott, 世界 👋?", "+Grüß Gott, 世界 👋!")
    return turns(
        family,
        [
            think(REASONING[0]),
            call("exec_command", cmd="ls -A"),
            think(REASONING[1]),
            call("exec_command", cmd="git log --oneline"),
        ],
        [think(REASONING[2]), text("I write."), call("apply_patch", input=first)],
        [think("It asks. It should greet."), call("apply_patch", input=second)],
        [
            think("Is it right?"),
            call("exec_command", cmd=f"cat {FILE}"),
            call("exec_command", cmd=f"wc -l {FILE}"),
        ],
        [think("It is."), text(DONE)],
    )
