"""Conversations as SDK users have them, over each of the three APIs, whatever the model says.

Where they `think`, it is left to the model; else it is off, and one call a turn is allowed: random
weights never end a thought by themselves.
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
        "note": {"type": "string", "pattern": "^[a-zé ]{1,24}$"},  # in whatever tokens
    },
    "required": ["city", "note"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Shown:
    """What a client sees of a turn."""

    text: str
    thoughts: str
    calls: tuple[Mapping[str, Any], ...]
    finish: str
    input: int
    cached: int
    output: int


class Talker(Protocol):
    """One conversation. A turn's calls are answered with `result` in the next one."""

    def say(self, text: str, *, must_call: bool = False) -> Shown: ...

    def result(self, text: str, *, must_call: bool = False) -> Shown: ...


class _Conversation:
    """What the three have in common."""

    def __init__(self, model: str, session: str, limit: int, think: bool) -> None:
        self._limit = limit
        self._think = think
        self._history: list[Any] = []
        self._calls: list[Any] = []
        self._asked: dict[str, Any] = {
            "model": model,
            "extra_body": {"temperature": 1.0},
            "extra_headers": {"x-session-id": session},
        }


class MessagesTalker(_Conversation):
    """Anthropic's Messages, streamed."""

    def __init__(
        self, client: Anthropic, model: str, session: str, limit: int, think: bool
    ) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def say(self, text: str, *, must_call: bool = False) -> Shown:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def result(self, text: str, *, must_call: bool = False) -> Shown:
        given = [{"type": "tool_result", "tool_use_id": c.id, "content": text} for c in self._calls]
        self._history.append({"role": "user", "content": given})
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> Shown:
        tool: Any = {"name": "look_up", "description": "Weather", "input_schema": LOOK_UP}
        choice: Any = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        quiet: Any = {} if self._think else {"thinking": {"type": "disabled"}}
        with self._client.messages.stream(
            messages=self._history,
            max_tokens=self._limit,
            tools=[tool],
            **quiet,
            **(choice if must_call else {}),
            **self._asked,
        ) as stream:
            message = stream.get_final_message()
        blocks: list[Any] = list(message.content)
        self._history.append({"role": "assistant", "content": blocks or ""})
        self._calls = [block for block in blocks if block.type == "tool_use"]
        usage = message.usage
        cached = usage.cache_read_input_tokens or 0
        return Shown(
            text="".join(block.text for block in blocks if block.type == "text"),
            thoughts="".join(block.thinking for block in blocks if block.type == "thinking"),
            calls=tuple(call.input for call in self._calls),
            finish=message.stop_reason or "",
            input=usage.input_tokens + cached,
            cached=cached,
            output=usage.output_tokens,
        )


class ChatTalker(_Conversation):
    """OpenAI's Chat Completions, whole."""

    def __init__(self, client: OpenAI, model: str, session: str, limit: int, think: bool) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def say(self, text: str, *, must_call: bool = False) -> Shown:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def result(self, text: str, *, must_call: bool = False) -> Shown:
        given = [{"role": "tool", "tool_call_id": c.id, "content": text} for c in self._calls]
        self._history += given
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> Shown:
        tool: Any = {"type": "function", "function": {"name": "look_up", "parameters": LOOK_UP}}
        choice: Any = {"tool_choice": "required", "parallel_tool_calls": False}
        quiet: Any = {} if self._think else {"reasoning_effort": "none"}
        answer = self._client.chat.completions.create(
            messages=self._history,
            max_tokens=self._limit,
            tools=[tool],
            **quiet,
            **(choice if must_call else {}),
            **self._asked,
        )
        message, usage = answer.choices[0].message, answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        self._history.append(message.model_dump(exclude_none=True))
        self._calls = list(message.tool_calls or ())
        return Shown(
            text=message.content or "",
            thoughts=(message.model_extra or {}).get("reasoning_content") or "",
            calls=tuple({"arguments": call.function.arguments} for call in self._calls),
            finish=answer.choices[0].finish_reason,
            input=usage.prompt_tokens,
            cached=usage.prompt_tokens_details.cached_tokens or 0,
            output=usage.completion_tokens,
        )


class ResponsesTalker(_Conversation):
    """OpenAI's Responses, without a store: everything is sent back, as Codex does."""

    def __init__(self, client: OpenAI, model: str, session: str, limit: int, think: bool) -> None:
        super().__init__(model, session, limit, think)
        self._client = client

    def say(self, text: str, *, must_call: bool = False) -> Shown:
        self._history.append({"role": "user", "content": text})
        return self._turn(must_call)

    def result(self, text: str, *, must_call: bool = False) -> Shown:
        kind = "function_call_output"
        given = [{"type": kind, "call_id": c.call_id, "output": text} for c in self._calls]
        self._history += given
        return self._turn(must_call)

    def _turn(self, must_call: bool) -> Shown:
        tool: Any = {"type": "function", "name": "look_up", "parameters": LOOK_UP}
        choice: Any = {"tool_choice": "required", "parallel_tool_calls": False}
        quiet: Any = {} if self._think else {"reasoning": {"effort": "none"}}
        answer = self._client.responses.create(
            input=self._history,
            max_output_tokens=self._limit,
            tools=[tool],
            store=False,
            include=["reasoning.encrypted_content"],
            **quiet,
            **(choice if must_call else {}),
            **self._asked,
        )
        items: list[Any] = list(answer.output)
        self._history += [item.model_dump(exclude_none=True) for item in items]
        self._calls = [item for item in items if item.type == "function_call"]
        usage = answer.usage
        assert usage is not None
        thoughts = [item for item in items if item.type == "reasoning"]
        return Shown(
            text=answer.output_text,
            thoughts="".join(str(item.content or item.summary) for item in thoughts),
            calls=tuple({"arguments": call.arguments} for call in self._calls),
            finish=answer.status or "",
            input=usage.input_tokens,
            cached=usage.input_tokens_details.cached_tokens,
            output=usage.output_tokens,
        )


APIS = ("messages", "chat", "responses")


def talker(
    running: Running, api: str, model: str, session: str, limit: int = 24, *, think: bool = False
) -> Talker:
    """A new conversation."""
    if api == "messages":
        return MessagesTalker(running.anthropic(), model, session, limit, think)
    kind = ChatTalker if api == "chat" else ResponsesTalker
    return kind(running.openai(), model, session, limit, think)
