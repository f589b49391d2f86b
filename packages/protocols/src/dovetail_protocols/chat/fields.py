"""The fields of Chat Completions and text completions."""

from dovetail_protocols.engine_fields import ENGINE_FIELDS
from dovetail_protocols.fields import Field, FieldRegistry
from dovetail_protocols.nvext_fields import NVEXT_CHAT_FIELDS, NVEXT_FIELDS, NVEXT_OUTPUT_FIELDS

_MESSAGE = {"role": "user", "content": "Hello."}
_FUNCTION = {"name": "look_up", "parameters": {"type": "object"}}
_TOOL = {"type": "function", "function": _FUNCTION}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_GRAMMAR = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}
_PASSED = "Passed to the engine."

SHARED_FIELDS = (
    Field("model", "input", "some-model", "Required; the response repeats it as it was sent."),
    Field("max_tokens", "stop", 8, "-1 is no limit."),
    Field("temperature", "sampling", 0.5, _PASSED),
    Field("top_p", "sampling", 0.5, _PASSED),
    Field("top_k", "sampling", 5, _PASSED),
    Field("min_p", "sampling", 0.1, _PASSED),
    Field("seed", "sampling", 7, _PASSED),
    Field("presence_penalty", "sampling", 0.5, _PASSED),
    Field("frequency_penalty", "sampling", 0.5, _PASSED),
    Field("repetition_penalty", "sampling", 1.1, _PASSED),
    Field(
        "stop",
        "stop",
        ["lo"],
        "A string or a list, found only in visible text. `choices[].stop_reason` names the one "
        "that ended the response.",
    ),
    Field("n", "sampling", 2, "1 to 16 choices."),
    Field("stream", "input", True, "Chunks, or one response."),
    Field("stream_options", "input", {"include_usage": True}, "With `stream`."),
    Field("stream_options.include_usage", "input", True, "A last chunk contains the usage."),
    Field(
        "stream_options.include_obfuscation",
        "hint",
        True,
        "Nothing is obfuscated.",
        "reported",
        (False,),
    ),
    Field("user", "hint", "user-7", "", "reported"),
    Field("safety_identifier", "hint", "user-7", "", "reported"),
    Field("prompt_cache_key", "hint", "session-7", "The session, if no header names one."),
    Field("prompt_cache_retention", "hint", "24h", "", "reported", ("in_memory",)),
    Field("metadata", "hint", {"a": "b"}, "Nothing is stored.", "reported", ({},)),
    Field("store", "hint", True, "Nothing is stored.", "reported", (False,)),
    Field(
        "service_tier",
        "hint",
        "flex",
        "The response contains `default`.",
        "reported",
        ("auto", "default"),
    ),
)

_OUTPUT = (
    Field("messages", "input", [_MESSAGE], "Required, at least one; see below."),
    Field("messages[].name", "hint", "Ada", "Not shown to the model.", "reported"),
    Field("max_completion_tokens", "stop", 8, "Takes precedence over `max_tokens`."),
    Field(
        "logprobs",
        "sampling",
        True,
        "For the tokens of all output; impossible tokens have -9999.",
        "engine",
        (False,),
    ),
    Field(
        "top_logprobs",
        "sampling",
        2,
        "llama.cpp and transformers return at most 20 alternatives per token and reject more.",
        "engine",
    ),
    Field("modalities", "input", ["text"], "`text`; `audio` is an error."),
    Field("audio", "hint", {"voice": "alloy"}, "Only text is generated.", "reported"),
    Field(
        "response_format",
        "constraint",
        {"type": "json_object"},
        "`text`, `json_object`, `json_schema`; others are an error. With `strict`, an invalid "
        "schema is an error.",
        "engine",
    ),
    Field("prediction", "hint", {"type": "content", "content": "x"}, "", "reported"),
    Field("verbosity", "hint", "low", "", "reported", ("medium",)),
)

_TOOLS = (
    Field(
        "tools",
        "tool",
        [_TOOL],
        "`function` and `custom` (with a Lark or regex grammar); other types are "
        "[server tools](../server-tools.md).",
    ),
    Field("tools[].type", "tool", "function", "`function` or `custom`."),
    Field("tools[].function", "tool", _FUNCTION),
    Field("tools[].function.name", "tool", "find", "Required."),
    Field("tools[].function.description", "tool", "Look it up.", "Shown to the model."),
    Field("tools[].function.parameters", "tool", _SCHEMA, "A JSON schema."),
    Field(
        "tools[].function.strict",
        "tool",
        True,
        "The arguments of every call fit the schema. An invalid schema is an error.",
        "engine",
        (False,),
    ),
    Field("tools[].custom", "tool", {"name": "patch"}),
    Field("tools[].custom.name", "tool", "edit", "Required."),
    Field("tools[].custom.description", "tool", "Apply a patch.", "Shown to the model."),
    Field("tools[].custom.format", "tool", _GRAMMAR, "The grammar of the input."),
    Field(
        "tool_choice",
        "tool",
        "required",
        "`auto`, `none`, `required`, a function, a custom tool (one call, unless "
        "`parallel_tool_calls` is true), `allowed_tools` (only those may be called).",
        "engine",
        ("auto",),
    ),
    Field("parallel_tool_calls", "tool", False, "false: one call at a time.", "engine", (True,)),
    Field(
        "functions",
        "tool",
        [_FUNCTION],
        "The old form of `tools`; the response still uses `tool_calls`.",
    ),
    Field("function_call", "tool", "none", "The old form of `tool_choice`."),
    Field(
        "web_search_options",
        "tool",
        {},
        "Searches the web if the server runs [server tools](../server-tools.md).",
        "rejected",
        (),
        "start the server with --web-search, or offer a search tool in `tools`",
    ),
)

_REASONING = (
    Field(
        "reasoning_effort",
        "hint",
        "low",
        "`none` turns reasoning off; any other value turns it on and is passed on.",
    ),
    Field("reasoning", "hint", {"effort": "low"}, "An object with the following."),
    Field("reasoning.effort", "hint", "low", "Like `reasoning_effort`."),
    Field("reasoning.enabled", "hint", False, "Turns reasoning on or off."),
    Field("reasoning.max_tokens", "hint", 4, "Reasoning budget."),
    Field("reasoning.summary", "hint", "auto", "", "reported", ("none",)),
    Field("reasoning.exclude", "hint", True, "Reasoning is returned.", "reported", (False,)),
    Field("include_reasoning", "hint", False, "Reasoning is returned.", "reported", (True,)),
    Field("separate_reasoning", "hint", False, "Reasoning is separate.", "reported", (True,)),
    Field("thinking", "hint", {"type": "disabled"}, "An object with the following."),
    Field("thinking.type", "hint", "disabled", "`enabled`, `adaptive`, `disabled`."),
    Field("thinking.budget_tokens", "hint", 4, "Reasoning budget."),
    Field("thinking.clear_thinking", "hint", False, "false keeps the reasoning of earlier turns."),
    Field("enable_thinking", "hint", False, "Turns reasoning on or off, as in Qwen's API."),
    Field("thinking_budget", "hint", 4, "Reasoning budget, as in Qwen's API."),
    Field("thinking_token_budget", "hint", 4, "Reasoning budget, as in vLLM."),
    Field(
        "chat_template_kwargs",
        "hint",
        {"enable_thinking": False},
        "Passed to the template unchanged; thinking switches in them take precedence over the "
        "fields above.",
    ),
    Field("chat_template_args", "hint", {"enable_thinking": False}, "Like `chat_template_kwargs`."),
)

CHAT_FIELDS = FieldRegistry(
    "chat",
    SHARED_FIELDS,
    _OUTPUT,
    _TOOLS,
    _REASONING,
    ENGINE_FIELDS,
    NVEXT_FIELDS,
    NVEXT_OUTPUT_FIELDS,
    NVEXT_CHAT_FIELDS,
)
