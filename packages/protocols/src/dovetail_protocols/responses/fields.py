"""The fields of the Responses API."""

from dovetail_protocols.engine_fields import ENGINE_FIELDS
from dovetail_protocols.fields import Field, FieldRegistry
from dovetail_protocols.nvext_fields import NVEXT_FIELDS, NVEXT_OUTPUT_FIELDS

_TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "a+"}
_EXTENSION = "Not part of OpenAI's API, but known from other servers."

_INPUT = (
    Field("model", "input", "some-model", "Required; the response repeats it exactly as sent."),
    Field(
        "input",
        "input",
        "Hello.",
        "A string or items (below). It may be missing only if `previous_response_id` or "
        "`conversation` is given.",
    ),
    Field(
        "instructions",
        "input",
        "Be brief.",
        "The system prompt: a string, or items whose text is used.",
    ),
    Field("stream", "input", True, "Server-sent events, or one response."),
    Field("stream_options", "input", {}, "With `stream`."),
    Field(
        "stream_options.include_obfuscation",
        "hint",
        True,
        "Nothing is obfuscated.",
        "reported",
        (False,),
    ),
    Field(
        "include",
        "input",
        ["message.output_text.logprobs"],
        "`message.output_text.logprobs` returns log probabilities of the visible text. "
        "`reasoning.encrypted_content` is always returned. `web_search_call.action.sources` lists "
        "the results of searches. Other values are reported.",
    ),
    Field(
        "store",
        "input",
        False,
        "false: nothing is stored. Otherwise the response can be retrieved and continued.",
    ),
    Field(
        "previous_response_id",
        "input",
        "resp_7",
        "The response that this one continues: its items, and those of all responses before it, "
        "precede `input`. `instructions` and `tools` are not inherited.",
    ),
    Field(
        "background",
        "input",
        True,
        "true: the response is generated whether or not the client stays connected. With `store` "
        "false the request is rejected.",
    ),
    Field(
        "prompt",
        "input",
        {"id": "pmpt_7"},
        "The server stores no prompt templates.",
        "rejected",
        (),
        "send `input`",
    ),
    Field(
        "conversation",
        "input",
        "conv_7",
        "An id, or an object with an `id`: the items of the "
        "[conversation](../operations/stored-responses.md#conversations) precede `input`, and "
        "those of the request and its response are added to it. It cannot be combined with "
        "`previous_response_id`.",
    ),
    Field("prompt_cache_key", "hint", "session-7", "Names the session if no header does."),
    Field("client_metadata", "hint", {"x-session-id": "s"}, "Read like headers that are absent."),
    Field("safety_identifier", "hint", "user-7", "Repeated in the response."),
    Field("user", "hint", "user-7", "Repeated in the response."),
    Field("metadata", "hint", {"a": "b"}, "Stored with the response, which repeats it."),
    Field(
        "prompt_cache_retention",
        "hint",
        "24h",
        "Repeated in the response.",
        "reported",
        ("in_memory",),
    ),
    Field(
        "service_tier",
        "hint",
        "flex",
        "The response has `default`.",
        "reported",
        ("auto", "default"),
    ),
    Field(
        "truncation",
        "input",
        "auto",
        "`auto` drops the oldest turns if the prompt exceeds the context window, see "
        "[truncation](../context-management.md#truncation-of-the-responses-api). `disabled`, the "
        "default, rejects such a request.",
        neutral=("disabled",),
    ),
)

_OUTPUT = (
    Field("max_output_tokens", "stop", 8, "Never reduced without a report."),
    Field(
        "temperature",
        "sampling",
        0.5,
        "The response has the value in effect: that of the request, else the default of the server "
        "or of the model, else 1.",
    ),
    Field("top_p", "sampling", 0.5, "As `temperature`."),
    Field("top_k", "sampling", 5, _EXTENSION),
    Field("min_p", "sampling", 0.1, _EXTENSION),
    Field("seed", "sampling", 7, _EXTENSION),
    Field("presence_penalty", "sampling", 0.5, _EXTENSION),
    Field("frequency_penalty", "sampling", 0.5, _EXTENSION),
    Field("repetition_penalty", "sampling", 1.1, _EXTENSION),
    Field("stop", "stop", ["lo"], f"{_EXTENSION} Found only in visible text."),
    Field("top_logprobs", "sampling", 2, "Log probabilities of the visible text.", "engine", (0,)),
    Field("text", "constraint", {"format": {"type": "json_object"}}, "An object as follows."),
    Field(
        "text.format",
        "constraint",
        {"type": "json_object"},
        "`text`, `json_object`, `json_schema`. With `strict`, an invalid schema is an error.",
        "engine",
    ),
    Field("text.verbosity", "hint", "low", "", "reported", ("medium",)),
    Field("reasoning", "hint", {"effort": "low"}, "An object with the following."),
    Field("reasoning.effort", "hint", "low", "`none` turns reasoning off."),
    Field("reasoning.summary", "hint", "auto", "Reasoning is returned as a summary, too."),
    Field("reasoning.generate_summary", "hint", "auto", "The old name of `summary`."),
    Field(
        "reasoning.context", "hint", "all_turns", "`all_turns` keeps the reasoning of all turns."
    ),
    Field(
        "chat_template_kwargs",
        "hint",
        {"enable_thinking": False},
        "Passed to the template. Its `enable_thinking`, `thinking`, `thinking_mode` and "
        "`reasoning_effort` take precedence over `reasoning.effort`.",
    ),
)

_TOOLS = (
    Field(
        "tools",
        "tool",
        [_TOOL],
        "`function`, `custom` and `namespace` (below); others are "
        "[server tools](../server-tools.md).",
    ),
    Field("tools[].type", "tool", "function", "See below."),
    Field("tools[].name", "tool", "find", "Required."),
    Field("tools[].description", "tool", "Look it up.", "Shown to the model."),
    Field("tools[].parameters", "tool", _SCHEMA, "A JSON schema."),
    Field(
        "tools[].strict",
        "tool",
        True,
        "The arguments of every call fit the schema. An invalid schema is an error.",
        "engine",
        (False,),
    ),
    Field("tools[].format", "tool", _GRAMMAR, "The grammar of a custom tool's input."),
    Field("tools[].tools", "tool", [], "The tools of a namespace."),
    Field("tools[].execution", "tool", "client", "Of `tool_search`: the client runs it."),
    Field("tools[].function", "tool", {"name": "find"}, "The nested form of Chat Completions."),
    Field(
        "tools[].defer_loading",
        "tool",
        True,
        "The tool is not part of the prompt until a tool search returns it.",
        neutral=(False,),
    ),
    Field(
        "tool_choice",
        "tool",
        "required",
        "`auto`, `none`, `required`, a function or a custom tool by name (and `namespace`; one "
        "call, unless `parallel_tool_calls` is true), `allowed_tools`. A choice of a tool type "
        "that the server does not support becomes `auto` and is reported; a name that no tool has "
        "is an error.",
        "engine",
        ("auto",),
    ),
    Field("parallel_tool_calls", "tool", False, "false: one call at a time.", "engine", (True,)),
    Field(
        "max_tool_calls",
        "hint",
        3,
        "Limits the calls of [server tools](../server-tools.md). Reported if the server runs none "
        "for the request.",
        "reported",
    ),
)

RESPONSES_FIELDS = FieldRegistry(
    "responses",
    _INPUT,
    _OUTPUT,
    _TOOLS,
    ENGINE_FIELDS,
    NVEXT_FIELDS,
    NVEXT_OUTPUT_FIELDS,
)
