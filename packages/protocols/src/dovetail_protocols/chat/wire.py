"""Wire types of Chat Completions: lenient for requests, strict for responses.

A field is defined here because a client sends it. If clients disagree about a field's form, its
type is open, and the module that reads it handles the forms.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Choices = Annotated[int, msgspec.Meta(ge=1, le=128)]


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content, of any type."""

    type: str = "text"
    text: str | None = None
    image_url: str | dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None
    refusal: str | None = None
    thinking: str | None = None


Content = str | list[Part | str] | None


class FunctionCall(msgspec.Struct, frozen=True):
    """`arguments` is JSON text; some clients send an object."""

    name: str
    arguments: Any = None


class CustomCall(msgspec.Struct, frozen=True):
    name: str
    input: str | None = None


class Call(msgspec.Struct, frozen=True):
    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the history, of any role."""

    role: str
    content: Content = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_segments: Any = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields shared by Chat Completions and text completions."""

    model: str = ""
    max_tokens: int | None = None
    temperature: NotNegative | None = None
    top_p: Share | None = None
    top_k: int | None = None
    min_p: Share | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: Positive | None = None
    n: Choices | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: str | None = None
    nvext: Any = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`. Messages and tools are decoded one by one later."""

    messages: list[msgspec.Raw] | None = None
    max_completion_tokens: int | None = None
    web_search_options: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    modalities: list[str] | None = None
    tools: list[msgspec.Raw] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: Any = None
    thinking: Any = None
    enable_thinking: bool | None = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template_args: dict[str, Any] | None = None


class Function(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Custom(msgspec.Struct, frozen=True):
    """A tool that takes free text, optionally constrained by a grammar."""

    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class FunctionOut(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class CustomOut(msgspec.Struct, frozen=True):
    name: str
    input: str


class ToolCallOut(msgspec.Struct, frozen=True):
    """A call made by the model."""

    id: str
    type: str
    function: FunctionOut | UnsetType = UNSET
    custom: CustomOut | UnsetType = UNSET


class UrlCitationOut(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    title: str
    start_index: int
    end_index: int


class AnnotationOut(msgspec.Struct, frozen=True):
    url_citation: UrlCitationOut
    type: str = "url_citation"


class ChatMessageOut(msgspec.Struct, frozen=True, kw_only=True):
    """The model's message. Reasoning is in one of the two reasoning fields."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_segments: list[str] | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET
    annotations: list[AnnotationOut] | UnsetType = UNSET


class TopLogprobOut(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprobOut(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprobOut]


class ChatLogprobsOut(msgspec.Struct, frozen=True):
    content: list[TokenLogprobOut]
    refusal: None = None


class ChatChoiceOut(msgspec.Struct, frozen=True):
    index: int
    message: ChatMessageOut
    logprobs: ChatLogprobsOut | None
    finish_reason: str
    stop_reason: str | UnsetType = UNSET


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ChatUsageOut(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatCompletionOut(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a non-streaming response."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    service_tier: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChatChoiceOut]
    usage: ChatUsageOut
