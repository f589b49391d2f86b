"""The three APIs from an agent's side: what is sent, and what reads the answer.

Chat is spoken as most agents do: one message for each answer, its thoughts in one field before its
text and its calls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from dovetail.watch.decoder import ResponseReader
from dovetail_model import (
    Block,
    ReasoningBlock,
    Request,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)
from dovetail_protocols import (
    ChatReader,
    MessagesReader,
    ResponsesReader,
    UpstreamDialect,
    build_chat_request,
    build_responses_request,
)

ApiName = Literal["chat", "messages", "responses"]
Json = dict[str, Any]


@dataclass(frozen=True)
class ApiAdapter:
    """One API. `body` makes the fields of a request that asks for a stream."""

    name: ApiName
    path: str
    build_body: Callable[[Request], Json]
    create_reader: Callable[[], ResponseReader]


def _build_chat_body(request: Request) -> Json:
    turns = tuple(
        _group_blocks(turn) if turn.role == "assistant" else turn for turn in request.turns
    )
    return build_chat_request(msgspec.structs.replace(request, turns=turns), request.model).fields


def _group_blocks(turn: Turn) -> Turn:
    """An answer as a chat message has it: one thought, one text, the calls."""
    thought = "".join(b.text for b in turn.blocks if isinstance(b, ReasoningBlock))
    text = "".join(b.text for b in turn.blocks if isinstance(b, TextBlock))
    said: list[Block] = [ReasoningBlock(thought)] if thought else []
    said += [TextBlock(text)] if text else []
    return Turn(turn.role, (*said, *(b for b in turn.blocks if isinstance(b, ToolCallBlock))))


def _build_responses_body(request: Request) -> Json:
    return build_responses_request(request, request.model, UpstreamDialect(seals=True)).fields


def _build_messages_body(request: Request) -> Json:
    sampling = request.sampling
    fields: Json = {
        "model": request.model,
        "system": [_encode_block(block) for block in request.system],
        "messages": _encode_turns(request.turns),
        "tools": [
            {"name": t.name, "description": t.description, "input_schema": t.parameters}
            for t in request.tools
        ],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stream": True,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _encode_turns(turns: Sequence[Turn]) -> list[Json]:
    """Messages: what tools gave is a user's."""
    return [
        {
            "role": "assistant" if turn.role == "assistant" else "user",
            "content": [_encode_block(block) for block in turn.blocks],
        }
        for turn in turns
    ]


def _encode_block(block: Block) -> Json:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "text": text}
        case ReasoningBlock(text="", seal=str(seal)):
            return {"type": "redacted_thinking", "data": seal}
        case ReasoningBlock(text=text, seal=seal):
            return {"type": "thinking", "thinking": text, "signature": seal or ""}
        case ToolCallBlock(id=id, name=name, arguments=arguments):
            return {
                "type": "tool_use",
                "id": id,
                "name": name,
                "input": _parse_arguments(arguments),
            }
        case ToolResultBlock(call_id=id, blocks=blocks, is_error=failed):
            content = [_encode_block(inner) for inner in blocks]
            told = {"type": "tool_result", "tool_use_id": id, "content": content}
            return {**told, "is_error": True} if failed else told
        case _:
            raise ValueError(f"the tasks have no {block.type}")


def _parse_arguments(arguments: str) -> Json:
    """Arguments as an object. What is none was refused, and the model was told so."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"input": arguments}


APIS: Mapping[str, ApiAdapter] = {
    api.name: api
    for api in (
        ApiAdapter("messages", "/v1/messages", _build_messages_body, MessagesReader),
        ApiAdapter("responses", "/v1/responses", _build_responses_body, ResponsesReader),
        ApiAdapter("chat", "/v1/chat/completions", _build_chat_body, ChatReader),
    )
}
