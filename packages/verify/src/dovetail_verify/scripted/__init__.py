"""Scripted mode: the server has the scripted engine behind it, and both of its ends are seen.

`render_script` writes what the engine generates, `FileRecording` reads what it was given.
"""

from dovetail_verify.check import Check
from dovetail_verify.scripted import content, prompts, tool_calls
from dovetail_verify.scripted.scenarios import render_script
from dovetail_verify.target import FileRecording

__all__ = ["CHECKS", "FileRecording", "render_script"]

CHECKS: tuple[Check, ...] = (
    *content.CHECKS,
    *tool_calls.CHECKS,
    *prompts.REPLAY_CHECKS,
    *prompts.PROMPT_CHECKS,
)
