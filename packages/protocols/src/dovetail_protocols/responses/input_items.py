"""Input items to turns, in the order the client sent them.

Whatever the model itself said (messages, thoughts, calls) goes into one assistant turn as long as
nothing else stands between; results go into one tool turn, tied to their calls by id. A client that
replays R1,C1,R2,C2,O1,O2 so gets one assistant turn of four blocks and one tool turn of two.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dovetail_model import (
    Block,
    InvalidRequest,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.request_body import Body, convert
from dovetail_protocols.responses import content, hosted, summary, wire
from dovetail_protocols.turns import joined

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}

_GOES_ON = frozenset({"assistant", "tool"})


class Piece:
    """What one item says: pieces of turns, and what was found that is not a turn."""

    __slots__ = ("compacts", "ignored", "tools", "turns")

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.ignored: list[str] = []
        self.tools: list[tuple[str, Any]] = []  # tools that came as items, with their paths
        self.compacts = False

    def say(self, role: Role, *blocks: Block) -> None:
        self.turns.append(Turn(role, blocks))


def read(sent: Body, given: str | list[msgspec.Raw] | None) -> list[Piece]:
    """The whole input, piece by piece."""
    if isinstance(given, str):
        return [sent.recall("responses.text", given, lambda: _text(given))]
    # Paths of what is ignored have the place in them.
    return sent.recall_history(
        given or (), lambda at, raw: _piece(sent.value(raw), at), placed=True
    )


def turns(sent: Body, pieces: Iterable[Piece]) -> tuple[Turn, ...]:
    """The turns that the pieces make. Only the model and its tools go on in an open turn."""
    found: list[Turn] = []
    run: list[Turn] = []
    for piece in pieces:
        for turn in piece.turns:
            if run and not (turn.role == run[0].role in _GOES_ON):
                found.append(joined(sent, run))
                run = []
            run.append(turn)
    if run:
        found.append(joined(sent, run))
    return tuple(found)


def _text(text: str) -> Piece:
    piece = Piece()
    piece.say("user", *content.blocks(text, "input", piece.ignored))
    return piece


def _piece(item: object, at: int) -> Piece:
    path = f"input[{at}]"
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: Expected an object", param=path)
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = _untyped(item, path)
    piece = Piece()
    KINDS.get(kind, _other)(piece, item, path)
    return piece


def _untyped(item: dict[str, Any], path: str) -> str:
    if "role" in item:
        return "message"
    if "id" in item:
        return "item_reference"
    raise InvalidRequest(f"{path}.type: The item has neither a type nor a role", param=path)


def _message(piece: Piece, item: dict[str, Any], path: str) -> None:
    message = convert(item, wire.MessageIn, path)
    role = _ROLES.get(message.role)
    if role is None:
        where = f"{path}.role"
        raise InvalidRequest(f"{where}: Expected one of {', '.join(_ROLES)}", param=where)
    piece.say(role, *content.blocks(message.content, f"{path}.content", piece.ignored))


def _agent_message(piece: Piece, item: dict[str, Any], path: str) -> None:
    """From another agent to this one: to the model it is a user's message that names its sender."""
    message = convert(item, wire.AgentMessageIn, path)
    blocks = content.blocks(content.in_clear(message.content), f"{path}.content", piece.ignored)
    if message.author and blocks:
        blocks = (TextBlock(f"Message from {message.author}:"), *blocks)
    piece.say("user", *blocks)


def _reasoning(piece: Piece, item: dict[str, Any], path: str) -> None:
    """The thought itself where the client kept it, else its summary; the seal in any case."""
    thought = convert(item, wire.ReasoningIn, path)
    text = content.text(thought.content) or content.text(thought.summary, "\n\n")
    piece.say("assistant", ReasoningBlock(text, thought.encrypted_content))


def _function_call(piece: Piece, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    _call(piece, call, path, hosted.arguments(call.arguments))


def _custom_call(piece: Piece, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    text = call.input if isinstance(call.input, str) else hosted.arguments(call.input)
    _call(piece, call, path, text, custom=True)


def _call(
    piece: Piece, call: wire.CallIn, path: str, arguments: str, *, custom: bool = False
) -> None:
    if not call.name:
        raise InvalidRequest(f"{path}.name: A call needs a name", param=f"{path}.name")
    block = ToolCallBlock(
        id=call.call_id or call.id or "",
        name=call.name,
        arguments=arguments,
        namespace=call.namespace or None,
        custom=custom,
        complete=call.status != "incomplete",
    )
    piece.say("assistant", block)


def _result(piece: Piece, item: dict[str, Any], path: str) -> None:
    result = convert(item, wire.ResultIn, path)
    blocks = content.output(result.output, f"{path}.output", piece.ignored)
    failed = result.status == "failed"
    piece.say("tool", ToolResultBlock(result.call_id or result.id or "", blocks, failed))


def _paired_call(piece: Piece, item: dict[str, Any], path: str) -> None:
    """A tool of the API's own whose results come as items: a call like any other."""
    name, field = hosted.PAIRED_CALLS[item["type"]]
    call = convert(item, wire.CallIn, path)
    block = ToolCallBlock(
        call.call_id or call.id or "", name, hosted.arguments(item.get(field)), call.namespace
    )
    piece.say("assistant", block)


def _found_tools(piece: Piece, item: dict[str, Any], path: str) -> None:
    """What a tool search found is offered from now on; the model reads the names alone."""
    _more_tools(piece, item, path)
    names = hosted.names(item.get("tools"))
    _result(piece, {**item, "output": content.as_json({"tools": names})}, path)


def _more_tools(piece: Piece, item: dict[str, Any], path: str) -> None:
    given = item.get("tools")
    if isinstance(given, list):
        piece.tools += [(f"{path}.tools[{at}]", tool) for at, tool in enumerate(given)]


def _mcp_call(piece: Piece, item: dict[str, Any], path: str) -> None:
    """A call that another server made and answered: a call and its result, side by side."""
    call = convert(item, wire.McpCallIn, path)
    name, identity = call.name or "mcp", call.id or ""
    arguments = hosted.arguments(call.arguments)
    piece.say("assistant", ToolCallBlock(identity, name, arguments, call.server_label))
    failed = call.error is not None
    given = call.error if failed else call.output
    blocks = content.output(given, f"{path}.output", piece.ignored)
    piece.say("tool", ToolResultBlock(identity, blocks, failed))


def _hosted(piece: Piece, item: dict[str, Any], path: str) -> None:
    """Work that another server did inside its own turn: a line of text that says so."""
    piece.say("assistant", TextBlock(hosted.told(item)))


def _trigger(piece: Piece, item: dict[str, Any], path: str) -> None:
    piece.compacts = True
    piece.say("user", TextBlock(summary.TRIGGER))


def _compaction(piece: Piece, item: dict[str, Any], path: str) -> None:
    sealed = item.get("encrypted_content")
    told = summary.unpack(sealed) if isinstance(sealed, str) else None
    if told is None:
        piece.ignored.append(path)
    else:
        piece.say("user", TextBlock(summary.PREFACE + told))


def _other(piece: Piece, item: dict[str, Any], path: str) -> None:
    """Known to nobody here, or of no use to a model: reported, harmless."""
    piece.ignored.append(path)


KINDS: dict[str, Callable[[Piece, dict[str, Any], str], None]] = {
    "message": _message,
    "agent_message": _agent_message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _result,
    "custom_tool_call_output": _result,
    "tool_search_output": _found_tools,
    "additional_tools": _more_tools,
    "mcp_call": _mcp_call,
    "compaction_trigger": _trigger,
    "compaction": _compaction,
    "compaction_summary": _compaction,
    **dict.fromkeys(hosted.PAIRED_CALLS, _paired_call),
    **dict.fromkeys(hosted.PAIRED_RESULTS, _result),
    **dict.fromkeys(hosted.TOLD, _hosted),
}
"""Every item type that means something here, by its name."""
