"""Decode input items into turns, in the client's order.

Consecutive model output (messages, reasoning, calls) forms one assistant turn; results form one
tool turn and are tied to their calls by id. A client that replays R1,C1,R2,C2,O1,O2 therefore gets
one assistant turn of four blocks and one tool turn of two.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dovetail_model import (
    Block,
    HostedItemBlock,
    InvalidRequest,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.request_body import RequestBody, convert, join_turns
from dovetail_protocols.responses import content, hosted, summary, wire
from dovetail_protocols.responses.server_items import (
    ServerCall,
    decode_call,
    decode_sealed_result,
    pair_calls,
)
from dovetail_protocols.responses.tools import find_references
from dovetail_protocols.summary_text import SUMMARY_INSTRUCTION, SUMMARY_PREFACE

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}

_CONTINUABLE_ROLES = frozenset({"assistant", "tool"})


class DecodedItem:
    """The result of decoding one item: parts of turns, and tools or triggers."""

    __slots__ = ("compacts", "ignored", "server_call", "tools", "turns")

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.ignored: list[str] = []
        self.tools: list[tuple[str, Any]] = []  # tools from input items, with their paths
        self.compacts = False
        self.server_call: ServerCall | None = None

    def add_turn(self, role: Role, *blocks: Block) -> None:
        self.turns.append(Turn(role, blocks))


def decode_items(body: RequestBody, given: str | list[msgspec.Raw] | None) -> list[DecodedItem]:
    """Decode the input, one result per item."""
    if isinstance(given, str):
        return [body.get_or_decode("responses.text", given, lambda: _text(given))]
    # The paths of ignored fields contain the index.
    return body.decode_history(
        given or (),
        lambda at, raw: _decode_item(body.value(raw, f"input[{at}]"), at),
        indexed=True,
    )


def build_turns(body: RequestBody, pieces: Iterable[DecodedItem]) -> tuple[Turn, ...]:
    """Join the decoded items into turns. Only model output and tool results continue a turn."""
    found: list[Turn] = []
    run: list[Turn] = []
    for turns in pair_calls((piece.server_call, tuple(piece.turns)) for piece in pieces):
        for turn in turns:
            if run and not (turn.role == run[0].role in _CONTINUABLE_ROLES):
                found.append(join_turns(body, run))
                run = []
            run.append(turn)
    if run:
        found.append(join_turns(body, run))
    return tuple(found)


def _text(text: str) -> DecodedItem:
    piece = DecodedItem()
    piece.add_turn("user", *content.decode_content(text, "input", piece.ignored))
    return piece


def _decode_item(item: object, at: int) -> DecodedItem:
    path = f"input[{at}]"
    if not isinstance(item, dict):
        raise InvalidRequest(f"{path}: must be an object", param=path)
    kind = item.get("type")
    if not isinstance(kind, str):
        kind = _untyped(item, path)
    piece = DecodedItem()
    ITEM_DECODERS.get(kind, _ignore)(piece, item, path)
    return piece


def _untyped(item: dict[str, Any], path: str) -> str:
    if "role" in item:
        return "message"
    if "id" in item:
        return "item_reference"
    raise InvalidRequest(f"{path}.type: the item needs a `type` or a `role`", param=path)


def _message(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    message = convert(item, wire.MessageIn, path)
    role = _ROLES.get(message.role)
    if role is None:
        where = f"{path}.role"
        raise InvalidRequest(f"{where}: must be one of {', '.join(_ROLES)}", param=where)
    piece.add_turn(role, *content.decode_content(message.content, f"{path}.content", piece.ignored))


def _agent_message(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode a message from another agent as a user message that names its sender."""
    message = convert(item, wire.AgentMessageIn, path)
    blocks = content.decode_content(
        content.as_plain_content(message.content), f"{path}.content", piece.ignored
    )
    if message.author and blocks:
        blocks = (TextBlock(f"Message from {message.author}:"), *blocks)
    piece.add_turn("user", *blocks)


def _reasoning(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode reasoning: its text if the client has it, else its summary, and the seal."""
    reasoning = convert(item, wire.ReasoningIn, path)
    result = decode_sealed_result(reasoning.encrypted_content)
    if result is not None:
        piece.add_turn("tool", result)
        return
    text = content.content_text(reasoning.content) or content.content_text(
        reasoning.summary, "\n\n"
    )
    piece.add_turn("assistant", ReasoningBlock(text, reasoning.encrypted_content))


def _function_call(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    _call(piece, call, path, hosted.arguments_json(call.arguments))


def _custom_call(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    text = call.input if isinstance(call.input, str) else hosted.arguments_json(call.input)
    _call(piece, call, path, text, custom=True)


def _call(
    piece: DecodedItem, call: wire.CallIn, path: str, arguments: str, *, custom: bool = False
) -> None:
    if not call.name:
        raise InvalidRequest(f"{path}.name: Field required", param=f"{path}.name")
    block = ToolCallBlock(
        id=call.call_id or call.id or "",
        name=call.name,
        arguments=arguments,
        namespace=call.namespace or None,
        custom=custom,
        complete=call.status != "incomplete",
    )
    piece.add_turn("assistant", block)


def _result(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    result = convert(item, wire.ResultIn, path)
    blocks = content.decode_output(result.output, f"{path}.output", piece.ignored)
    failed = result.status == "failed"
    piece.add_turn("tool", ToolResultBlock(result.call_id or result.id or "", blocks, failed))


def _paired_call(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode a call of a hosted tool whose results are items, like any other call."""
    name, field = hosted.PAIRED_CALLS[item["type"]]
    call = convert(item, wire.CallIn, path)
    block = ToolCallBlock(
        call.call_id or call.id or "", name, hosted.arguments_json(item.get(field)), call.namespace
    )
    piece.add_turn("assistant", block)


def _found_tools(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode the tools that a tool search found. The model reads their definitions here."""
    references = _add_tools(piece, item, path)
    result = convert(item, wire.ResultIn, path)
    blocks = references or (TextBlock(content.to_json({"tools": []})),)
    piece.add_turn("tool", ToolResultBlock(result.call_id or result.id or "", blocks))


def _more_tools(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode tools that are available from here on."""
    references = _add_tools(piece, item, path)
    if references:
        piece.add_turn("developer", *references)


def _add_tools(
    piece: DecodedItem, item: dict[str, Any], path: str
) -> tuple[ToolReferenceBlock, ...]:
    """Declare the tools of an item, and return references to them."""
    given = item.get("tools")
    if not isinstance(given, list):
        return ()
    piece.tools += [
        (f"{path}.tools[{at}]", {**tool, "defer_loading": True} if isinstance(tool, dict) else tool)
        for at, tool in enumerate(given)
    ]
    return tuple(find_references(given))


def _mcp_call(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode a call that another server ran as a call and its result."""
    call = convert(item, wire.McpCallIn, path)
    name, identity = call.name or "mcp", call.id or ""
    arguments = hosted.arguments_json(call.arguments)
    piece.add_turn("assistant", ToolCallBlock(identity, name, arguments, call.server_label))
    failed = call.error is not None
    given = call.error if failed else call.output
    blocks = content.decode_output(given, f"{path}.output", piece.ignored)
    piece.add_turn("tool", ToolResultBlock(identity, blocks, failed))


def _hosted(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Decode work that a server did within its own turn as a line of text.

    A search becomes a call if its result follows.
    """
    if item["type"] == "web_search_call":
        piece.server_call = decode_call(item)
    piece.add_turn("assistant", HostedItemBlock(hosted.describe_call(item), item=item))


def _trigger(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    piece.compacts = True
    piece.add_turn("user", TextBlock(SUMMARY_INSTRUCTION))


def _compaction(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    sealed = item.get("encrypted_content")
    text = summary.unpack_summary(sealed) if isinstance(sealed, str) else None
    if text is None:
        piece.ignored.append(path)
    else:
        piece.add_turn("user", TextBlock(SUMMARY_PREFACE + text))


def _ignore(piece: DecodedItem, item: dict[str, Any], path: str) -> None:
    """Report and ignore an unknown item, or one that the model cannot use."""
    piece.ignored.append(path)


ITEM_DECODERS: dict[str, Callable[[DecodedItem, dict[str, Any], str], None]] = {
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
    **dict.fromkeys(hosted.DESCRIBED_CALLS, _hosted),
}
"""Decoders of all supported item types."""
