"""The fields of `nvext`, which every API accepts."""

from dovetail_protocols.fields import Field

NVEXT_FIELDS = (
    Field("nvext", "hint", {}, "Hints and options of a harness, as Dynamo names them."),
    Field(
        "nvext.agent_hints",
        "hint",
        {},
        "Also in the headers `x-dynamo-request-priority` and `x-dynamo-request-strict-priority`.",
    ),
    Field("nvext.agent_hints.priority", "hint", 5, "Requests with a higher value run first."),
    Field(
        "nvext.agent_hints.strict_priority",
        "hint",
        1,
        "Like `priority`, for the queue of the server itself.",
    ),
    Field("nvext.agent_hints.osl", "hint", 100, "Expected number of output tokens."),
    Field(
        "nvext.agent_hints.speculative_prefill",
        "hint",
        True,
        "Prefill the next prompt as soon as the response has ended.",
    ),
    Field(
        "nvext.agent_hints.latency_sensitivity",
        "hint",
        0.5,
        "Requests with a higher value leave the queue first.",
    ),
    Field("nvext.cache_salt", "hint", "tenant-7", "Separates prefix caches."),
    Field("nvext.annotations", "hint", ["llm_metrics"], "", "reported", ([],)),
    Field("nvext.use_raw_prompt", "hint", True, "", "reported", (False,)),
)

#: Options of APIs whose output is parsed.
NVEXT_OUTPUT_FIELDS = (
    Field(
        "nvext.max_thinking_tokens", "hint", 4, "Reasoning budget, unless the API's own is less."
    ),
    Field(
        "nvext.reasoning_retention",
        "input",
        "none",
        "Which turns [keep their "
        "reasoning](../context-management.md#retention-of-reasoning); also in the header "
        "`x-dovetail-reasoning-retention`.",
    ),
    Field("nvext.dispatch", "hint", ["reasoning"], "Dispatch events in the stream."),
)

#: Chat Completions groups reasoning and calls, so it has an option for their order.
NVEXT_CHAT_FIELDS = (
    Field("nvext.extra_fields", "hint", ["reasoning_segments"], "`reasoning_segments`; see below."),
)
