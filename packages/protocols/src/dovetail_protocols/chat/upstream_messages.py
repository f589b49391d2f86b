"""Convert turns to the messages of a chat, for an upstream server.

A chat message has one field for reasoning and one list of calls. A turn in which reasoning or text
follows a call becomes several messages, each with its own reasoning and calls, and each followed by
the results of these calls:

    think0 call0 think1 call1, result0 result1
    -> assistant(think0, call0) tool(result0) assistant(think1, call1) tool(result1)

This keeps reasoning with its call, and the server's prompt unchanged up to the end of the first
call. It requires that the following turn has the results of all calls before the split; if one is
missing, the turn stays one message and the loss is reported.
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
from dovetail_protocols.chat.segments import split_reasoning
from dovetail_protocols.upstream import (
    ToolNames,
    UpstreamDialect,
    blocks_to_text,
    call_arguments,
    image_url,
)

MessageDict = dict[str, Any]
TurnWriter = Callable[[Turn], str]
"""Renders an assistant turn as the text that its model would have generated."""


class ChatMessageBuilder:
    """Builds the messages of a request. `dropped` lists codes of what a chat cannot represent."""

    __slots__ = ("_dialect", "_messages", "_names", "_write_turn", "dropped")

    def __init__(
        self, names: ToolNames, dialect: UpstreamDialect, write_turn: TurnWriter | None = None
    ) -> None:
        self._names = names
        self._dialect = dialect
        self._write_turn = write_turn
        self._messages: list[MessageDict] = []
        self.dropped: dict[str, None] = {}

    def build(self, request: Request) -> list[MessageDict]:
        """Build the messages of the full history, starting with the system prompt."""
        if system := blocks_to_text(request.system):
            self._append_text("system", system)
        turns = iter(zip(request.turns, (*request.turns, None)[1:], strict=True))
        for turn, following in turns:
            if turn.role == "assistant":
                has_results = following is not None and following.role == "tool"
                self._append_assistant(turn, _results(following) if has_results else [])
                if has_results:
                    next(turns)
            elif turn.role == "tool":
                self._append_results(_results(turn), {})
            else:
                # Templates reject a system message that is not the first message.
                self._append_content("user", turn.blocks)
        return self._messages

    def _append_assistant(self, turn: Turn, results: Sequence[ToolResultBlock]) -> None:
        """Append a turn and the results of its calls, message by message."""
        pieces = self._split_turn(turn, {result.call_id for result in results})
        left = list(results)
        for at, piece in enumerate(pieces):
            message = self._assistant_message(piece)
            if len(message) > 1:
                self._messages.append(message)
            calls = {
                b.id: self._names.upstream_name(b) for b in piece if isinstance(b, ToolCallBlock)
            }
            last = at == len(pieces) - 1
            now = [result for result in left if last or result.call_id in calls]
            left = [result for result in left if result not in now]
            self._append_results(now, calls)

    def _split_turn(self, turn: Turn, result_ids: set[str]) -> list[tuple[Block, ...]]:
        """Split a turn into messages as described in the module docstring."""
        pieces = split_after_calls(turn.blocks)
        if self._write_turn is not None or len(pieces) == 1:
            return [turn.blocks]
        if self._dialect.reasoning == "reasoning_segments":
            return [turn.blocks]
        before = [block for piece in pieces[:-1] for block in piece]
        if all(block.id in result_ids for block in before if isinstance(block, ToolCallBlock)):
            return pieces
        self.dropped["interleaving_not_carried"] = None
        return [turn.blocks]

    def _assistant_message(self, blocks: tuple[Block, ...]) -> MessageDict:
        """Build one assistant message; only the role if it has no content."""
        if self._write_turn is not None:
            text = self._write_turn(Turn("assistant", blocks))
            return {"role": "assistant", "content": text} if text else {"role": "assistant"}
        calls = [self._call(block) for block in blocks if isinstance(block, ToolCallBlock)]
        text = blocks_to_text(blocks)
        message: MessageDict = {"role": "assistant"}
        if text or calls:
            message["content"] = text
        if reasoning := self._reasoning_fields(blocks):
            message |= reasoning
            message.setdefault("content", "")
        if calls:
            message["tool_calls"] = calls
        return message

    def _reasoning_fields(self, blocks: tuple[Block, ...]) -> MessageDict:
        texts = [b.text for b in blocks if isinstance(b, ReasoningBlock) and b.text]
        if not texts:
            return {}
        match self._dialect.reasoning:
            case None:
                self.dropped["reasoning_not_carried"] = None
                return {}
            case "reasoning_segments":
                relevant = [b for b in blocks if isinstance(b, ReasoningBlock | ToolCallBlock)]
                return {"reasoning_segments": split_reasoning(relevant)}
            case field:
                return {field: "\n".join(texts)}

    def _call(self, call: ToolCallBlock) -> MessageDict:
        name = self._names.upstream_name(call)
        if call.custom and self._dialect.custom_tools:
            custom = {"name": name, "input": call.arguments}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": name, "arguments": call_arguments(call)}
        return {"id": call.id, "type": "function", "function": function}

    def _append_results(self, results: Sequence[ToolResultBlock], calls: Mapping[str, str]) -> None:
        """Append the results of these calls, given as ids and names: some templates use the name.

        Servers reject a result without its call, so it becomes a user message.

        A result is text in this API. Its images follow all results in a separate message.
        """
        images: list[Block] = []
        unmatched: list[ToolResultBlock] = []
        for result in results:
            if result.call_id not in calls:
                unmatched.append(result)
                continue
            name = calls[result.call_id]
            self._append_text(
                "tool", blocks_to_text(result.blocks), tool_call_id=result.call_id, name=name
            )
            images += [block for block in result.blocks if isinstance(block, ImageBlock)]
        self._append_content("user", images)
        for result in unmatched:
            self._append_content("user", result.blocks)

    def _append_content(self, role: str, blocks: Sequence[Block]) -> None:
        """Append a message of text, or of parts if it contains images."""
        if not any(isinstance(b, ImageBlock) for b in blocks):
            if text := blocks_to_text(blocks):
                self._append_text(role, text)
            return
        self._messages.append({"role": role, "content": [*map(_part, blocks)]})

    def _append_text(self, role: str, text: str, **more: str) -> None:
        self._messages.append({"role": role, "content": text, **more})


def split_after_calls(blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
    """Split a turn wherever reasoning or text follows a call."""
    pieces: list[list[Block]] = [[]]
    for block in blocks:
        is_output = isinstance(block, ReasoningBlock | TextBlock)
        if is_output and pieces[-1] and isinstance(pieces[-1][-1], ToolCallBlock):
            pieces.append([])
        pieces[-1].append(block)
    return [tuple(piece) for piece in pieces]


def _results(turn: Turn | None) -> list[ToolResultBlock]:
    return [b for b in turn.blocks if isinstance(b, ToolResultBlock)] if turn is not None else []


def _part(block: Block) -> MessageDict:
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": image_url(block)}}
    return {"type": "text", "text": blocks_to_text([block])}
