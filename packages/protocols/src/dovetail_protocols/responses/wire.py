"""Wire types of the Responses API: lenient for requests, strict for responses, never shared.

A field is defined here because a client sends or reads it. Ids of input items are omitted on
purpose: they differ between threads with the same conversation, and must never reach the prompt.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

Json = dict[str, Any]
Number = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Reasoning(msgspec.Struct, frozen=True):
    """`generate_summary` is the old name of `summary`."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None


class TextFormat(msgspec.Struct, frozen=True):
    type: str = "text"
    name: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Body(msgspec.Struct, frozen=True):
    """The body of a request. The fields after `nvext` are extensions of other servers.

    The parts that every request of a session repeats stay raw and are decoded item by item.
    """

    model: str = ""
    input: str | list[msgspec.Raw] | None = None
    instructions: str | list[Any] | None = None
    stream: bool | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_logprobs: Count | None = None
    include: list[str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    client_metadata: Json | None = None
    metadata: Json | None = None
    safety_identifier: str | None = None
    user: str | None = None
    service_tier: str | None = None
    truncation: str | None = None
    max_tool_calls: int | None = None
    stream_options: Json | None = None
    background: bool | None = None
    prompt: Json | None = None
    conversation: str | Json | None = None
    nvext: Any = None
    chat_template_kwargs: Json | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    min_p: Number | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] | None = None


class ImageUrl(msgspec.Struct, frozen=True):
    """An image URL in the form of Chat Completions."""

    url: str = ""


class Part(msgspec.Struct, frozen=True):
    """A content part: text in one of its fields, an image, or a file."""

    type: str = "input_text"
    text: str | None = None
    refusal: str | None = None
    encrypted_content: str | None = None
    image_url: str | ImageUrl | None = None
    file_id: str | None = None
    file_url: str | None = None
    file_data: str | None = None
    filename: str | None = None
    annotations: Any = None


Content = str | list[Part | str] | None


class MessageIn(msgspec.Struct, frozen=True):
    role: str = ""
    content: Content = None


class AgentMessageIn(msgspec.Struct, frozen=True):
    """A message from one agent to another."""

    author: str | None = None
    recipient: str | None = None
    content: Content = None


class ReasoningIn(msgspec.Struct, frozen=True):
    summary: Content = None
    content: Content = None
    encrypted_content: str | None = None


class CallIn(msgspec.Struct, frozen=True):
    """Any call. `arguments` of a function are JSON text, `input` of a custom tool is free text."""

    name: str = ""
    call_id: str | None = None
    id: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    status: str | None = None


class ResultIn(msgspec.Struct, frozen=True):
    call_id: str | None = None
    id: str | None = None
    output: Any = None
    status: str | None = None


class McpCallIn(msgspec.Struct, frozen=True):
    """A call that another server made and ran."""

    name: str = ""
    id: str | None = None
    server_label: str | None = None
    arguments: Any = None
    output: Any = None
    error: Any = None


class ToolFormat(msgspec.Struct, frozen=True):
    """The required format of a custom tool's input."""

    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class ToolIn(msgspec.Struct, frozen=True):
    """A function, a custom tool, or a namespace of both. `function` is Chat Completions' form."""

    type: str = "function"
    name: str | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    format: ToolFormat | None = None
    tools: list[Any] | None = None
    function: Json | None = None
    defer_loading: bool | None = None
    execution: str | None = None


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[Json, ...] = ()
    logprobs: tuple[Json, ...] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    text: str


class SummaryText(msgspec.Struct, frozen=True, tag="summary_text"):
    text: str


class MessageOut(msgspec.Struct, frozen=True, tag="message"):
    id: str
    status: str
    role: str = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningOut(msgspec.Struct, frozen=True, tag="reasoning"):
    """`summary` is always present: clients drop an item without it.

    `encrypted_content` is text or absent: clients of Open Responses reject null.
    """

    id: str
    status: str
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] = ()
    encrypted_content: str | UnsetType = UNSET


class FunctionCallOut(msgspec.Struct, frozen=True, tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallOut(msgspec.Struct, frozen=True, tag="custom_tool_call"):
    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class ToolSearchCallOut(msgspec.Struct, frozen=True, tag="tool_search_call"):
    """A search that the client runs. Its arguments are an object."""

    id: str
    status: str
    call_id: str
    arguments: msgspec.Raw
    execution: str = "client"


class WebSearchCallOut(msgspec.Struct, frozen=True, tag="web_search_call"):
    id: str
    status: str
    action: Json


class CompactionOut(msgspec.Struct, frozen=True, tag="compaction"):
    id: str
    encrypted_content: str


ItemOut = (
    MessageOut
    | ReasoningOut
    | FunctionCallOut
    | CustomCallOut
    | ToolSearchCallOut
    | WebSearchCallOut
    | CompactionOut
    | Mapping[str, Any]
)
