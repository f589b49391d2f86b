"""The wire of the Messages API: what clients send, as leniently as they send it, and our answer.

A field is here because some client sends it. What a field may hold is wide where clients differ
(`Any`, or a choice) and is sorted out in `decode` and `content`; null is the same as absence.
"""

from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]
"""A whole number; some clients spell it `1024.0`. Zero is legal: it warms a cache."""


class Message(msgspec.Struct, frozen=True):
    """One message. Claude Code puts `system` ones between the others."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any] | None = None


class Text(msgspec.Struct, frozen=True):
    text: str = ""


class Thinking(msgspec.Struct, frozen=True):
    thinking: str = ""
    signature: str | None = None


class RedactedThinking(msgspec.Struct, frozen=True):
    data: str = ""


class ToolUse(msgspec.Struct, frozen=True):
    id: str
    name: str
    input: Any = None


class ToolResult(msgspec.Struct, frozen=True):
    tool_use_id: str
    content: str | list[Any] | None = None
    is_error: bool | None = None


class Source(msgspec.Struct, frozen=True):
    """Where an image or a document is: base64, a URL, text, blocks, or a file of another API."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[Any] | None = None


class Media(msgspec.Struct, frozen=True):
    """An `image` or a `document` block."""

    source: Source
    title: str | None = None
    context: str | None = None


class SearchResult(msgspec.Struct, frozen=True):
    source: str = ""
    title: str = ""
    content: str | list[Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool of the client's. One with a type of its own and no schema runs on a server."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: Count | None = None


class Format(msgspec.Struct, frozen=True):
    type: Literal["text", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: Format | None = None


class Edit(msgspec.Struct, frozen=True):
    """One edit of the context; `keep` is `all` or how many turns keep their reasoning."""

    type: str
    keep: Any = None


class ContextManagement(msgspec.Struct, frozen=True):
    edits: list[Edit] | None = None


class Metadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class Request(msgspec.Struct, frozen=True):
    """A request to create a message, or to count the tokens of one.

    What repeats the history stays raw: `Message` and `Tool` are read one by one.
    """

    model: str
    messages: list[msgspec.Raw]
    system: str | list[msgspec.Raw] | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    max_tokens: Count | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Count | None = None
    thinking: ThinkingConfig | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    cache_control: Any = None
    thread: Any = None
    nvext: Any = None


class TextOut(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ThinkingOut(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str


class ToolUseOut(msgspec.Struct, frozen=True, tag="tool_use"):
    """`input` is the model's own JSON, not parsed and written again."""

    id: str
    name: str
    input: msgspec.Raw


class OutputDetailsOut(msgspec.Struct, frozen=True):
    thinking_tokens: int


class UsageOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Clients add the three input counts up: `input_tokens` is what no cache held."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetailsOut | None = None


class MessageOut(msgspec.Struct, frozen=True, tag="message"):
    """The answer: whole, or without content in `message_start`."""

    id: str
    role: str
    model: str
    content: list[TextOut | ThinkingOut | ToolUseOut]
    stop_reason: str | None
    stop_sequence: str | None
    usage: UsageOut
