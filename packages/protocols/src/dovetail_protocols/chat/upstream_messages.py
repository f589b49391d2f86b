"""Turns as the messages of a chat, for a server that somebody else made.

A chat message has one place for reasoning and one list of calls. A turn in which a thought or text
follows a call is told in several messages, each with its own thought and calls, each followed by
the results of these calls:

    think0 call0 think1 call1, result0 result1
    -> assistant(think0, call0) tool(result0) assistant(think1, call1) tool(result1)

That keeps each thought with its call, and the server's prompt the same as far as the first call's
end. It needs the results of all calls before the cut in the turn that follows: where one is
missing, the turn stays one message and the loss is told.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail_model import (
    Block,
    ImageBlock,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols.chat.segments import segments_of
from dovetail_protocols.upstream import Dialect, ToolNames, address, arguments, told

Message = dict[str, Any]
Write = Callable[[Turn], str]
"""An assistant turn as the text that its model would have written."""


class Teller:
    """Tells a request's turns. `lost` are codes of what a chat could not carry."""

    __slots__ = ("_dialect", "_messages", "_names", "_write", "lost")

    def __init__(self, names: ToolNames, dialect: Dialect, write: Write | None = None) -> None:
        self._names = names
        self._dialect = dialect
        self._write = write
        self._messages: list[Message] = []
        self.lost: dict[str, None] = {}

    def messages(self, request: Request) -> list[Message]:
        """The whole history, the system prompt first."""
        if system := told(request.system):
            self._say("system", system)
        turns = iter(zip(request.turns, (*request.turns, None)[1:], strict=True))
        for turn, following in turns:
            if turn.role == "assistant":
                answered = following is not None and following.role == "tool"
                self._assistant(turn, _results(following) if answered else [])
                if answered:
                    next(turns)
            elif turn.role == "tool":
                self._answers(_results(turn), {})
            else:
                # Templates refuse a system message that is not the first one.
                self._shown("user", turn.blocks)
        return self._messages

    def _assistant(self, turn: Turn, results: Sequence[ToolResultBlock]) -> None:
        """A turn and what its calls gave, piece by piece."""
        pieces = self._pieces(turn, {result.call_id for result in results})
        left = list(results)
        for at, piece in enumerate(pieces):
            message = self._said(piece)
            if len(message) > 1:
                self._messages.append(message)
            calls = {b.id: self._names.shown(b) for b in piece if isinstance(b, ToolCallBlock)}
            last = at == len(pieces) - 1
            now = [result for result in left if last or result.call_id in calls]
            left = [result for result in left if result not in now]
            self._answers(now, calls)

    def _pieces(self, turn: Turn, answered: set[str]) -> list[tuple[Block, ...]]:
        """The messages that a turn becomes, see the module."""
        pieces = cut_behind_calls(turn.blocks)
        if self._write is not None or len(pieces) == 1:
            return [turn.blocks]
        if self._dialect.reasoning == "reasoning_segments":
            return [turn.blocks]
        before = [block for piece in pieces[:-1] for block in piece]
        if all(block.id in answered for block in before if isinstance(block, ToolCallBlock)):
            return pieces
        self.lost["interleaving_not_carried"] = None
        return [turn.blocks]

    def _said(self, blocks: tuple[Block, ...]) -> Message:
        """One assistant message; its role alone where nothing of it can be told."""
        if self._write is not None:
            text = self._write(Turn("assistant", blocks))
            return {"role": "assistant", "content": text} if text else {"role": "assistant"}
        calls = [self._call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        text = told(blocks)
        message: Message = {"role": "assistant"}
        if text or calls:
            message["content"] = text
        if thoughts := self._thoughts(blocks):
            message |= thoughts
            message.setdefault("content", "")
        if calls:
            message["tool_calls"] = calls
        return message

    def _thoughts(self, blocks: tuple[Block, ...]) -> Message:
        thoughts = [b.text for b in blocks if isinstance(b, ReasoningBlock) and b.text]
        if not thoughts:
            return {}
        match self._dialect.reasoning:
            case None:
                self.lost["reasoning_not_carried"] = None
                return {}
            case "reasoning_segments":
                said = [b for b in blocks if isinstance(b, ReasoningBlock | ToolCallBlock)]
                return {"reasoning_segments": segments_of(said)}
            case field:
                return {field: "\n".join(thoughts)}

    def _call(self, call: ToolCallBlock) -> Message:
        name = self._names.shown(call)
        if call.custom and self._dialect.custom_tools:
            custom = {"name": name, "input": call.arguments}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": name, "arguments": arguments(call)}
        return {"id": call.id, "type": "function", "function": function}

    def _answers(self, results: Sequence[ToolResultBlock], calls: Mapping[str, str]) -> None:
        """Results of these calls, which are ids and names; some templates look for a name.

        A result whose call is gone is refused by servers: a user tells it.

        A result is text in this API; its images follow all results in a message of their own.
        """
        images: list[Block] = []
        strangers: list[ToolResultBlock] = []
        for result in results:
            if result.call_id not in calls:
                strangers.append(result)
                continue
            name = calls[result.call_id]
            self._say("tool", told(result.blocks), tool_call_id=result.call_id, name=name)
            images += [block for block in result.blocks if isinstance(block, ImageBlock)]
        if self._dialect.images:
            self._shown("user", images)
        for result in strangers:
            self._shown("user", result.blocks)

    def _shown(self, role: str, blocks: Sequence[Block]) -> None:
        """A message of text, or of parts where there are images among it."""
        if not self._dialect.images or not any(isinstance(b, ImageBlock) for b in blocks):
            if text := told(blocks):
                self._say(role, text)
            return
        self._messages.append({"role": role, "content": [*map(_part, blocks)]})

    def _say(self, role: str, text: str, **more: str) -> None:
        self._messages.append({"role": role, "content": text, **more})


def cut_behind_calls(blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
    """A turn cut wherever a thought or text follows a call."""
    pieces: list[list[Block]] = [[]]
    for block in blocks:
        spoken = isinstance(block, ReasoningBlock | TextBlock)
        if spoken and pieces[-1] and isinstance(pieces[-1][-1], ToolCallBlock):
            pieces.append([])
        pieces[-1].append(block)
    return [tuple(piece) for piece in pieces]


def _results(turn: Turn | None) -> list[ToolResultBlock]:
    return [b for b in turn.blocks if isinstance(b, ToolResultBlock)] if turn is not None else []


def _part(block: Block) -> Message:
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": address(block)}}
    return {"type": "text", "text": told([block])}
