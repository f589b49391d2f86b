"""The contract: what agent harnesses require of a server, as clauses with ids.

Each check names the clause that it tests. The clauses of CC (Claude Code), CX (Codex) and AG
(OpenCode, Pi and OpenClaw) were measured on the real clients. The others are rules for any server
between an agent and a model: R (parsing of model output), TK (tokens and the prefix cache), F
(request fields), TL (tools of a session), ST (server tools) and WB (HTTP).
"""

from dataclasses import dataclass

CLAUDE_CODE = "Claude Code"
CODEX = "Codex"
OPENCODE = "OpenCode"
PI = "Pi"
OPENCLAW = "OpenClaw"
AGENTS = "OpenCode, Pi, OpenClaw"
READING = "Parsing of model output"
TOKENS = "Tokens and the prefix cache"
FIELDS = "Request fields"
SESSION_TOOLS = "Tools of a session"
SERVER_TOOLS = "Server tools"
WEB = "HTTP and server-sent events"
_CHAT_HARNESSES = (OPENCODE, PI, OPENCLAW)
_ALL_HARNESSES = (CLAUDE_CODE, CODEX, *_CHAT_HARNESSES)
#: Harnesses that can use the Messages API. Pi and OpenClaw use it only if configured to.
_MESSAGES_HARNESSES = (CLAUDE_CODE, PI, OPENCLAW)
_RESPONSES_HARNESSES = (CODEX, *_CHAT_HARNESSES)


@dataclass(frozen=True)
class Clause:
    """A rule of the contract.

    `breaks` lists the harnesses that do not work with a server that violates the rule. If it is
    empty, a violation costs time, tokens or exactness, but every harness keeps working.
    """

    id: str
    source: str
    sentence: str
    breaks: tuple[str, ...] = ()


def _clauses() -> tuple[Clause, ...]:
    return (
        *_claude_code(),
        *_codex(),
        *_agents(),
        *_reading(),
        *_tokens(),
        *_fields(),
        *_session_tools(),
        *_server_tools(),
        *_web(),
    )


def _claude_code() -> tuple[Clause, ...]:
    it, breaks = CLAUDE_CODE, (CLAUDE_CODE,)
    return (
        Clause("CC-1", it, "The server responds to HEAD /, which the client sends at startup."),
        Clause(
            "CC-2",
            it,
            "Requests to /v1/messages?beta=true are accepted, streaming and non-streaming.",
            breaks,
        ),
        Clause(
            "CC-3",
            it,
            "Every event of a stream has an `event:` line that names its type.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-4",
            it,
            "A stream consists of message_start, blocks that start, receive deltas and stop under "
            "increasing indices, message_delta, and message_stop.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-5",
            it,
            "The response names the model exactly as the request did; otherwise the client removes "
            "all thinking from later requests.",
        ),
        Clause(
            "CC-6",
            it,
            "Message ids are unique; the client merges two turns that have the same id.",
            breaks,
        ),
        Clause(
            "CC-7",
            it,
            "Tool call ids are unique within a conversation; the client deletes a call with a "
            "repeated id.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-8",
            it,
            "The signature of a thinking block arrives in one delta; the client keeps only the "
            "last one.",
        ),
        Clause(
            "CC-9",
            it,
            "No text block is empty or consists of whitespace only; such a block between reasoning "
            "and a call makes the client send the history back in a different order.",
        ),
        Clause("CC-10", it, "The stream ends with message_stop, without OpenAI's [DONE]."),
        Clause(
            "CC-11",
            it,
            "The response body ends immediately after message_stop; the next request waits for its "
            "end.",
        ),
        Clause(
            "CC-12",
            it,
            "content_block_stop follows a call as soon as it is complete; the client starts the "
            "tool there, not at the end of the message.",
        ),
        Clause(
            "CC-13",
            it,
            "Tool input arrives as JSON fragments that concatenate to one object.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-14",
            it,
            "stop_reason states why the response ended: end_turn, max_tokens or tool_use.",
            breaks,
        ),
        Clause(
            "CC-15",
            it,
            "Errors have the form {type: error, error: {type, message}} and a matching status.",
        ),
        Clause(
            "CC-16",
            it,
            "A prompt that exceeds the context window is rejected with a message that contains "
            '"prompt is too long", which triggers compaction.',
        ),
        Clause(
            "CC-17",
            it,
            "Everything that the client sends today is accepted: betas, thinking modes, context "
            "edits.",
            breaks,
        ),
        Clause(
            "CC-18",
            it,
            "Messages with role: system are accepted at any position, including the last, and stay "
            "there.",
            breaks,
        ),
        Clause(
            "CC-19",
            it,
            "x-api-key and Authorization: Bearer are both accepted, separately and together.",
            breaks,
        ),
        Clause(
            "CC-20",
            it,
            "GET /v1/models returns Anthropic's format if the request has anthropic-version.",
        ),
        Clause("CC-21", it, "GET /v1/models/{id} works for ids that contain slashes."),
        Clause(
            "CC-22",
            it,
            "POST /v1/messages/count_tokens returns {input_tokens}; the client calls it for "
            "/context and before it reads large files.",
        ),
        Clause(
            "CC-23",
            it,
            "Events of types that a client does not know may appear anywhere in a stream without "
            "harm.",
        ),
        Clause("CC-24", it, "Server tools without input_schema do not make a request fail."),
        Clause(
            "CC-25",
            it,
            "The history is accepted as the client replays it: thinking with any signature, calls "
            "without text, results in any order.",
            breaks,
        ),
        Clause(
            "CC-26",
            it,
            "If the engine fails, the stream ends with an error; a normal end would lose the "
            "thinking silently.",
        ),
        Clause(
            "CC-27",
            it,
            "Replayed turns reach the model in the order in which it generated them, with each "
            "reasoning span before its call.",
        ),
        Clause("CC-28", it, "output_config.format makes the response valid JSON of the schema."),
        Clause("CC-29", it, "Unknown betas and fields are accepted."),
    )


def _codex() -> tuple[Clause, ...]:
    it, breaks = CODEX, (CODEX,)
    return (
        Clause(
            "CX-1",
            it,
            "A stream has output_item.done for every item and ends with response.completed.",
            _RESPONSES_HARNESSES,
        ),
        Clause("CX-2", it, "sequence_number increases with every event."),
        Clause(
            "CX-3",
            it,
            "output_item.done follows a call as soon as it is complete; the client starts the tool "
            "there, before response.completed.",
        ),
        Clause(
            "CX-4",
            it,
            "A reasoning item has a `summary` array; otherwise the client silently drops it.",
        ),
        Clause(
            "CX-5",
            it,
            "A reasoning item contains its text, and encrypted_content if the request includes it.",
        ),
        Clause(
            "CX-6",
            it,
            "usage has input_tokens, output_tokens and total_tokens, or is absent.",
            breaks,
        ),
        Clause(
            "CX-7",
            it,
            "The arguments of a function_call are a string, never an object.",
            _RESPONSES_HARNESSES,
        ),
        Clause("CX-8", it, "Response, item and call ids are unique.", _RESPONSES_HARNESSES),
        Clause(
            "CX-9",
            it,
            "For a prompt that exceeds the context window, the server returns a stream with "
            "response.failed and the code context_length_exceeded; HTTP 400 is fatal.",
        ),
        Clause(
            "CX-10",
            it,
            "Items with ids, with null content or without `type` are accepted, and so is the "
            "developer role.",
            _RESPONSES_HARNESSES,
        ),
        Clause(
            "CX-11",
            it,
            "All tool types that the client offers are accepted: namespaces, web_search, "
            "tool_search, custom.",
            breaks,
        ),
        Clause("CX-12", it, "Calls of custom (freeform) tools are returned as custom_tool_call."),
        Clause(
            "CX-13",
            it,
            "A WebSocket upgrade is accepted, or rejected with 426; after a 404 the client tries "
            "seven times.",
        ),
        Clause("CX-14", it, "The openai-model header is absent or names the requested model."),
        Clause("CX-15", it, "`instructions` and `tools` are both optional.", breaks),
        Clause("CX-16", it, "Request bodies compressed with zstd or gzip are accepted."),
        Clause(
            "CX-17",
            it,
            "previous_response_id works, or is rejected with an error that states the reason.",
        ),
        Clause("CX-18", it, "A call of a namespaced tool returns its name and its namespace."),
        Clause(
            "CX-19",
            it,
            "Errors have the form {error: {message, type, code}} and a matching status.",
        ),
        Clause("CX-20", it, "The output of response.completed equals the items of the stream."),
        Clause(
            "CX-21",
            it,
            "GET /v1/models returns `models` in addition to `data` if the client sends "
            "client_version.",
        ),
        Clause(
            "CX-22",
            it,
            "The stream closes immediately after response.completed or response.failed.",
        ),
        Clause(
            "CX-23",
            it,
            "Replayed items reach the model in the order of generation, with calls paired to their "
            "outputs by call_id.",
        ),
        Clause("CX-24", it, "text.format makes the response valid JSON of the schema."),
        Clause("CX-25", it, "Unknown fields and tools are accepted."),
        Clause(
            "CX-26",
            it,
            "Every event of an item has its output_index, and items arrive in order.",
            _CHAT_HARNESSES,
        ),
        Clause("CX-27", it, "A non-streaming request returns one response object."),
    )


def _agents() -> tuple[Clause, ...]:
    it, breaks = AGENTS, _CHAT_HARNESSES
    return (
        Clause(
            "AG-1",
            it,
            "A chat stream starts with a role and ends with a finish_reason and [DONE].",
            breaks,
        ),
        Clause(
            "AG-2",
            it,
            "stream_options.include_usage adds a last chunk that has usage and no choices.",
        ),
        Clause(
            "AG-3",
            it,
            "Tool call deltas have an index; the id and the name come first, then the arguments.",
            breaks,
        ),
        Clause("AG-4", it, "reasoning_content of earlier turns is accepted in messages.", breaks),
        Clause("AG-5", it, "The developer role is accepted.", (PI,)),
        Clause("AG-6", it, "max_completion_tokens limits the response."),
        Clause(
            "AG-7", it, "n and logprobs work, or are rejected with an error that states the reason."
        ),
        Clause(
            "AG-8", it, "All chunks of a stream have the same id, and each response has its own."
        ),
        Clause("AG-9", it, "Tool call ids are unique across responses.", breaks),
        Clause("AG-10", it, "content may be a string or a list of parts.", breaks),
        Clause("AG-11", it, "Errors have OpenAI's format and a matching status."),
        Clause(
            "AG-12",
            it,
            "If the server supports tool_call_dispatch, it sends the event as soon as a call is "
            "complete.",
        ),
        Clause("AG-13", it, "GET /v1/models lists the models in OpenAI's format."),
        Clause("AG-14", it, "Unknown fields of a request are accepted."),
        Clause("AG-15", it, "response_format makes the response valid JSON of the schema."),
        Clause("AG-16", it, "content may be null in a message that has tool calls."),
    )


def _reading() -> tuple[Clause, ...]:
    it = READING
    return (
        Clause(
            "R1",
            it,
            "Streaming and non-streaming responses of the same output have the same content.",
        ),
        Clause(
            "R2",
            it,
            "Text, reasoning and calls keep the order in which the model generated them.",
        ),
        Clause(
            "R3", it, "No markup of reasoning or calls leaks into text, reasoning or arguments."
        ),
        Clause("R4", it, "A marker inside an argument is data."),
        Clause("R5", it, "Arguments are streamed as they are generated and are never retracted."),
        Clause("R6", it, "A truncated call is never completed by guessing."),
        Clause("R7", it, "A malformed call remains text; calls of unknown tools are passed on."),
        Clause("R8", it, "Whitespace that only separates blocks is not text."),
        Clause("R10", it, "The next prompt contains the model's output token for token."),
        Clause(
            "R11",
            it,
            "A character split across tokens is held back until it is complete, never shown as "
            "U+FFFD.",
        ),
    )


def _tokens() -> tuple[Clause, ...]:
    it = TOKENS
    return (
        Clause(
            "TK-1",
            it,
            "usage reports the exact prompt tokens: the same in streaming and non-streaming "
            "responses and in token counts.",
        ),
        Clause("TK-2", it, "message_start already reports the exact number of input tokens."),
        Clause("TK-3", it, "input_tokens excludes the tokens of cache_read_input_tokens."),
        Clause(
            "TK-4",
            it,
            "The same text has the same number of tokens as a string and as parts with "
            "cache_control.",
        ),
        Clause("TK-5", it, "A repeated prefix is a prefix cache hit and is reported as one."),
        Clause(
            "TK-6", it, "The varying x-anthropic-billing-header line does not break the prefix."
        ),
        Clause("TK-7", it, "Ids, metadata and cache_control are never part of the prompt."),
        Clause("TK-8", it, "/tokenize and /detokenize are exact inverses."),
        Clause("TK-9", it, "Stop sequences end the response and are not part of it."),
        Clause("TK-10", it, "Output tokens are counted and never exceed the limit."),
        Clause("TK-11", it, "A control token that a client spells out remains text."),
        Clause(
            "TK-12",
            it,
            "A request without `thinking` has the same prompt as one that leaves thinking to the "
            "model; subagents omit the field.",
        ),
    )


def _fields() -> tuple[Clause, ...]:
    it = FIELDS
    return (
        Clause(
            "F-1",
            it,
            "A field that constrains the output is enforced, or rejected with an error that names "
            "it.",
        ),
        Clause("F-2", it, "An invalid JSON schema is rejected if the output must fit it."),
        Clause("F-3", it, "A field that has no effect is reported in a header of the response."),
        Clause("F-4", it, "Errors of the Responses API about the input name `input`."),
        Clause("F-5", it, "Stop sequences are found only in visible text."),
        Clause(
            "F-6",
            it,
            "A named tool_choice results in one call, unless the request enables parallel calls.",
        ),
        Clause("F-7", it, "Context edits are applied, and `applied_edits` equals their effect."),
        Clause("F-8", it, "A compaction block replaces the history before it."),
        Clause(
            "F-9",
            it,
            "With `truncation: auto`, the oldest items are dropped until the prompt fits the "
            "context window.",
        ),
        Clause(
            "F-10",
            it,
            "The retention of reasoning that a request names decides which finished turns keep it.",
        ),
        Clause("F-11", it, "A conversation has the items of all responses that refer to it."),
    )


def _session_tools() -> tuple[Clause, ...]:
    it = SESSION_TOOLS
    return (
        Clause(
            "TL-1",
            it,
            "A tool_reference shows a deferred tool at its position and makes it callable; the "
            "prefix stays the same.",
        ),
        Clause("TL-2", it, "A deferred tool, such as a placeholder, is not shown as callable."),
        Clause("TL-3", it, "allowed_tools restricts which tools are called, not the prompt."),
        Clause("TL-4", it, "Order and repetition of tools do not change the prefix."),
    )


def _server_tools() -> tuple[Clause, ...]:
    it = SERVER_TOOLS
    return (
        Clause(
            "ST-1",
            it,
            "A server tool is run within the response, or a request without other tools is "
            "rejected with an error that names it; it is never dropped.",
        ),
        Clause("ST-2", it, "Searches in a history are accepted, also those of another server."),
    )


def _web() -> tuple[Clause, ...]:
    it = WEB
    return (
        Clause(
            "WB-1",
            it,
            "Invalid JSON, missing fields and wrong types are rejected with 4xx, not with 5xx.",
        ),
        Clause(
            "WB-2",
            it,
            "An unknown model is rejected with an error, or served under the requested name.",
        ),
        Clause("WB-3", it, "A wrong method is rejected with 405 or 404 and an error body."),
        Clause(
            "WB-4",
            it,
            "Streams are text/event-stream and are not cached by intermediaries.",
            _ALL_HARNESSES,
        ),
        Clause("WB-5", it, "A client disconnect stops the generation and frees its slot."),
        Clause("WB-6", it, "Concurrent streams do not mix.", _ALL_HARNESSES),
        Clause("WB-7", it, "Request bodies of one megabyte are accepted.", _ALL_HARNESSES),
        Clause("WB-8", it, "A connection can be reused."),
        Clause("WB-9", it, "A wrong API key is rejected with 401 in the format of the API."),
        Clause("WB-10", it, "The server reports its health."),
    )


CLAUSES = {clause.id: clause for clause in _clauses()}
