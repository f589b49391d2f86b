"""Convert call ids and tool names to the form that an upstream requires.

Most upstreams accept any id. The templates of Mistral's models reject ids that are not nine letters
and digits. Kimi's templates print the id, and the model expects its own form. Another Dovetail
server interprets an id in Dovetail's format that it never issued as a sign that the turn is not its
own, and stops searching for it. Such ids are numbered by the call's position in the conversation,
so they are the same in every request.
"""

import json
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai.errors import UpstreamRejection
from dovetail_model import (
    Block,
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Request,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols import ToolNames

CallIdFormat = Literal["any", "nine", "kimi"]

DOVETAIL_OWNER = "dovetail"
"""The `owned_by` of models on Dovetail servers."""

_FORMATS: dict[str, CallIdFormat] = {"*kimi-k2*": "kimi", "*mistral*": "nine", "*stral-*": "nine"}


def call_id_format(remote: RemoteModel) -> CallIdFormat:
    """Return the format that a model requires, judged by its name and its server."""
    if remote.version == DOVETAIL_OWNER:
        return "nine"
    name = remote.name.lower()
    return next(
        (id_format for pattern, id_format in _FORMATS.items() if fnmatchcase(name, pattern)), "any"
    )


def requires_nine_chars(rejection: UpstreamRejection) -> bool:
    """Return whether a server rejects an id because of its length, as Mistral's templates do."""
    message = rejection.message.lower()
    return "id" in message and "length" in message and "9" in message and "alphanumeric" in message


def rewrite_call_ids(request: Request, id_format: CallIdFormat) -> Request:
    """Rewrite the ids of calls and of their results to this format."""
    if id_format == "any":
        return request
    names = ToolNames(request.tools)
    new_ids: dict[str, str] = {}
    turns = []
    for turn in request.turns:
        for block in turn.blocks:
            if isinstance(block, ToolCallBlock):
                new_ids[block.id] = _make_call_id(
                    id_format, names.upstream_name(block), len(new_ids)
                )
        turns.append(
            Turn(turn.role, tuple(_replace_call_id(block, new_ids) for block in turn.blocks))
        )
    return msgspec.structs.replace(request, turns=tuple(turns))


def _make_call_id(id_format: CallIdFormat, name: str, number: int) -> str:
    return f"functions.{name}:{number}" if id_format == "kimi" else f"call{number:05d}"


def _replace_call_id(block: Block, new_ids: dict[str, str]) -> Block:
    match block:
        case ToolCallBlock(id=id):
            return msgspec.structs.replace(block, id=new_ids[id])
        case ToolResultBlock(call_id=id) if id in new_ids:
            return msgspec.structs.replace(block, call_id=new_ids[id])
        case _:
            return block


class ToolNameRestorer:
    """Restores the original names of tools. The input of a custom tool is emitted in one piece."""

    __slots__ = ("_names", "_pending_arguments")

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        # By the index of calls of custom tools that were sent as functions.
        self._pending_arguments: dict[int, list[str]] = {}

    def restore(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            match event:
                case CallOpen():
                    out += self._open_call(event)
                case CallArgs(index=index, text=text) if index in self._pending_arguments:
                    self._pending_arguments[index].append(text)
                case CallClose(index=index) if index in self._pending_arguments:
                    out += [
                        CallArgs(
                            index, _extract_input("".join(self._pending_arguments.pop(index)))
                        ),
                        event,
                    ]
                case _:
                    out.append(event)
        return out

    def _open_call(self, call: CallOpen) -> list[Event]:
        spec = self._names.spec(call.name)
        if spec is None:
            return [call] if call.namespace else [call, Diagnostic("unknown_tool")]
        if spec.custom and not call.custom:
            self._pending_arguments[call.index] = []
        return [
            msgspec.structs.replace(
                call, name=spec.name, namespace=spec.namespace, custom=spec.custom
            )
        ]


def _extract_input(arguments: str) -> str:
    """Return the string in `{"input": "..."}`; arguments of another shape are not changed."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
