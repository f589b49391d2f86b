"""The commands to the processes of the experiments, each one line of JSON."""

from typing import Any

import msgspec


class Serve(msgspec.Struct, frozen=True):
    """For the server: the model's folder, the engine's options, the names of scripted sessions.

    `folder` is for its notes and the data of its applications.
    """

    model: str
    folder: str
    options: dict[str, Any] = {}
    sessions: list[str] = []


class Group(msgspec.Struct, frozen=True):
    """Concurrent requests: a range of note numbers.

    The engine alone skips groups that are not `replayed`.
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
