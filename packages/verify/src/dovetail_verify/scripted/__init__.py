"""Scripted mode: the server has the scripted engine behind it, and both of its ends are seen.

`script_for` writes what the engine plays, `FileRecording` reads what it was given.
"""

from dovetail.launch.scripted_server import ScriptedServer, prepare_scripted_server
from dovetail_verify.check import Check
from dovetail_verify.scripted import content as order
from dovetail_verify.scripted import prompts
from dovetail_verify.scripted import prompts as replay
from dovetail_verify.scripted import tool_calls as calls
from dovetail_verify.scripted.scenarios import render_script
from dovetail_verify.target import FileRecording

__all__ = ["CHECKS", "FileRecording", "ScriptedServer", "prepare_scripted_server", "render_script"]

CHECKS: tuple[Check, ...] = (
    *order.CHECKS,
    *calls.CHECKS,
    *replay.REPLAY_CHECKS,
    *prompts.PROMPT_CHECKS,
)
