"""The view of a request that the model reads: the client's messages with the server's decisions.

The client's request is not changed: later requests repeat it, and it is what turns are recognized
by. The view is derived from it and from the recorded state each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from dovetail.prompt.conversation_state import StateRecord, append_additions
from dovetail_model import Request, ToolSpec


@dataclass(frozen=True)
class ConversationView:
    """A request as the model reads it.

    `request`: its turns contain additions and context edits; its tools are those of the head.
    `callable_tools`: the tools that the model may call.
    `record`: the state to record with the next turn.
    """

    request: Request
    callable_tools: tuple[ToolSpec, ...]
    record: StateRecord
    notes: tuple[str, ...] = ()


def build_view(
    request: Request, recorded: StateRecord, positions: Mapping[str, int]
) -> ConversationView:
    """Build the view of a normalized request.

    `recorded` is the state as of the last known turn. `positions` has the indexes of the turns that
    were recognized, by entry id.
    """
    turns = append_additions(request.turns, positions, recorded.state.additions)
    shown = request if turns is request.turns else msgspec.structs.replace(request, turns=turns)
    return ConversationView(shown, request.tools, recorded)
