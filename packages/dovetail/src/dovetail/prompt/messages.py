"""Build the messages for a chat template from turns, in the form that this template accepts.

The template does not receive the ids of clients: calls are numbered by their position in the
conversation, in the style that the template expects, so that a different id never changes the
prompt. All client text is escaped, so that a control token in it is encoded as plain text.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dovetail.ledger.store import make_call_key
from dovetail.prompt.template import CachedJsonObject, TemplateProfile
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
    describe_document,
    describe_image,
)

ChatMessage = dict[str, Any]
MISSING_RESULT_TEXT = "[no result]"
MISSING_USER_TEXT = "[no words]"  # inserted if the template requires a user turn first


class TextEscaper(Protocol):
    """Escapes the spellings of control tokens in a text."""

    def __call__(self, text: str, /) -> str: ...


class ToolNames:
    """Maps the tool names that clients use to those in the prompt."""

    __slots__ = ("_prompt_names",)

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self._prompt_names = {(tool.namespace, tool.name): tool.model_name for tool in tools}

    def get(self, call: ToolCallBlock) -> str:
        shown = self._prompt_names.get((call.namespace, call.name))
        if shown is not None:
            return shown
        return f"{call.namespace}{call.name}" if call.namespace else call.name


class MessageBuilder:
    """Builds messages from consecutive turns; call ids are numbered across the history."""

    def __init__(
        self,
        profile: TemplateProfile,
        protect: TextEscaper,
        names: ToolNames,
        calls_before: int = 0,
    ) -> None:
        self._profile = profile
        self._protect = protect
        self._names = names
        self._call_count = calls_before
        # Public call id -> id and name in the prompt.
        self._open_calls: dict[str, tuple[str, str]] = {}

    def build_head(self, system: Sequence[Block]) -> list[ChatMessage]:
        """Build the system message, if there is system text and the template renders it."""
        text = self._text(system)
        if not text or self._profile.system != "kept":
            return []
        return [self._message("system", text)]

    def build(self, system: Sequence[Block], turns: Sequence[Turn]) -> list[ChatMessage]:
        """Build the messages of a complete conversation."""
        messages = self.build_head(system)
        written = [message for turn in turns for message in self.build_turn(turn)]
        if self._profile.system != "kept" and (text := self._text(system)):
            written.insert(0, self._message("user", text))
        if written and written[0]["role"] == "assistant" and not self._profile.consecutive_users:
            written.insert(0, self._message("user", MISSING_USER_TEXT))
        return messages + self.adapt(written)

    def build_turn(self, turn: Turn, own_ids: Sequence[str | None] = ()) -> list[ChatMessage]:
        """Build the messages of one turn. `own_ids` are the call ids that the model generated."""
        match turn.role:
            case "assistant":
                message = self._assistant_message(turn, own_ids)
                return [message] if _has_content(message) else []
            case "tool":
                results = [b for b in turn.blocks if isinstance(b, ToolResultBlock)]
                return [self._result_message(result) for result in results]
            case "system" | "developer" if self._profile.system_inside == "kept":
                return [self._message("system", self._text(turn.blocks))]
            case _:
                return [self._message("user", self._text(turn.blocks))]

    def adapt(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Rewrite messages that the template would reject."""
        if not self._profile.many_calls:
            messages = _split_parallel_calls(messages)
        if self._profile.consecutive_users:
            return messages
        return self._merge_user_messages(self._add_missing_results(messages))

    def _add_missing_results(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Add missing results: if roles must alternate, no user message may follow a call.

        A user message in place of a result is appended to the added result, like reminders.
        """
        result_ids = {m["tool_call_id"] for m in messages if m["role"] == "tool"}
        complete: list[ChatMessage] = []
        open_calls: list[ChatMessage] = []
        for message in messages:
            if open_calls and message["role"] == "user":
                text = f"{MISSING_RESULT_TEXT}\n\n{_content_text(message['content'])}"
                complete[-1] = {**open_calls[-1], **self._message("tool", text)}
                open_calls = []
                continue
            complete.append(message)
            open_calls = [
                {**self._message("tool", MISSING_RESULT_TEXT), "tool_call_id": id, "name": name}
                for id, name in map(_call_id_and_name, message.get("tool_calls", ()))
                if id not in result_ids
            ]
            complete += open_calls
        return complete

    def _merge_user_messages(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """Merge consecutive user messages."""
        merged: list[ChatMessage] = []
        for message in messages:
            if merged and message["role"] == merged[-1]["role"] == "user":
                text = (
                    f"{_content_text(merged[-1]['content'])}\n\n{_content_text(message['content'])}"
                )
                merged[-1] = self._message("user", text)
            else:
                merged.append(message)
        return merged

    def number_calls(self, turn: Turn, own_ids: Sequence[str | None] = ()) -> list[tuple[str, str]]:
        """Assign prompt ids and names to the calls of a turn. Results refer to these."""
        calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        numbered = []
        self._open_calls = {}
        for at, call in enumerate(calls):
            name = self._protect(self._names.get(call))
            own = own_ids[at] if at < len(own_ids) else None
            id = self._protect(own) if own else self._call_id(name)
            self._call_count += 1
            self._open_calls[make_call_key(call.id)] = (id, name)
            numbered.append((id, name))
        return numbered

    def format_arguments(self, call: ToolCallBlock) -> Any:
        """Format the arguments of a call for the template: an object or its JSON text."""
        value = parse_arguments(call, self._protect)
        return (
            json.dumps(value, ensure_ascii=False) if self._profile.arguments == "string" else value
        )

    def _assistant_message(self, turn: Turn, own_ids: Sequence[str | None]) -> ChatMessage:
        calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        reasoning = [b.text for b in turn.blocks if isinstance(b, ReasoningBlock) and b.text]
        text = self._text(turn.blocks)
        if calls and reasoning and text and not self._profile.text_with_reasoning:
            reasoning, text = [*reasoning, text], ""
        message = self._message("assistant", text)
        if calls:
            if self._profile.wants_null and not text:
                message["content"] = None
            numbered = self.number_calls(turn, own_ids)
            message["tool_calls"] = [
                format_tool_call(id, name, self.format_arguments(call))
                for (id, name), call in zip(numbered, calls, strict=True)
            ]
        return self._add_reasoning(message, self._protect("\n".join(reasoning)))

    def _add_reasoning(self, message: ChatMessage, reasoning: str) -> ChatMessage:
        """Add reasoning to the message in the form that the template reads."""
        if reasoning and self._profile.thinking_parts:
            text = message["content"]
            parts = [{"type": "text", "text": text}] if isinstance(text, str) else text or []
            return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}
        if reasoning:
            message |= dict.fromkeys(self._profile.reasoning_fields, reasoning)
        return message

    def _result_message(self, result: ToolResultBlock) -> ChatMessage:
        call = self._open_calls.get(make_call_key(result.call_id))
        text = self._text(result.blocks)
        if call is None:  # the history lacks its call: templates reject or drop such a result
            return self._message("user", text)
        return {**self._message("tool", text), "tool_call_id": call[0], "name": call[1]}

    def _message(self, role: str, text: str) -> ChatMessage:
        return {"role": role, "content": format_content(self._profile, text)}

    def _text(self, blocks: Sequence[Block]) -> str:
        texts = [text for block in blocks if (text := _block_text(block))]
        return self._protect("\n".join(texts))

    def _call_id(self, name: str) -> str:
        match self._profile.call_ids:
            case "kimi":
                return f"functions.{name}:{self._call_count}"
            case "nine":
                return f"call{self._call_count:05d}"[-9:]
            case _:
                return f"call_{self._call_count}"


def format_content(profile: TemplateProfile, text: str) -> Any:
    """Format the content of a message for the template."""
    return [{"type": "text", "text": text}] if profile.content == "parts" else text


def format_tool_call(id: str, name: str, arguments: Any) -> ChatMessage:
    """Format a call for a template."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def format_tools(tools: Iterable[ToolSpec], protect: TextEscaper) -> list[ChatMessage]:
    """Format tools for a template. A custom tool becomes a function with one string argument."""
    return [
        CachedJsonObject(
            type="function",
            function=CachedJsonObject(
                name=protect(tool.model_name),
                description=protect(tool.description),
                parameters=escape_strings(_tool_parameters(tool), protect),
            ),
        )
        for tool in tools
    ]


def escape_strings(value: Any, protect: TextEscaper) -> Any:
    """Escape every string in a JSON value, including keys."""
    if isinstance(value, str):
        return protect(value)
    if isinstance(value, Mapping):
        return {protect(str(key)): escape_strings(item, protect) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_strings(item, protect) for item in value]
    return value


def parse_arguments(call: ToolCallBlock, protect: TextEscaper) -> dict[str, Any]:
    """Parse and escape the arguments of a call. Text and non-objects become `input`."""
    if not call.custom:
        try:
            value = json.loads(call.arguments or "{}")
            if isinstance(value, dict):
                return dict(escape_strings(value, protect))
        except (ValueError, RecursionError):
            pass  # a truncated call, or one that is nested too deeply
    return {"input": protect(call.arguments)}


def _has_content(message: ChatMessage) -> bool:
    """Return whether a message has content: a client may have dropped a truncated call."""
    return any(value for key, value in message.items() if key != "role")


def _call_id_and_name(call: ChatMessage) -> tuple[str, str]:
    return call["id"], call["function"]["name"]


def _split_parallel_calls(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Split turns with several calls into turns with one call, each followed by its results."""
    many = {c["id"] for m in messages if len(m.get("tool_calls", ())) > 1 for c in m["tool_calls"]}
    results: dict[str, list[ChatMessage]] = {}
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in many:
            results.setdefault(message["tool_call_id"], []).append(message)
    split: list[ChatMessage] = []
    for message in messages:
        if message["role"] == "tool" and message["tool_call_id"] in many:
            continue
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            split.append(message)
            continue
        for at, call in enumerate(calls):
            template = message if at == 0 else {"role": "assistant", "content": ""}
            split += [{**template, "tool_calls": [call]}, *results.get(call["id"], ())]
    return split


def _tool_parameters(tool: ToolSpec) -> Mapping[str, Any]:
    schema = tool.model_parameters
    if schema.get("type") == "object" and "properties" not in schema:
        return {**schema, "properties": {}}  # templates read it
    return schema


def _content_text(content: Any) -> str:
    return content if isinstance(content, str) else content[0]["text"]


def _block_text(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock():  # a model that sees images needs a part of its own here
            return describe_image(block)
        case DocumentBlock(text=str(text)):
            return text
        case DocumentBlock():
            return describe_document(block)
        case ToolReferenceBlock(name=name):
            return f"Tool available: {name}"
        case ToolRemovalBlock(name=name):
            return f"Tool no longer available: {name}"
        case ToolResultBlock(blocks=blocks):
            return "\n".join(filter(None, map(_block_text, blocks)))
        case _:
            return ""
