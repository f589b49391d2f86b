"""Conversations with the SDKs over each of the three APIs, with any model output.

With `think`, the model decides about reasoning. Otherwise it is off, and one call per turn is
allowed: random weights never end a reasoning span by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from anthropic import Anthropic
from openai import OpenAI
from server_process import Running

LOOK_UP = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "note": {"type": "string", "pattern": "^[a-zé ]{1,24}$"},  # in any tokens
    },
    "required": ["city", "note"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class TurnResult:
    """A turn as a client sees it."""

    text: str
    reasoning: str
    calls: tuple[Mapping[str, Any], ...]
    finish: str
    input: int
    cached: int
    output: int


class Conversation(Protocol):
    """One conversation. `send_result` sends the results of a turn's calls."""

    def send(self, text: str, *, must_call: bool = False) -> TurnResult: ...

    def send_result(self, text: str, *, must_call: bool = False) -> TurnResult: ...


class _ConversationBase:
    """The common state of the three APIs."""

    def __init__(self, model: str, session: str, limit: int, think: bool) -> None:
        self._limit = limit
        self._think = think
        self._history: list[Any] = []
        self._calls: list[Any] = []
        self._common_fields: dict[str, Any] = {
            "model": model,
            "extra_body": {"temperature": 1.0},
            "extra_headers": {"x-session-id": session},
        }


class MessagesConversation(_ConversationBase):
    """Anthropic's Messages, streamed."""

    def __init__(
        self, client: Anthropic, model: str, session: str, limit: int, think: bool
    ) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def send(self, text: str, *, must_call: bool = False) -> TurnResult:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def send_result(self, text: str, *, must_call: bool = False) -> TurnResult:
        results = [
            {"type": "tool_result", "tool_use_id": c.id, "content": text} for c in self._calls
        ]
        self._history.append({"role": "user", "content": results})
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> TurnResult:
        tool: Any = {"name": "look_up", "description": "Weather", "input_schema": LOOK_UP}
        choice: Any = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        no_reasoning: Any = {} if self._think else {"thinking": {"type": "disabled"}}
        with self._client.messages.stream(
            messages=self._history,
            max_tokens=self._limit,
            tools=[tool],
            **no_reasoning,
            **(choice if must_call else {}),
            **self._common_fields,
        ) as stream:
            message = stream.get_final_message()
        blocks: list[Any] = list(message.content)
        self._history.append({"role": "assistant", "content": blocks or ""})
        self._calls = [block for block in blocks if block.type == "tool_use"]
        usage = message.usage
        cached = usage.cache_read_input_tokens or 0
        return TurnResult(
            text="".join(block.text for block in blocks if block.type == "text"),
            reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
            calls=tuple(call.input for call in self._calls),
            finish=message.stop_reason or "",
            input=usage.input_tokens + cached,
            cached=cached,
            output=usage.output_tokens,
        )


class ChatConversation(_ConversationBase):
    """OpenAI's Chat Completions, non-streaming."""

    def __init__(self, client: OpenAI, model: str, session: str, limit: int, think: bool) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def send(self, text: str, *, must_call: bool = False) -> TurnResult:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def send_result(self, text: str, *, must_call: bool = False) -> TurnResult:
        results = [{"role": "tool", "tool_call_id": c.id, "content": text} for c in self._calls]
        self._history += results
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> TurnResult:
        tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": LOOK_UP}}
        choice: Any = {"tool_choice": "required", "parallel_tool_calls": False}
        no_reasoning: Any = {} if self._think else {"reasoning_effort": "none"}
        response = self._client.chat.completions.create(
            messages=self._history,
            max_tokens=self._limit,
            tools=[tool],
            **no_reasoning,
            **(choice if must_call else {}),
            **self._common_fields,
        )
        message, usage = response.choices[0].message, response.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        self._history.append(message.model_dump(exclude_none=True))
        self._calls = list(message.tool_calls or ())
        return TurnResult(
            text=message.content or "",
            reasoning=(message.model_extra or {}).get("reasoning_content") or "",
            calls=tuple({"arguments": call.function.arguments} for call in self._calls),
            finish=response.choices[0].finish_reason,
            input=usage.prompt_tokens,
            cached=usage.prompt_tokens_details.cached_tokens or 0,
            output=usage.completion_tokens,
        )


class ResponsesConversation(_ConversationBase):
    """OpenAI's Responses, without a store: the complete history is sent, as Codex does."""

    def __init__(self, client: OpenAI, model: str, session: str, limit: int, think: bool) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def send(self, text: str, *, must_call: bool = False) -> TurnResult:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def send_result(self, text: str, *, must_call: bool = False) -> TurnResult:
        kind = "function_call_output"
        results = [{"type": kind, "call_id": c.call_id, "output": text} for c in self._calls]
        self._history += results
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> TurnResult:
        tool: Any = {"type": "function", "name": "look_up", "parameters": LOOK_UP}
        choice: Any = {"tool_choice": "required", "parallel_tool_calls": False}
        no_reasoning: Any = {} if self._think else {"reasoning": {"effort": "none"}}
        response = self._client.responses.create(
            input=self._history,
            max_output_tokens=self._limit,
            tools=[tool],
            store=False,
            include=["reasoning.encrypted_content"],
            **no_reasoning,
            **(choice if must_call else {}),
            **self._common_fields,
        )
        items: list[Any] = list(response.output)
        self._history += [item.model_dump(exclude_none=True) for item in items]
        self._calls = [item for item in items if item.type == "function_call"]
        usage = response.usage
        assert usage is not None
        reasoning = [item for item in items if item.type == "reasoning"]
        return TurnResult(
            text=response.output_text,
            reasoning="".join(str(item.content or item.summary) for item in reasoning),
            calls=tuple({"arguments": call.arguments} for call in self._calls),
            finish=response.status or "",
            input=usage.input_tokens,
            cached=usage.input_tokens_details.cached_tokens,
            output=usage.output_tokens,
        )


APIS = ("messages", "chat", "responses")


def start_conversation(
    running: Running, api: str, model: str, session: str, limit: int = 24, *, think: bool = False
) -> Conversation:
    """Start a new conversation."""
    if api == "messages":
        return MessagesConversation(running.anthropic(), model, session, limit, think)
    kind = ChatConversation if api == "chat" else ResponsesConversation
    return kind(running.openai(), model, session, limit, think)
