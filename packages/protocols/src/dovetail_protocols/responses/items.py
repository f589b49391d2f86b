"""Input items to turns, in the order the client sent them.

Whatever the model itself said (messages, thoughts, calls) goes into one assistant turn as long as
nothing else stands between; results go into one tool turn, tied to their calls by id. A client that
replays R1,C1,R2,C2,O1,O2 so gets one assistant turn of four blocks and one tool turn of two.
"""

from collections.abc import Callable
from typing import Any

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
from dovetail_protocols.responses import content, hosted, summary, wire
from dovetail_protocols.wire import convert

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


class History:
    """Turns in the making, and what was found among them that is not a turn."""

    __slots__ = ("_turns", "compacts", "ignored", "tools")

    def __init__(self) -> None:
        self._turns: list[tuple[Role, list[Block]]] = []
        self.ignored: list[str] = []
        self.tools: list[tuple[str, Any]] = []  # tools that came as items, with their paths
        self.compacts = False

    def turns(self) -> tuple[Turn, ...]:
        return tuple(Turn(role, tuple(blocks)) for role, blocks in self._turns)

    def say(self, role: Role, *blocks: Block) -> None:
        """More of what this party said. Only the model and its tools go on in an open turn."""
        last = self._turns[-1] if self._turns else None
        if last is not None and last[0] == role and role in ("assistant", "tool"):
            last[1].extend(blocks)
        else:
            self._turns.append((role, list(blocks)))

    def add(self, item: object, path: str) -> None:
        """One item of the input."""
        if not isinstance(item, dict):
            raise InvalidRequest(f"{path}: Expected an object", param=path)
        kind = item.get("type")
        if not isinstance(kind, str):
            kind = _untyped(item, path)
        KINDS.get(kind, _other)(self, item, path)


def read(given: str | list[Any] | None) -> History:
    """The whole input."""
    history = History()
    if isinstance(given, str):
        history.say("user", *content.blocks(given, "input", history.ignored))
        return history
    for at, item in enumerate(given or ()):
        history.add(item, f"input[{at}]")
    return history


def _untyped(item: dict[str, Any], path: str) -> str:
    if "role" in item:
        return "message"
    if "id" in item:
        return "item_reference"
    raise InvalidRequest(f"{path}.type: The item has neither a type nor a role", param=path)


def _message(history: History, item: dict[str, Any], path: str) -> None:
    message = convert(item, wire.MessageIn, path)
    role = _ROLES.get(message.role)
    if role is None:
        where = f"{path}.role"
        raise InvalidRequest(f"{where}: Expected one of {', '.join(_ROLES)}", param=where)
    history.say(role, *content.blocks(message.content, f"{path}.content", history.ignored))


def _agent_message(history: History, item: dict[str, Any], path: str) -> None:
    """From another agent to this one: to the model it is a user's message that names its sender."""
    message = convert(item, wire.AgentMessageIn, path)
    blocks = content.blocks(message.content, f"{path}.content", history.ignored)
    if message.author and blocks:
        blocks = (TextBlock(f"Message from {message.author}:"), *blocks)
    history.say("user", *blocks)


def _reasoning(history: History, item: dict[str, Any], path: str) -> None:
    """The thought itself where the client kept it, else its summary; the seal in any case."""
    thought = convert(item, wire.ReasoningIn, path)
    text = content.text(thought.content) or content.text(thought.summary, "\n\n")
    history.say("assistant", ReasoningBlock(text, thought.encrypted_content))


def _function_call(history: History, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    _call(history, call, path, hosted.arguments(call.arguments))


def _custom_call(history: History, item: dict[str, Any], path: str) -> None:
    call = convert(item, wire.CallIn, path)
    text = call.input if isinstance(call.input, str) else hosted.arguments(call.input)
    _call(history, call, path, text, custom=True)


def _call(
    history: History, call: wire.CallIn, path: str, arguments: str, *, custom: bool = False
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
    history.say("assistant", block)


def _result(history: History, item: dict[str, Any], path: str) -> None:
    result = convert(item, wire.ResultIn, path)
    blocks = content.output(result.output, f"{path}.output", history.ignored)
    failed = result.status == "failed"
    history.say("tool", ToolResultBlock(result.call_id or result.id or "", blocks, failed))


def _paired_call(history: History, item: dict[str, Any], path: str) -> None:
    """A tool of the API's own whose results come as items: a call like any other."""
    name, field = hosted.PAIRED_CALLS[item["type"]]
    call = convert(item, wire.CallIn, path)
    block = ToolCallBlock(
        call.call_id or call.id or "", name, hosted.arguments(item.get(field)), call.namespace
    )
    history.say("assistant", block)


def _found_tools(history: History, item: dict[str, Any], path: str) -> None:
    """What a tool search found is offered from now on; the model reads the names alone."""
    _more_tools(history, item, path)
    names = hosted.names(item.get("tools"))
    _result(history, {**item, "output": content.as_json({"tools": names})}, path)


def _more_tools(history: History, item: dict[str, Any], path: str) -> None:
    given = item.get("tools")
    if isinstance(given, list):
        history.tools += [(f"{path}.tools[{at}]", tool) for at, tool in enumerate(given)]


def _mcp_call(history: History, item: dict[str, Any], path: str) -> None:
    """A call that another server made and answered: a call and its result, side by side."""
    call = convert(item, wire.McpCallIn, path)
    name, identity = call.name or "mcp", call.id or ""
    arguments = hosted.arguments(call.arguments)
    history.say("assistant", ToolCallBlock(identity, name, arguments, call.server_label))
    failed = call.error is not None
    given = call.error if failed else call.output
    blocks = content.output(given, f"{path}.output", history.ignored)
    history.say("tool", ToolResultBlock(identity, blocks, failed))


def _hosted(history: History, item: dict[str, Any], path: str) -> None:
    """Work that another server did inside its own turn: a line of text that says so."""
    history.say("assistant", TextBlock(hosted.told(item)))


def _trigger(history: History, item: dict[str, Any], path: str) -> None:
    history.compacts = True
    history.say("user", TextBlock(summary.TRIGGER))


def _compaction(history: History, item: dict[str, Any], path: str) -> None:
    sealed = item.get("encrypted_content")
    told = summary.unpack(sealed) if isinstance(sealed, str) else None
    if told is None:
        history.ignored.append(path)
    else:
        history.say("user", TextBlock(summary.PREFACE + told))


def _other(history: History, item: dict[str, Any], path: str) -> None:
    """Known to nobody here, or of no use to a model: reported, harmless."""
    history.ignored.append(path)


KINDS: dict[str, Callable[[History, dict[str, Any], str], None]] = {
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
