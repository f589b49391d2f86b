"""Decode the body of `POST /v1/chat/completions`."""

from typing import Any

import msgspec

from dovetail_model import (
    InvalidRequest,
    OutputFormat,
    Request,
    Sampling,
    ServerTool,
    Unsupported,
)
from dovetail_protocols.body_prefixes import HistoryKey
from dovetail_protocols.chat.fields import CHAT_FIELDS
from dovetail_protocols.chat.history import ChatHistory, DecodedMessage, decode_message
from dovetail_protocols.chat.sampling import decode_sampling, non_empty_text
from dovetail_protocols.chat.thinking import decode_thinking
from dovetail_protocols.chat.tools import ChatTools, decode_tools
from dovetail_protocols.chat.wire import ChatRequest, JsonSchema, SamplingFields
from dovetail_protocols.codec import Headers
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.engine_fields import apply_engine_fields
from dovetail_protocols.hints import read_nvext
from dovetail_protocols.identity import read_identity, read_session
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.request_body import RequestBody, convert
from dovetail_protocols.web_tools import decode_web_search


class ChatEcho(msgspec.Struct, frozen=True):
    """What the encoder needs to know about the request."""

    include_usage: bool = False
    segments: bool = False
    service_tier: bool = False


def decode(body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
    """Decode a request leniently: undeclared fields are reported, never rejected."""
    history_key = HistoryKey("messages", "chat.message", read_session(headers))
    sent = RequestBody(body, cache, raw_fields=("tools",), history=history_key)
    fields = sent.fields
    unused = CHAT_FIELDS.inspect(fields)
    wire = convert(fields, ChatRequest)
    nvext = read_nvext(wire.nvext, headers)
    chat_tools = decode_tools(wire, sent)
    messages = _messages(wire, sent)
    history = ChatHistory(sent)
    for message in messages:
        history.add(message)
    output = decode_output(wire.response_format or {})
    sampling, output = apply_engine_fields(fields, _sampling(wire), output)
    return Request(
        model=require_model(wire),
        turns=history.turns(),
        system=history.system(),
        tools=chat_tools.tools,
        tool_choice=chat_tools.choice,
        sampling=sampling,
        thinking=decode_thinking(wire, nvext),
        output=output,
        identity=read_identity(
            headers, session=non_empty_text(wire.prompt_cache_key), user=user_id(wire)
        ),
        hints=nvext.hints,
        server_tools=_server_tools(wire, chat_tools),
        hides_server_calls=True,
        stream=bool(wire.stream),
        ignored=(
            *unused.reported,
            *chat_tools.ignored,
            *(("messages[].name",) if any(message.named for message in messages) else ()),
            *(("messages[].content[]",) if any(message.omits for message in messages) else ()),
        ),
        client=sent.client_fields("chat", unused, chat_tools.declared),
        echo=ChatEcho(
            include_usage=include_usage(wire),
            segments="reasoning_segments" in nvext.extra_fields,
            service_tier=wire.service_tier is not None,
        ),
    )


def _server_tools(wire: ChatRequest, chat_tools: ChatTools) -> tuple[ServerTool, ...]:
    if wire.web_search_options is None:
        return chat_tools.server
    field = "web_search_options"
    others = (tool for tool in chat_tools.server if tool.kind == "other")
    search = decode_web_search(wire.web_search_options, field, field, len(chat_tools.tools))
    return (*others, *search)


def require_model(wire: SamplingFields) -> str:
    if not wire.model:
        raise InvalidRequest("model: Field required", param="model")
    return wire.model


def user_id(wire: SamplingFields) -> str | None:
    return non_empty_text(wire.user) or non_empty_text(wire.safety_identifier)


def include_usage(wire: SamplingFields) -> bool:
    return wire.stream_options is not None and bool(wire.stream_options.include_usage)


def _messages(wire: ChatRequest, sent: RequestBody) -> list[DecodedMessage]:
    if not wire.messages:
        raise InvalidRequest("messages: must contain at least one message", param="messages")
    if wire.modalities and "audio" in wire.modalities:
        raise Unsupported("modalities: only text output is supported", param="modalities")
    # A call without an id gets one from its index, so the result depends on the index.
    return sent.decode_history(
        wire.messages,
        lambda at, raw: decode_message(sent.value(raw, f"messages[{at}]"), at),
        indexed=True,
    )


def _sampling(wire: ChatRequest) -> Sampling:
    newer = wire.max_completion_tokens
    wants_logprobs = wire.logprobs or (wire.logprobs is None and wire.top_logprobs is not None)
    return decode_sampling(
        wire,
        max_tokens=wire.max_tokens if newer is None else newer,
        logprobs=(wire.top_logprobs or 0) if wants_logprobs else None,
        param="max_tokens" if newer is None else "max_completion_tokens",
    )


def decode_output(format: dict[str, Any]) -> OutputFormat:
    """Decode the output format. A schema may be next to the type, as in llama.cpp."""
    match format.get("type"):
        case None | "text":
            return OutputFormat()
        case "json_object" if not isinstance(format.get("schema"), dict):
            return OutputFormat("json_object")
        case "json_object" | "json_schema":
            nested = format.get("json_schema")
            path = "response_format.json_schema" if nested is not None else "response_format"
            inner = convert(format if nested is None else nested, JsonSchema, path)
            if inner.schema is None and nested is None:
                where = "response_format.json_schema"
                raise InvalidRequest(f"{where}: Field required", param=where)
            if inner.strict:
                check_schema(inner.schema, f"{path}.schema")
            return OutputFormat("json_schema", inner.schema or {}, inner.name, bool(inner.strict))
        case kind:
            path = "response_format.type"
            raise Unsupported(f"{path}: '{kind}' is not supported", param=path)
