"""The commands to the processes of the experiments, each one line of JSON."""

from typing import Any

import msgspec


class Serve(msgspec.Struct, frozen=True):
    """For the server: the model's folder, the engine's options, the names of scripted sessions.

    `folder` is where it puts its notes, and what its applications keep.
    """

    model: str
    folder: str
    options: dict[str, Any] = {}
    sessions: list[str] = []


class Group(msgspec.Struct, frozen=True):
    """Requests that came together: the notes from one number up to another.

    One that is not `replayed` is passed over by the engine alone.
    """

    label: str
    start: int
    end: int
    replayed: bool = True


class Replay(msgspec.Struct, frozen=True):
    """For the engine alone: the model's folder, the engine's options, the folder of the notes."""

    model: str
    folder: str
    options: dict[str, Any] = {}
    groups: list[Group] = []
