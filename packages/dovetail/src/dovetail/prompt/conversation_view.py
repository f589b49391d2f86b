"""The view of a request that the model reads: the client's messages with the server's decisions.

The client's request is not changed: later requests repeat it, and it is what turns are recognized
by. The view is derived from it and from the recorded state each time.
"""

from dataclasses import dataclass

import msgspec

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.history_match import HistoryMatch
from dovetail.prompt.appended_text import can_append
from dovetail.prompt.conversation_state import (
    FIRST_TURN,
    ConversationState,
    PromptAddition,
    StateRecord,
    append_additions,
)
from dovetail.prompt.loop_notices import find_notices
from dovetail.prompt.system_sections import SectionView, keep_section
from dovetail.prompt.tool_plan import ToolPlanner
from dovetail_model import Block, InvalidRequest, Request, ToolChoice, ToolSpec, Turn

#: Note for a prompt whose end states that the model repeats itself.
LOOP_NOTE = "loop_notice"
#: Note for a prompt without tools, because all declared tools are deferred.
DEFERRED_NOTE = "tools_deferred"
#: Note for results of server tools in the history whose seals cannot be opened.
UNREADABLE_NOTE = "server_results_unreadable"
_UNAVAILABLE_TEXT = "These tools are not available on this server:"


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


@dataclass(frozen=True)
class ViewOptions:
    """The operator's choices.

    `keep_sections`: keep sections of the system text as the model read them.
    `identical_calls`: after how many identical calls with identical results the model reads a
    notice; None means never.
    """

    keep_sections: bool = True
    identical_calls: int | None = None


def build_view(
    request: Request,
    recorded: StateRecord,
    match: HistoryMatch,
    planner: ToolPlanner,
    last: LedgerEntry | None,
    options: ViewOptions,
) -> ConversationView:
    """Build the view of a normalized request.

    `recorded` is the state as of the last known turn, `last`.
    """
    known_chars = match.chars if last is not None else 0
    plan = planner.plan(
        request.tools,
        request.turns,
        recorded.state,
        known_chars,
        changed=match.tools_changed,
    )
    state = _add_notice(plan.state, request, is_known=last is not None)
    notices = find_notices(request.turns, match, last, options.identical_calls)
    if notices:
        state = msgspec.structs.replace(state, additions=(*state.additions, *notices))
    sections = SectionView(request.system, state)
    if options.keep_sections:
        sections = keep_section(
            request.system,
            sections.state,
            plan.head,
            0 if plan.is_head_replaced else known_chars,
            can_announce=bool(request.turns) and can_append(request.turns[-1]),
        )
    turns, additions = plan.turns, sections.state.additions
    if additions:
        turns = append_additions(turns, match.entry_positions(), additions)
    shown = _with_view(request, sections.system, turns, plan.head)
    callable_tools = _restrict(plan.callable_tools, request.tool_choice)
    loops = (LOOP_NOTE,) if notices else ()
    deferred = (DEFERRED_NOTE,) if request.tools and not plan.callable_tools else ()
    notes = (*plan.notes, *sections.notes, *note_unavailable(request), *deferred, *loops)
    return ConversationView(shown, callable_tools, recorded.with_state(sections.state), notes)


def note_unavailable(request: Request) -> tuple[str, ...]:
    """Return the notes about declared tools and results of server tools that are not available."""
    results = (UNREADABLE_NOTE,) if request.unreadable_results else ()
    return (*(f"tool_unavailable:{name}" for name in request.unavailable_tools), *results)


def append_unavailable(request: Request) -> Request:
    """Append the notice about tools that are not available, for an engine without a ledger.

    It is always where the first request of the conversation had it: a place that moves would
    invalidate the prefix.
    """
    if not request.unavailable_tools:
        return request
    assistant = any(turn.role == "assistant" for turn in request.turns)
    notice = _create_notice(request, FIRST_TURN if assistant else "")
    turns = append_additions(request.turns, {}, (notice,))
    return msgspec.structs.replace(request, turns=turns)


def _create_notice(request: Request, place: str) -> PromptAddition:
    names = ", ".join(request.unavailable_tools)
    return PromptAddition("notice", f"{_UNAVAILABLE_TEXT} {names}", place)


def _with_view(
    request: Request,
    system: tuple[Block, ...],
    turns: tuple[Turn, ...],
    tools: tuple[ToolSpec, ...],
) -> Request:
    """Return the request with these parts, which is the same object if they are."""
    same = system is request.system and turns is request.turns and tools is request.tools
    if same:
        return request
    return msgspec.structs.replace(request, system=system, turns=turns, tools=tools)


def _add_notice(state: ConversationState, request: Request, *, is_known: bool) -> ConversationState:
    """Add a notice that declared tools are not available, once for the same tools.

    In a conversation that the ledger does not know, it is where the first request had it: the
    turns may be restored from their seals, which do not contain the notice.
    """
    if not request.unavailable_tools or not request.turns or not can_append(request.turns[-1]):
        return state
    is_restored = not is_known and any(turn.role == "assistant" for turn in request.turns)
    place = FIRST_TURN if is_restored else ""
    notice = _create_notice(request, place)
    known = [one.text for one in state.additions if one.text.startswith(_UNAVAILABLE_TEXT)]
    if known[-1:] == [notice.text]:
        return state
    return msgspec.structs.replace(state, additions=(*state.additions, notice))


def _restrict(tools: tuple[ToolSpec, ...], choice: ToolChoice) -> tuple[ToolSpec, ...]:
    """Return the tools that the tool choice leaves. Raises an error if it requires others."""
    if choice.allowed is not None:
        tools = tuple(tool for tool in tools if tool.model_name in choice.allowed)
    names = {tool.model_name for tool in tools}
    if choice.mode == "named" and choice.name not in names:
        message = f"tool_choice: the tool '{choice.name}' is not available yet: it is deferred"
        raise InvalidRequest(message, param="tool_choice")
    if choice.mode == "required" and not tools:
        message = "tool_choice: requires a tool call, but no tool is available"
        raise InvalidRequest(message, param="tool_choice")
    return tools
