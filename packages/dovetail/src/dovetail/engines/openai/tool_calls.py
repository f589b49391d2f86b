"""Ids of calls as the templates behind an upstream want them.

Most take any id. Those of Mistral's models refuse what is not nine letters and digits, and Kimi's
print the id, which the model expects in a form of its own. Another Dovetail takes an id in our
style that it never gave for a sign that the turn is somebody else's, and looks no further. Such ids
are numbered by the call's place in the conversation, so they are the same in every request.
"""

from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from dovetail.engines.discovery import RemoteModel
from dovetail.engines.openai.errors import UpstreamRejection
from dovetail_model import Block, Request, ToolCallBlock, ToolResultBlock, Turn
from dovetail_protocols import ToolNames

CallIdFormat = Literal["any", "nine", "kimi"]

DOVETAIL_OWNER = "dovetail"
"""What our own servers say that their models are owned by."""

_FORMATS: dict[str, CallIdFormat] = {"*kimi-k2*": "kimi", "*mistral*": "nine", "*stral-*": "nine"}


def call_id_format(remote: RemoteModel) -> CallIdFormat:
    """The form that a model wants, as far as its name and its server tell."""
    if remote.version == DOVETAIL_OWNER:
        return "nine"
    folded = remote.name.lower()
    return next((form for pattern, form in _FORMATS.items() if fnmatchcase(folded, pattern)), "any")


def requires_nine_chars(rejection: UpstreamRejection) -> bool:
    """Whether a server refuses an id for its length, in the words of Mistral's templates."""
    words = rejection.message.lower()
    return "id" in words and "length" in words and "9" in words and "alphanumeric" in words


def rewrite_call_ids(request: Request, id_format: CallIdFormat) -> Request:
    """The request with its calls, and their results, under ids of that form."""
    if id_format == "any":
        return request
    names = ToolNames(request.tools)
    given: dict[str, str] = {}
    turns = []
    for turn in request.turns:
        for block in turn.blocks:
            if isinstance(block, ToolCallBlock):
                given[block.id] = _make_call_id(id_format, names.upstream_name(block), len(given))
        turns.append(
            Turn(turn.role, tuple(_replace_call_id(block, given) for block in turn.blocks))
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
