"""Scripted mode: the server has the scripted engine behind it, and both of its ends are seen.

`script_for` writes what the engine plays, `FileRecording` reads what it was given.
"""

from dovetail.launch.scripted_server import OwnServer, own_server
from dovetail.verify.check import Check
from dovetail.verify.scripted import calls, order, prompts, replay
from dovetail.verify.scripted.recording import FileRecording
from dovetail.verify.scripted.script import script_for

__all__ = ["CHECKS", "FileRecording", "OwnServer", "own_server", "script_for"]

CHECKS: tuple[Check, ...] = (*order.CHECKS, *calls.CHECKS, *replay.CHECKS, *prompts.CHECKS)
