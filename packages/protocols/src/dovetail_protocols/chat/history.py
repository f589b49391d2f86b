"""Decode the messages of a chat into turns. Ids tie results to calls."""

import json
from collections.abc import Sequence

import msgspec

from dovetail_model import Block, InvalidRequest, ToolCallBlock, ToolResultBlock, Turn
from dovetail_protocols.chat.content import decode_content, decode_reasoning, has_omitted_part
from dovetail_protocols.chat.segments import decode_segments, interleave
from dovetail_protocols.chat.wire import Call, ChatMessage, FunctionCall
from dovetail_protocols.request_body import RequestBody, convert, join_turns


class DecodedMessage(msgspec.Struct, frozen=True):
    """One decoded message. A result without an id is not yet assigned to a call.

    `named` states that the message has a `name`, which the data model does not represent; a
    tool's name is known from its call. `calls` lists the ids of its calls. `omits` states that a
    placeholder is in place of a part.
    """

    turn: Turn
    named: bool
    calls: tuple[str, ...] = ()
    omits: bool = False


def decode_message(value: object, at: int) -> DecodedMessage:
    """Decode the message at `messages[at]`."""
    path = f"messages[{at}]"
    message = convert(value, ChatMessage, path)
    omits = has_omitted_part(message.content)
    match message.role:
        case "tool" | "function":
            result = ToolResultBlock(message.tool_call_id or "", decode_content(message.content))
            return DecodedMessage(Turn("tool", (result,)), named=False, omits=omits)
        case "assistant" as role:
            blocks = _assistant(at, message)
            calls = tuple(block.id for block in blocks if isinstance(block, ToolCallBlock))
            return DecodedMessage(Turn(role, blocks), bool(message.name), calls, omits)
        case "system" | "developer" | "user" as role:
            turn = Turn(role, decode_content(message.content))
            return DecodedMessage(turn, bool(message.name), omits=omits)
        case role:
            raise InvalidRequest(f"{path}.role: unknown role '{role}'", param=f"{path}.role")


class ChatHistory:
    """Collects messages into `system` and `turns`.

    Joining the same messages always returns the identical object.
    """

    __slots__ = ("_body", "_pending_calls", "_results", "_system", "_turns")

    def __init__(self, body: RequestBody) -> None:
        self._body = body
        self._system: list[Turn] = []
        self._turns: list[Turn] = []
        self._results: list[Turn] = []
        self._pending_calls: dict[str, None] = {}  # ids of calls without a result, in order

    def add(self, message: DecodedMessage) -> None:
        turn = message.turn
        if turn.role == "tool":
            self._results.append(self._resolve_result(turn))
        elif turn.role in ("system", "developer") and not self._turns and not self._results:
            self._system.append(turn)
        else:
            self._end_results()
            self._turns.append(turn)
            if turn.role == "assistant":
                self._pending_calls = dict.fromkeys(message.calls)

    def system(self) -> tuple[Block, ...]:
        """Return the content before the first turn. Later system messages are turns."""
        return join_turns(self._body, self._system).blocks if self._system else ()

    def turns(self) -> tuple[Turn, ...]:
        self._end_results()
        return tuple(self._turns)

    def _resolve_result(self, turn: Turn) -> Turn:
        """Assign a result without an id to the first call that has no result yet."""
        result = turn.blocks[0]
        assert isinstance(result, ToolResultBlock)
        call_id = result.call_id or next(iter(self._pending_calls), "")
        self._pending_calls.pop(call_id, None)
        if call_id == result.call_id:
            return turn
        resolved = msgspec.structs.replace(result, call_id=call_id)
        parts: tuple[object, ...] = (turn, call_id)
        return self._body.combine("chat.result", parts, lambda _: Turn("tool", (resolved,)))

    def _end_results(self) -> None:
        """Join consecutive results to one turn."""
        if self._results:
            self._turns.append(join_turns(self._body, self._results))
            self._results = []


def _assistant(at: int, message: ChatMessage) -> tuple[Block, ...]:
    """Return reasoning, text and calls in the model's order, as far as the message shows it."""
    segments = decode_segments(
        message.reasoning_segments, message.reasoning_content, message.reasoning
    )
    visible: list[Block] = [*decode_content(message.content), *decode_content(message.refusal)]
    if not segments:
        visible = [*decode_reasoning(message.content), *visible]
    return interleave(segments, visible, _calls(at, message))


def _calls(at: int, message: ChatMessage) -> Sequence[ToolCallBlock]:
    """Return the calls of a message. A call without an id gets a stable one from its index."""
    if message.tool_calls:
        path = f"messages[{at}].tool_calls"
        return [
            _call(call, f"call_{at}_{index}", f"{path}[{index}]")
            for index, call in enumerate(message.tool_calls)
        ]
    if message.function_call is not None:
        return [_function(message.function_call, f"call_{at}_0", f"messages[{at}].function_call")]
    return []


def _call(call: Call, fallback: str, path: str) -> ToolCallBlock:
    id = call.id or fallback
    if call.custom is not None:
        return ToolCallBlock(id, call.custom.name, call.custom.input or "", custom=True)
    if call.function is None:
        raise InvalidRequest(f"{path}: must have `function` or `custom`", param=path)
    return _function(call.function, id, f"{path}.function")


def _function(function: FunctionCall, id: str, path: str) -> ToolCallBlock:
    arguments = function.arguments
    if arguments is None:
        arguments = "{}"
    elif not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except RecursionError as error:
            where = f"{path}.arguments"
            raise InvalidRequest(f"{where}: is nested too deeply", param=where) from error
    return ToolCallBlock(id, function.name, arguments)
