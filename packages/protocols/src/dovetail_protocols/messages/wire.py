"""Wire types of the Messages API: lenient for requests, strict for responses.

A field is defined here because some client sends it. Its type is wide if clients differ (`Any`, or
a union); `decode` and `content` handle the forms. null means the same as absence.
"""

from typing import Annotated, Any, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)] | Annotated[float, msgspec.Meta(ge=0)]
"""An integer; some clients write `1024.0`. Zero is valid: it warms a cache."""


class Message(msgspec.Struct, frozen=True):
    """One message. Claude Code places `system` messages between the others."""

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
    """The source of an image or document: base64, a URL, text, blocks, or an uploaded file."""

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
    """A client tool. A tool with its own type and without a schema is a server tool."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ServerToolIn(msgspec.Struct, frozen=True):
    """A server tool. `other` types have fields that are not read."""

    type: str = ""
    name: str | None = None
    max_uses: Count | None = None
    allowed_domains: list[str] | None = None
    blocked_domains: list[str] | None = None
    user_location: dict[str, Any] | None = None
    max_content_tokens: Count | None = None


class ChangedTool(msgspec.Struct, frozen=True):
    """The tool of an addition or removal: by name, or by definition."""

    type: str = ""
    name: str | None = None
    definition: dict[str, Any] | None = None


class ToolChange(msgspec.Struct, frozen=True):
    """An addition or removal of a tool in the course of a conversation."""

    tool: ChangedTool


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


class Amount(msgspec.Struct, frozen=True):
    """A number of tokens, tool uses or turns."""

    value: Annotated[int, msgspec.Meta(ge=0)]
    type: str = ""


class ClearThinkingIn(msgspec.Struct, frozen=True):
    """`keep` is `all` or the number of turns whose reasoning is retained."""

    type: str
    keep: Any = None


class ClearToolUsesIn(msgspec.Struct, frozen=True):
    type: str
    trigger: Amount | None = None
    keep: Amount | None = None
    clear_at_least: Amount | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class CompactIn(msgspec.Struct, frozen=True):
    type: str
    trigger: Amount | None = None
    instructions: str | None = None
    pause_after_compaction: bool | None = None


class ContextManagement(msgspec.Struct, frozen=True):
    edits: list[dict[str, Any]] | None = None


class CompactionConfig(msgspec.Struct, frozen=True):
    """A request for a summary of the history, which is then the whole response."""

    type: Literal["summarize"]
    instructions: str | None = None


class Metadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class Request(msgspec.Struct, frozen=True):
    """A request to create a message, or to count its tokens.

    The parts that repeat the history stay raw: `Message` and `Tool` are decoded one by one.
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
    compaction: CompactionConfig | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    cache_control: Any = None
    thread: Any = None
    nvext: Any = None


class CitationOut(msgspec.Struct, frozen=True, tag="web_search_result_location", kw_only=True):
    url: str
    title: str
    cited_text: str
    encrypted_index: str


class TextOut(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    text: str
    citations: list[CitationOut] | None = None


class ThinkingOut(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str


class ToolUseOut(msgspec.Struct, frozen=True, tag="tool_use"):
    """`input` is the model's own JSON, not parsed and encoded again."""

    id: str
    name: str
    input: msgspec.Raw


class ServerToolUseOut(msgspec.Struct, frozen=True, tag="server_tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class FoundPageOut(msgspec.Struct, frozen=True, tag="web_search_result"):
    """`encrypted_content` is what the model read."""

    url: str
    title: str
    encrypted_content: str
    page_age: str | None


class WebSearchErrorOut(msgspec.Struct, frozen=True, tag="web_search_tool_result_error"):
    error_code: str


class WebSearchResultOut(msgspec.Struct, frozen=True, tag="web_search_tool_result"):
    tool_use_id: str
    content: list[FoundPageOut] | WebSearchErrorOut


class TextSourceOut(msgspec.Struct, frozen=True, tag="text"):
    data: str
    media_type: str = "text/plain"


class DocumentOut(msgspec.Struct, frozen=True, tag="document"):
    source: TextSourceOut
    title: str | None


class FetchedPageOut(msgspec.Struct, frozen=True, tag="web_fetch_result"):
    url: str
    content: DocumentOut


class WebFetchErrorOut(msgspec.Struct, frozen=True, tag="web_fetch_tool_result_error"):
    error_code: str


class WebFetchResultOut(msgspec.Struct, frozen=True, tag="web_fetch_tool_result"):
    tool_use_id: str
    content: FetchedPageOut | WebFetchErrorOut


ServerResultOut = WebSearchResultOut | WebFetchResultOut


class ServerToolUsageOut(msgspec.Struct, frozen=True):
    web_search_requests: int
    web_fetch_requests: int


class CompactionOut(msgspec.Struct, frozen=True, tag="compaction"):
    """A summary of the history before it; null if there is none."""

    content: str | None


class CompactionDeltaOut(msgspec.Struct, frozen=True, tag="compaction_delta"):
    content: str | None


class BlockDeltaOut(msgspec.Struct, frozen=True, tag="content_block_delta"):
    index: int
    delta: CompactionDeltaOut


class ClearedToolUsesOut(msgspec.Struct, frozen=True, tag="clear_tool_uses_20250919"):
    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinkingOut(msgspec.Struct, frozen=True, tag="clear_thinking_20251015"):
    cleared_thinking_turns: int
    cleared_input_tokens: int


class ContextManagementOut(msgspec.Struct, frozen=True):
    applied_edits: list[ClearedToolUsesOut | ClearedThinkingOut]


class IterationOut(msgspec.Struct, frozen=True):
    """The tokens of one generation: of the summary (`compaction`) or of the message."""

    type: Literal["message", "compaction"]
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class OutputDetailsOut(msgspec.Struct, frozen=True):
    thinking_tokens: int


class UsageOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """Clients add up the three input counts: `input_tokens` are the uncached tokens."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetailsOut | None = None
    iterations: list[IterationOut] | None = None
    server_tool_use: ServerToolUsageOut | None = None


BlockOut = (
    TextOut
    | ThinkingOut
    | ToolUseOut
    | ServerToolUseOut
    | WebSearchResultOut
    | WebFetchResultOut
    | CompactionOut
)


class MessageOut(msgspec.Struct, frozen=True, tag="message", omit_defaults=True):
    """The response message; without content in `message_start`."""

    id: str
    role: str
    model: str
    content: list[BlockOut]
    stop_reason: str | None
    stop_sequence: str | None
    usage: UsageOut
    context_management: ContextManagementOut | None = None
