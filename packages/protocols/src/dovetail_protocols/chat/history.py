"""Messages of a chat into turns: what came first as system, calls and results tied by their ids."""

import json
from collections.abc import Sequence

from dovetail_model import Block, InvalidRequest, Role, ToolCallBlock, ToolResultBlock, Turn
from dovetail_protocols.chat.content import shown, thoughts
from dovetail_protocols.chat.segments import interleave, read_segments
from dovetail_protocols.chat.wire import Call, ChatMessage, FunctionCall


class History:
    """Takes the messages one by one; `system` and `turns` are what they make."""

    __slots__ = ("_results", "_system", "_turns", "_unanswered")

    def __init__(self) -> None:
        self._system: list[Block] = []
        self._turns: list[Turn] = []
        self._results: list[ToolResultBlock] = []
        self._unanswered: dict[str, None] = {}  # calls in their order

    def add(self, at: int, message: ChatMessage) -> None:
        """The message at `messages[at]`."""
        match message.role:
            case "tool" | "function":
                self._results.append(self._result(message))
            case "assistant":
                self._add("assistant", self._assistant(at, message))
            case "system" | "developer" if not self._turns and not self._results:
                self._system += shown(message.content)
            case "system" | "developer" | "user" as role:
                self._add(role, shown(message.content))
            case role:
                path = f"messages[{at}].role"
                raise InvalidRequest(f"{path}: unknown role '{role}'", param=path)

    def system(self) -> tuple[Block, ...]:
        """What stood before the first turn. A later system message keeps its place as a turn."""
        return tuple(self._system)

    def turns(self) -> tuple[Turn, ...]:
        self._end_results()
        return tuple(self._turns)

    def _add(self, role: Role, blocks: tuple[Block, ...]) -> None:
        self._end_results()
        self._turns.append(Turn(role, blocks))

    def _assistant(self, at: int, message: ChatMessage) -> tuple[Block, ...]:
        """Reasoning, text and calls in the model's order, as far as this copy shows it."""
        calls = _calls(at, message)
        self._unanswered = dict.fromkeys(call.id for call in calls)
        segments = read_segments(
            message.reasoning_segments, message.reasoning_content, message.reasoning
        )
        said: list[Block] = [*shown(message.content), *shown(message.refusal)]
        if not segments:
            said = [*thoughts(message.content), *said]
        return interleave(segments, said, calls)

    def _result(self, message: ChatMessage) -> ToolResultBlock:
        """A result. Without an id it answers the first call that has no result yet."""
        call_id = message.tool_call_id
        if not call_id:
            call_id = next(iter(self._unanswered), "")
        self._unanswered.pop(call_id, None)
        return ToolResultBlock(call_id, shown(message.content))

    def _end_results(self) -> None:
        """Results that follow each other are one turn."""
        if self._results:
            self._turns.append(Turn("tool", tuple(self._results)))
            self._results = []


def _calls(at: int, message: ChatMessage) -> Sequence[ToolCallBlock]:
    """The calls of a message. One without an id gets one from its place, the same every time."""
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
        raise InvalidRequest(f"{path}: neither a function nor a custom tool", param=path)
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
            raise InvalidRequest(f"{where}: nested too deeply", param=where) from error
    return ToolCallBlock(id, function.name, arguments)
