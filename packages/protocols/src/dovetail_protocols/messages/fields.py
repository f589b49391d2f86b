"""The fields of the Messages API."""

from dovetail_protocols.engine_fields import ENGINE_FIELDS
from dovetail_protocols.fields import Field, FieldRegistry
from dovetail_protocols.nvext_fields import NVEXT_FIELDS, NVEXT_OUTPUT_FIELDS

_TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
_MODEL_DEFAULT = "The default is that of the served model."

_INPUT = (
    Field(
        "model",
        "input",
        "some-model",
        "Required. The response repeats it exactly as requested, also if it is an alias.",
    ),
    Field(
        "messages",
        "input",
        [{"role": "user", "content": "Hello."}],
        "Required. Roles user, assistant, system and developer in any order; content is a string "
        "or a list of blocks. A system message stays in its place.",
    ),
    Field("system", "input", "Be brief.", "A string or blocks; blocks stay separate."),
    Field("stream", "input", True, "Server-sent events, or one response."),
    Field(
        "cache_control",
        "hint",
        {"type": "ephemeral"},
        "Accepted here and on every block and tool. Caching is automatic and needs no markers.",
    ),
    Field(
        "thread",
        "input",
        {"id": "thread-7"},
        "The server stores no conversations. The SDKs' tool runner requests one, receives the "
        "error `thread_unsupported_request`, and sends the complete history from then on.",
        "rejected",
        ({}, False, ""),
        "send all messages with each request",
    ),
    Field(
        "metadata",
        "hint",
        {"user_id": '{"session_id": "session-7"}'},
        "An object with the following.",
    ),
    Field(
        "metadata.user_id",
        "hint",
        '{"session_id": "session-7"}',
        "Claude Code's session is read from it if no header names one.",
    ),
    Field(
        "context_management",
        "hint",
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "An object with the following.",
    ),
    Field(
        "context_management.edits",
        "hint",
        [{"type": "clear_thinking_20251015", "keep": "all"}],
        "`clear_thinking_20251015`, `clear_tool_uses_20250919` and `compact_20260112`, see "
        "[context management](../context-management.md). Other edits are reported and not applied.",
    ),
    Field(
        "compaction",
        "input",
        {"type": "summarize"},
        "The response is a summary of the history, see "
        "[compaction](../context-management.md#compaction).",
    ),
    Field("compaction.type", "input", "summarize", "Only summarize."),
    Field(
        "compaction.instructions",
        "input",
        "In one line.",
        "Replace the server's instructions for the summary.",
    ),
    Field("service_tier", "hint", "standard_only", "", "reported", ("auto",)),
    Field("inference_geo", "hint", "eu", "", "reported"),
    Field("speed", "hint", "fast", "", "reported", ("standard",)),
    Field("fallbacks", "hint", [{"model": "other"}], "", "reported", ([],)),
    Field("container", "hint", "container-7", "", "reported"),
    Field("diagnostics", "hint", {}, "", "reported"),
)

_OUTPUT = (
    Field("max_tokens", "stop", 8, "Optional here; 0 is passed on."),
    Field(
        "stop_sequences",
        "stop",
        ["lo"],
        "Found only in visible text.",
    ),
    Field("temperature", "sampling", 0.5, _MODEL_DEFAULT),
    Field("top_p", "sampling", 0.5, _MODEL_DEFAULT),
    Field("top_k", "sampling", 5, _MODEL_DEFAULT),
    Field("thinking", "hint", {"type": "disabled"}, "An object with the following."),
    Field(
        "thinking.type",
        "hint",
        "disabled",
        "adaptive and enabled turn reasoning on, disabled turns it off; without the field the "
        "template decides.",
    ),
    Field("thinking.budget_tokens", "hint", 4, "Reasoning budget."),
    Field(
        "thinking.display",
        "hint",
        "omitted",
        "Reasoning is always returned in full.",
        "reported",
        ("full",),
    ),
    Field("output_config", "hint", {"effort": "low"}, "An object with the following."),
    Field("output_config.effort", "hint", "low", "Passed on unchanged."),
    Field(
        "output_config.format",
        "constraint",
        _FORMAT,
        "A `json_schema` constrains the text. An invalid schema is an error.",
        "engine",
    ),
    Field(
        "output_format",
        "constraint",
        _FORMAT,
        "The older name of `output_config.format`, which takes precedence.",
        "engine",
    ),
)

_TOOLS = (
    Field(
        "tools",
        "tool",
        [_TOOL],
        "A tool without `input_schema` and with a type of its own is a "
        "[server tool](../server-tools.md), or one that the client runs (bash, text editor, "
        "memory): it has a schema of the server.",
    ),
    Field("tools[].name", "tool", "find", "Required."),
    Field("tools[].type", "tool", "custom", "`custom`, or the type of a server tool."),
    Field("tools[].description", "tool", "Look it up.", "Shown to the model."),
    Field("tools[].input_schema", "tool", _SCHEMA, "A JSON schema."),
    Field(
        "tools[].strict",
        "tool",
        True,
        "The arguments of every call fit the schema. An invalid schema is an error.",
        "engine",
        (False,),
    ),
    Field("tools[].cache_control", "hint", {"type": "ephemeral"}, "See `cache_control`."),
    Field(
        "tools[].eager_input_streaming",
        "hint",
        True,
        "Arguments are always streamed as they are generated.",
    ),
    Field(
        "tools[].defer_loading",
        "tool",
        True,
        "The tool is not part of the prompt until a tool search returns it.",
        neutral=(False,),
    ),
    Field("tools[].input_examples", "hint", [{}], "", "reported", ([],)),
    Field(
        "tools[].allowed_callers",
        "hint",
        ["code_execution_20250825"],
        "",
        "reported",
        (["direct"],),
    ),
    Field("tool_choice", "tool", {"type": "any"}, "An object with the following.", "engine"),
    Field(
        "tool_choice.type",
        "tool",
        "any",
        "auto, any, tool, none. In a request without tools, any and tool mean auto, which is "
        "reported.",
        "engine",
        ("auto",),
    ),
    Field(
        "tool_choice.name",
        "tool",
        "look_up",
        "With tool. The response has one call of it, unless `disable_parallel_tool_use` is false.",
        "engine",
    ),
    Field(
        "tool_choice.disable_parallel_tool_use",
        "tool",
        True,
        "One call at a time.",
        "engine",
        (False,),
    ),
    Field(
        "mcp_servers",
        "hint",
        [{"type": "url", "url": "https://example.com", "name": "x"}],
        "The server connects to no MCP servers.",
        "reported",
        ([],),
    ),
)

MESSAGES_FIELDS = FieldRegistry(
    "messages",
    _INPUT,
    _OUTPUT,
    _TOOLS,
    ENGINE_FIELDS,
    NVEXT_FIELDS,
    NVEXT_OUTPUT_FIELDS,
)
