"""Scripted mode: the scripted engine runs behind the server, so its input and output are known.

`render_script` writes the script of the engine's output; `FileRecording` reads the prompts that the
engine received.
"""

from dovetail_verify.check import Check
from dovetail_verify.scripted import content, fields, prompts, replay, session_tools, tool_calls
from dovetail_verify.scripted.scenarios import render_script
from dovetail_verify.target import FileRecording

__all__ = ["CHECKS", "FileRecording", "render_script"]

CHECKS: tuple[Check, ...] = (
    *content.CHECKS,
    *tool_calls.CHECKS,
    *fields.CHECKS,
    *replay.CHECKS,
    *prompts.CHECKS,
    *session_tools.CHECKS,
)
