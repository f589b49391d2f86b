"""The body of `POST /v1/chat/completions` into a request."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail_model import InvalidRequest, OutputFormat, Request, Sampling, Unsupported
from dovetail_protocols.body_prefixes import HistoryKey
from dovetail_protocols.chat.history import ChatHistory, DecodedMessage, decode_message
from dovetail_protocols.chat.sampling import decode_sampling, non_empty_text
from dovetail_protocols.chat.thinking import decode_thinking
from dovetail_protocols.chat.tools import decode_tools
from dovetail_protocols.chat.wire import ChatRequest, JsonSchema, SamplingFields, StreamOptions
from dovetail_protocols.codec import Headers
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.hints import NvextOptions, read_nvext
from dovetail_protocols.identity import read_identity, read_session
from dovetail_protocols.request_body import RequestBody, convert, unknown_fields


class ChatEcho(msgspec.Struct, frozen=True):
    """What the encoder must know to answer in kind; `unknown` is what nobody understood."""

    include_usage: bool = False
    segments: bool = False
    service_tier: bool = False
    unknown: Mapping[str, Any] = msgspec.field(default_factory=dict)


def decode(body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
    """A request, read leniently: what nobody here understands is reported, never refused."""
    line = HistoryKey("messages", "chat.message", read_session(headers))
    sent = RequestBody(body, cache, raw_fields=("tools",), history=line)
    fields = sent.fields
    wire = convert(fields, ChatRequest)
    more = read_nvext(wire.nvext, headers)
    offered = decode_tools(wire, sent)
    messages = _messages(wire, sent)
    history = ChatHistory(sent)
    for message in messages:
        history.add(message)
    return Request(
        model=require_model(wire),
        turns=history.turns(),
        system=history.system(),
        tools=offered.tools,
        tool_choice=offered.choice,
        sampling=_sampling(wire),
        thinking=decode_thinking(wire, more.max_thinking_tokens),
        output=_output(wire.response_format or {}),
        identity=read_identity(
            headers, session=non_empty_text(wire.prompt_cache_key), user=user_id(wire)
        ),
        hints=more.hints,
        stream=bool(wire.stream),
        ignored=(
            *ignored_fields(fields, wire, more),
            *offered.ignored,
            *(("messages[].name",) if any(message.named for message in messages) else ()),
        ),
        echo=ChatEcho(
            include_usage=include_usage(wire),
            segments="reasoning_segments" in more.extra_fields,
            service_tier=wire.service_tier is not None,
            unknown={name: fields[name] for name in unknown_fields(fields, ChatRequest)},
        ),
    )


def require_model(wire: SamplingFields) -> str:
    if not wire.model:
        raise InvalidRequest("model: a request must name a model", param="model")
    return wire.model


def user_id(wire: SamplingFields) -> str | None:
    return non_empty_text(wire.user) or non_empty_text(wire.safety_identifier)


def include_usage(wire: SamplingFields) -> bool:
    return wire.stream_options is not None and bool(wire.stream_options.include_usage)


def ignored_fields(
    fields: dict[str, Any], wire: SamplingFields, more: NvextOptions
) -> tuple[str, ...]:
    """Fields that say something nobody here understands. Null says nothing."""
    told = {name: value for name, value in fields.items() if value is not None}
    options = told.get("stream_options")
    inner = (
        unknown_fields(options, StreamOptions, "stream_options.")
        if isinstance(options, dict)
        else ()
    )
    return (*unknown_fields(told, type(wire)), *inner, *more.ignored)


def _messages(wire: ChatRequest, sent: RequestBody) -> list[DecodedMessage]:
    if not wire.messages:
        raise InvalidRequest("messages: at least one message is needed", param="messages")
    if wire.modalities and "audio" in wire.modalities:
        raise Unsupported("modalities: answers are text, there is no audio", param="modalities")
    # A call without an id gets one from its place, so what a message says depends on that.
    return sent.decode_history(
        wire.messages, lambda at, raw: decode_message(sent.value(raw), at), indexed=True
    )


def _sampling(wire: ChatRequest) -> Sampling:
    newer = wire.max_completion_tokens
    asked = wire.logprobs or (wire.logprobs is None and wire.top_logprobs is not None)
    return decode_sampling(
        wire,
        max_tokens=wire.max_tokens if newer is None else newer,
        logprobs=(wire.top_logprobs or 0) if asked else None,
        param="max_tokens" if newer is None else "max_completion_tokens",
    )


def _output(format: dict[str, Any]) -> OutputFormat:
    """The form of the answer. A schema may stand beside the type, as llama.cpp has it."""
    match format.get("type"):
        case None | "text":
            return OutputFormat()
        case "json_object" if not isinstance(format.get("schema"), dict):
            return OutputFormat("json_object")
        case "json_object" | "json_schema":
            nested = format.get("json_schema")
            path = "response_format.json_schema" if nested is not None else "response_format"
            inner = convert(format if nested is None else nested, JsonSchema, path)
            return OutputFormat("json_schema", inner.schema or {}, inner.name, bool(inner.strict))
        case kind:
            path = "response_format.type"
            raise Unsupported(f"{path}: '{kind}' is not offered", param=path)
