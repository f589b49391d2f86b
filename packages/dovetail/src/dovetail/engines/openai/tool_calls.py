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
from dovetail.engines.openai.errors import Refusal
from dovetail_model import Block, Request, ToolCallBlock, ToolResultBlock, Turn
from dovetail_protocols import ToolNames

Form = Literal["any", "nine", "kimi"]

DOVETAIL = "dovetail"
"""What our own servers say that their models are owned by."""

_FORMS: dict[str, Form] = {"*kimi-k2*": "kimi", "*mistral*": "nine", "*stral-*": "nine"}


def form_of(remote: RemoteModel) -> Form:
    """The form that a model wants, as far as its name and its server tell."""
    if remote.version == DOVETAIL:
        return "nine"
    folded = remote.name.lower()
    return next((form for pattern, form in _FORMS.items() if fnmatchcase(folded, pattern)), "any")


def wants_nine(refusal: Refusal) -> bool:
    """Whether a server refuses an id for its length, in the words of Mistral's templates."""
    words = refusal.message.lower()
    return "id" in words and "length" in words and "9" in words and "alphanumeric" in words


def with_ids(request: Request, form: Form) -> Request:
    """The request with its calls, and their results, under ids of that form."""
    if form == "any":
        return request
    names = ToolNames(request.tools)
    given: dict[str, str] = {}
    turns = []
    for turn in request.turns:
        for block in turn.blocks:
            if isinstance(block, ToolCallBlock):
                given[block.id] = _numbered(form, names.shown(block), len(given))
        turns.append(Turn(turn.role, tuple(_renamed(block, given) for block in turn.blocks)))
    return msgspec.structs.replace(request, turns=tuple(turns))


def _numbered(form: Form, name: str, number: int) -> str:
    return f"functions.{name}:{number}" if form == "kimi" else f"call{number:05d}"


def _renamed(block: Block, given: dict[str, str]) -> Block:
    match block:
        case ToolCallBlock(id=id):
            return msgspec.structs.replace(block, id=given[id])
        case ToolResultBlock(call_id=id) if id in given:
            return msgspec.structs.replace(block, call_id=given[id])
        case _:
            return block
