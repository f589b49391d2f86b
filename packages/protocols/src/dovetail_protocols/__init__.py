"""Codecs without IO, one per API: decode request bodies and encode response events."""

from dovetail_protocols.body_limits import (
    DEFAULT_LIMITS,
    RequestLimits,
    check_body,
    check_request,
    count_values_up_to,
)
from dovetail_protocols.chat import CODEC as CHAT
from dovetail_protocols.chat import ChatCodec, ChatReader
from dovetail_protocols.chat.upstream_request import build_chat_request
from dovetail_protocols.codec import (
    Clock,
    Codec,
    ErrorResponse,
    IdFactory,
    OnEnd,
    StatefulCodec,
    StreamEncoder,
    StreamErrors,
)
from dovetail_protocols.completions import CODEC as COMPLETIONS
from dovetail_protocols.completions import raw_prompt
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.field_registries import FIELD_REGISTRIES
from dovetail_protocols.fields import Field, FieldRegistry
from dovetail_protocols.harness import read_harness
from dovetail_protocols.identity import read_session
from dovetail_protocols.json_depth import MAX_JSON_DEPTH, exceeds_depth
from dovetail_protocols.messages import CODEC as MESSAGES
from dovetail_protocols.messages import MessagesReader, decode_count, encode_count
from dovetail_protocols.rate_limits import LimitStatus
from dovetail_protocols.responses import CODEC as RESPONSES
from dovetail_protocols.responses import (
    COMPACT,
    MODELS_ETAG_HEADER,
    ConversationBody,
    ResponsesCodec,
    ResponsesEcho,
    ResponsesEncoder,
    ResponsesReader,
    complete_item,
    conversation_id,
    decode_conversation,
    encode_conversation,
    encode_deleted_conversation,
    encode_input_tokens,
    encode_items,
    input_items,
    item_id,
    item_references,
    items_by_id,
    join_response,
    prepend_history,
    previous_response_id,
    resolve_references,
    split_response,
    unmatched_result_ids,
    with_default_model,
    with_effective_sampling,
)
from dovetail_protocols.responses.upstream_request import build_responses_request
from dovetail_protocols.server_results import NO_RESULTS_TEXT, write_page, write_tool_error
from dovetail_protocols.sse import ServerEvent, SseReader
from dovetail_protocols.summary_text import SUMMARY_INSTRUCTION, SUMMARY_PREFACE
from dovetail_protocols.upstream import ReasoningField, ToolNames, UpstreamDialect, UpstreamRequest
from dovetail_protocols.upstream_fields import (
    UpstreamApi,
    UpstreamSupport,
    is_optional_field,
    upstream_support,
)

__all__ = [
    "CHAT",
    "COMPACT",
    "COMPLETIONS",
    "DEFAULT_LIMITS",
    "FIELD_REGISTRIES",
    "MAX_JSON_DEPTH",
    "MESSAGES",
    "MODELS_ETAG_HEADER",
    "NO_RESULTS_TEXT",
    "RESPONSES",
    "SUMMARY_INSTRUCTION",
    "SUMMARY_PREFACE",
    "ChatCodec",
    "ChatReader",
    "Clock",
    "Codec",
    "ConversationBody",
    "DecodeCache",
    "ErrorResponse",
    "Field",
    "FieldRegistry",
    "IdFactory",
    "LimitStatus",
    "MessagesReader",
    "OnEnd",
    "ReasoningField",
    "RequestLimits",
    "ResponsesCodec",
    "ResponsesEcho",
    "ResponsesEncoder",
    "ResponsesReader",
    "ServerEvent",
    "SseReader",
    "StatefulCodec",
    "StreamEncoder",
    "StreamErrors",
    "ToolNames",
    "UpstreamApi",
    "UpstreamDialect",
    "UpstreamRequest",
    "UpstreamSupport",
    "build_chat_request",
    "build_responses_request",
    "check_body",
    "check_request",
    "complete_item",
    "conversation_id",
    "count_values_up_to",
    "decode_conversation",
    "decode_count",
    "encode_conversation",
    "encode_count",
    "encode_deleted_conversation",
    "encode_input_tokens",
    "encode_items",
    "exceeds_depth",
    "input_items",
    "is_optional_field",
    "item_id",
    "item_references",
    "items_by_id",
    "join_response",
    "prepend_history",
    "previous_response_id",
    "raw_prompt",
    "read_harness",
    "read_session",
    "resolve_references",
    "split_response",
    "unmatched_result_ids",
    "upstream_support",
    "with_default_model",
    "with_effective_sampling",
    "write_page",
    "write_tool_error",
]
