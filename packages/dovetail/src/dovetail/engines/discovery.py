"""What a remote engine says about the model that it serves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteModel:
    """A model of a server. Requests name it `name`; it was loaded from `root`: a folder on the
    server's machine, or an id of the hub.

    `names` are all names that the server answers to. `adapters` are models of its own on top of it,
    with the same tokenizer. `version` is the server's own, where it tells.
    """

    name: str
    names: tuple[str, ...] = ()
    root: str | None = None
    context_length: int | None = None
    version: str = ""
    adapters: tuple[str, ...] = ()
