"""What harnesses ask of a server: one sentence each, with an id that checks name.

The sentences were measured on the real clients (CC: Claude Code, CX: Codex, AG: OpenCode, Pi and
OpenClaw), or are rules that any server between an agent and a model has to keep (R: reading the
model's output, TK: tokens and the prefix cache, WB: the web's own rules).
"""

from dataclasses import dataclass

CLAUDE_CODE = "Claude Code"
CODEX = "Codex"
OPENCODE = "OpenCode"
PI = "Pi"
OPENCLAW = "OpenClaw"
AGENTS = "OpenCode, Pi, OpenClaw"
READING = "Reading model output"
TOKENS = "Tokens and the prefix cache"
WEB = "HTTP and its event streams"
_CHAT_HARNESSES = (OPENCODE, PI, OPENCLAW)
_ALL_HARNESSES = (CLAUDE_CODE, CODEX, *_CHAT_HARNESSES)
_MESSAGES_HARNESSES = (
    CLAUDE_CODE,
    PI,
    OPENCLAW,
)  # who speaks this API, if only where it is told to
_RESPONSES_HARNESSES = (CODEX, *_CHAT_HARNESSES)


@dataclass(frozen=True)
class Clause:
    """A rule of the contract. `breaks` are the harnesses that cannot work without it.

    Where it is empty, breaking the rule costs time, tokens or exactness, and nothing stops.
    """

    id: str
    source: str
    sentence: str
    breaks: tuple[str, ...] = ()


def _clauses() -> tuple[Clause, ...]:
    return (*_claude_code(), *_codex(), *_agents(), *_reading(), *_tokens(), *_web())


def _claude_code() -> tuple[Clause, ...]:
    it, breaks = CLAUDE_CODE, (CLAUDE_CODE,)
    return (
        Clause("CC-1", it, "HEAD / is asked at start-up and must be answered."),
        Clause(
            "CC-2", it, "Messages are posted to /v1/messages?beta=true, whole or streamed.", breaks
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
            "message_start, then blocks that open, grow and stop under rising indices, then "
            "message_delta, then message_stop.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-5",
            it,
            "The answer names the model exactly as it was asked for; otherwise the client strips "
            "all thinking from later requests.",
        ),
        Clause(
            "CC-6",
            it,
            "Message ids are unique: a repeated one merges two turns into one.",
            breaks,
        ),
        Clause(
            "CC-7",
            it,
            "Tool-call ids are unique over a whole conversation: a repeated one deletes the call.",
            _MESSAGES_HARNESSES,
        ),
        Clause("CC-8", it, "A thinking block's signature comes in one delta: the last one wins."),
        Clause(
            "CC-9",
            it,
            "No text block is empty or of white space alone: one between a thought and a call "
            "makes the client send the history back in another order.",
        ),
        Clause("CC-10", it, "The stream ends with message_stop, without OpenAI's [DONE]."),
        Clause(
            "CC-11",
            it,
            "The body ends at once after message_stop: the next request waits for its end.",
        ),
        Clause(
            "CC-12", it, "A tool starts at its content_block_stop, not at the end of the message."
        ),
        Clause(
            "CC-13",
            it,
            "Tool input comes as JSON fragments that join to one object.",
            _MESSAGES_HARNESSES,
        ),
        Clause(
            "CC-14", it, "stop_reason says why it ended: end_turn, max_tokens, tool_use.", breaks
        ),
        Clause(
            "CC-15", it, "An error is {type: error, error: {type, message}} with a fitting status."
        ),
        Clause(
            "CC-16",
            it,
            'A prompt over the window is refused with the words "prompt is too long", which start '
            "compaction.",
        ),
        Clause(
            "CC-17",
            it,
            "All that it sends today is accepted: betas, thinking modes, context edits.",
            breaks,
        ),
        Clause(
            "CC-18",
            it,
            "role: system inside messages (also last) is accepted, and stays where it is.",
            breaks,
        ),
        Clause(
            "CC-19",
            it,
            "x-api-key and Authorization: Bearer are both accepted, also together.",
            breaks,
        ),
        Clause(
            "CC-20",
            it,
            "GET /v1/models answers in Anthropic's form when anthropic-version is sent.",
        ),
        Clause("CC-21", it, "GET /v1/models/{id} works for ids with slashes."),
        Clause(
            "CC-22",
            it,
            "POST /v1/messages/count_tokens answers {input_tokens}: /context and reading large "
            "files ask it.",
        ),
        Clause("CC-23", it, "Events that a client does not know stand anywhere without harm."),
        Clause("CC-24", it, "Server tools without input_schema do not make a request fail."),
        Clause(
            "CC-25",
            it,
            "History as the client replays it is accepted: thinking with any signature, calls "
            "without text, results in any order.",
            breaks,
        ),
        Clause(
            "CC-26", it, "Thinking is never lost by a clean end: a failing engine sends an error."
        ),
        Clause(
            "CC-27",
            it,
            "Replayed turns reach the model in the order in which it wrote them, each thought "
            "before its call.",
        ),
        Clause("CC-28", it, "output_config.format makes the answer valid JSON of the schema."),
        Clause("CC-29", it, "Betas and fields that a server does not know are accepted."),
    )


def _codex() -> tuple[Clause, ...]:
    it, breaks = CODEX, (CODEX,)
    return (
        Clause(
            "CX-1",
            it,
            "A stream has output_item.done for every item, and ends with response.completed.",
            _RESPONSES_HARNESSES,
        ),
        Clause("CX-2", it, "sequence_number rises by every event."),
        Clause("CX-3", it, "A call starts at its output_item.done, before response.completed."),
        Clause("CX-4", it, "A reasoning item has a `summary` array, else it is silently dropped."),
        Clause(
            "CX-5",
            it,
            "A reasoning item carries encrypted_content when it is asked for, and its text.",
        ),
        Clause(
            "CX-6",
            it,
            "usage has input_tokens, output_tokens and total_tokens, or is not there.",
            breaks,
        ),
        Clause(
            "CX-7",
            it,
            "arguments of a function_call are a string, never an object.",
            _RESPONSES_HARNESSES,
        ),
        Clause("CX-8", it, "Response, item and call ids are unique.", _RESPONSES_HARNESSES),
        Clause(
            "CX-9",
            it,
            "A prompt over the window is a stream with response.failed, code "
            "context_length_exceeded; HTTP 400 is fatal.",
        ),
        Clause(
            "CX-10",
            it,
            "Items with ids, null content, no `type`, and the developer role are accepted.",
            _RESPONSES_HARNESSES,
        ),
        Clause(
            "CX-11",
            it,
            "Tools that it offers are accepted: namespaces, web_search, tool_search, custom.",
            breaks,
        ),
        Clause("CX-12", it, "Custom (freeform) tools come back as custom_tool_call."),
        Clause(
            "CX-13",
            it,
            "A WebSocket upgrade is taken, or refused with 426: at 404 it tries seven times.",
        ),
        Clause("CX-14", it, "No openai-model header, or the model that was asked for."),
        Clause("CX-15", it, "Neither `instructions` nor `tools` has to be there.", breaks),
        Clause("CX-16", it, "Bodies compressed with zstd or gzip are accepted."),
        Clause(
            "CX-17",
            it,
            "previous_response_id works, or is refused with an error that says so.",
        ),
        Clause("CX-18", it, "A call of a namespace comes back with its name and its namespace."),
        Clause("CX-19", it, "An error is {error: {message, type, code}} with a fitting status."),
        Clause("CX-20", it, "The output of response.completed is what the stream's items were."),
        Clause("CX-21", it, "GET /v1/models serves `models` beside `data` for its client_version."),
        Clause(
            "CX-22", it, "The stream closes at once after response.completed or response.failed."
        ),
        Clause(
            "CX-23",
            it,
            "Replayed items reach the model in the order of generation, calls paired with their "
            "outputs by call_id.",
        ),
        Clause("CX-24", it, "text.format makes the answer valid JSON of the schema."),
        Clause("CX-25", it, "Fields and tools that a server does not know are accepted."),
        Clause(
            "CX-26",
            it,
            "Every event of an item has its output_index; items come in order.",
            _CHAT_HARNESSES,
        ),
        Clause("CX-27", it, "A request that is not to be streamed is answered by one response."),
    )


def _agents() -> tuple[Clause, ...]:
    it, breaks = AGENTS, _CHAT_HARNESSES
    return (
        Clause(
            "AG-1",
            it,
            "A chat stream opens with a role, ends with a finish_reason and [DONE].",
            breaks,
        ),
        Clause(
            "AG-2", it, "stream_options.include_usage adds a last chunk with usage and no choices."
        ),
        Clause(
            "AG-3", it, "Tool-call deltas have an index; id and name first, then arguments.", breaks
        ),
        Clause("AG-4", it, "reasoning_content of earlier turns is accepted in messages.", breaks),
        Clause("AG-5", it, "The developer role is accepted.", (PI,)),
        Clause("AG-6", it, "max_completion_tokens limits the answer."),
        Clause("AG-7", it, "n and logprobs work, or are refused with an error that says so."),
        Clause("AG-8", it, "All chunks of a stream have one id, and each answer another."),
        Clause("AG-9", it, "Tool-call ids are unique over answers.", breaks),
        Clause("AG-10", it, "content may be a string or a list of parts.", breaks),
        Clause("AG-11", it, "Errors have OpenAI's form with a fitting status."),
        Clause(
            "AG-12", it, "tool_call_dispatch comes when a call is complete, where it is offered."
        ),
        Clause("AG-13", it, "GET /v1/models lists the models in OpenAI's form."),
        Clause("AG-14", it, "Unknown fields of a request are accepted."),
        Clause("AG-15", it, "response_format makes the answer valid JSON of the schema."),
        Clause("AG-16", it, "content may be null beside tool calls."),
    )


def _reading() -> tuple[Clause, ...]:
    it = READING
    return (
        Clause("R1", it, "A stream and a whole answer of the same text are the same."),
        Clause("R2", it, "Text, thoughts and calls keep the order in which the model wrote them."),
        Clause(
            "R3", it, "No markup of a thought or a call leaks into text, thoughts or arguments."
        ),
        Clause("R4", it, "A marker inside an argument is data."),
        Clause("R5", it, "Arguments are streamed as they are written, never taken back."),
        Clause("R6", it, "A call that was cut is never completed by guessing."),
        Clause("R7", it, "A malformed call stays text; unknown names are handed on."),
        Clause("R8", it, "White space that only frames blocks is no text."),
        Clause(
            "R10", it, "What the model wrote is, token for token, what the next prompt contains."
        ),
        Clause("R11", it, "A character split over tokens is held back, never shown as U+FFFD."),
    )


def _tokens() -> tuple[Clause, ...]:
    it = TOKENS
    return (
        Clause(
            "TK-1", it, "usage counts the prompt exactly, the same streamed, whole and counted."
        ),
        Clause("TK-2", it, "message_start already has the exact number of input tokens."),
        Clause("TK-3", it, "input_tokens leaves out what cache_read_input_tokens counts."),
        Clause(
            "TK-4", it, "The same words as a string or as parts with cache_control cost the same."
        ),
        Clause("TK-5", it, "A repeated prefix is found again in the cache, and reported."),
        Clause(
            "TK-6", it, "The varying x-anthropic-billing-header line does not break the prefix."
        ),
        Clause("TK-7", it, "Ids, metadata and cache_control never reach the prompt."),
        Clause("TK-8", it, "/tokenize and /detokenize are exact inverses."),
        Clause("TK-9", it, "Stop sequences end the answer, and are not part of it."),
        Clause("TK-10", it, "Output tokens are counted, and never exceed the limit."),
        Clause("TK-11", it, "A control token that a client spells out stays text."),
        Clause(
            "TK-12",
            it,
            "A request that says nothing of thinking has the prompt of one that leaves it to the "
            "model: subagents say nothing.",
        ),
    )


def _web() -> tuple[Clause, ...]:
    it = WEB
    return (
        Clause(
            "WB-1", it, "Bad JSON, missing fields and wrong types are answered with 4xx, not 5xx."
        ),
        Clause("WB-2", it, "An unknown model is refused by name, or served under that name."),
        Clause("WB-3", it, "A wrong method is answered with 405 or 404, in an error body."),
        Clause(
            "WB-4",
            it,
            "Streams are text/event-stream and are not cached on the way.",
            _ALL_HARNESSES,
        ),
        Clause("WB-5", it, "A client that hangs up stops the generation, and the place is free."),
        Clause("WB-6", it, "Streams at the same time do not mix.", _ALL_HARNESSES),
        Clause("WB-7", it, "Request bodies of a megabyte are accepted.", _ALL_HARNESSES),
        Clause("WB-8", it, "A connection can be used again."),
        Clause("WB-9", it, "A wrong key is refused with 401 in the API's own form."),
        Clause("WB-10", it, "The server says whether it is well."),
    )


CLAUSES = {clause.id: clause for clause in _clauses()}
