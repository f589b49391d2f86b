"""An upstream gets every declared field, or an error or a report names the field.

The server has a recording upstream. Each field of each API's registry is sent once, and
what the upstream received and what the client received is compared with the table of fields.
"""

import json
from typing import Any

import pytest
from field_requests import BODIES, PATHS, body_for, put, shown
from http_fixture import Stage, run
from recording_upstream import relaying, respond
from upstream_environment import FakeRequest, FakeResponse, FakeUpstream

from dovetail_protocols import (
    FIELD_REGISTRIES,
    Field,
    FieldRegistry,
    UpstreamApi,
    upstream_support,
)

PAIRS: list[tuple[str, UpstreamApi]] = [
    (api, upstream)
    for api in ("messages", "responses", "chat")
    for upstream in ("responses", "chat")
]
#: Mapped, but not visible in one request and its response.
UNSEEN = {
    "messages": "the same as without",
    "input": "the same as without",
    "nvext": "only its members have effects",
    "nvext.agent_hints": "only its members have effects",
    "nvext.agent_hints.priority": "orders the queue of a busy server",
    "nvext.agent_hints.strict_priority": "orders the queue of a busy server",
    "nvext.agent_hints.latency_sensitivity": "orders the queue of a busy server",
    "cache_control": "the upstream decides about its cache",
    "tools[].cache_control": "the upstream decides about its cache",
    "tools[].eager_input_streaming": "arguments are always streamed",
    "modalities": "text is the only one",
    "tools[].type": "the type of the test's own tools",
    "tools[].function": "contains the test's own tool",
    "tools[].custom": "contains the test's own tool",
    "tools[].tools": "of a namespace only",
    "tools[].execution": "of a tool search only",
    "store": "the test does not retrieve responses",
    "thinking.clear_thinking": "the upstream gets the reasoning of all turns",
    "reasoning.context": "the upstream gets the reasoning of all turns",
    "context_management": "about the reasoning of earlier turns",
    "stream_options": "only its members have effects",
    "compaction.type": "its only value",
    "client_metadata": "a header, which this test does not compare",
    "metadata": "only its members have effects",
    "metadata.user_id": "a header, which this test does not compare",
    "prompt_cache_key": "a header, which this test does not compare",
}
#: Honoured by the server itself, with examples that need another request before them.
UNTESTED = {"model", "previous_response_id", "conversation", "background"}
#: Other values than the registry's examples.
EXAMPLES = {
    "context_management.edits": [{"type": "clear_tool_uses_20250919"}],
    "structured_outputs": {"json_object": True},
}


@pytest.mark.parametrize(("api", "upstream"), PAIRS)
def test_every_field_is_passed_mapped_rejected_or_reported(api: str, upstream: UpstreamApi) -> None:
    registry = next(one for one in FIELD_REGISTRIES if one.api == api)

    async def scene() -> None:
        wrong = []
        async with relaying(upstream) as (stage, fake):
            for field in registry.fields:
                if field.name in UNTESTED:
                    continue
                fault = await find_fault(stage, fake, registry, field, upstream)
                wrong += [f"{field.name}: {fault}"] if fault else []
        assert not wrong, "\n".join(wrong)

    run(scene)


async def find_fault(
    stage: Stage, fake: FakeUpstream, registry: FieldRegistry, field: Field, upstream: UpstreamApi
) -> str:
    """Return how a field is treated differently from its row in the table, or nothing."""
    api, support = registry.api, upstream_support(registry.api, field, upstream)
    base = body_for(api, field.name)
    plain, plain_upstream = await send(stage, fake, api, base)
    example = EXAMPLES.get(field.name, field.example)
    body = put(json.loads(json.dumps(base)), field.name, example)
    reply, received = await send(stage, fake, api, body)
    if reply.status != 200:
        named = field.name.replace("[]", "[0]") in reply.body.decode()
        expected = support == "rejected" and named and reply.status == 400
        return "" if expected else f"{support}, but {reply.status} {reply.body!r}"
    reported = f"ignored:{field.name}" in reply.headers.get("x-dovetail-diagnostics", "")
    changed = received != plain_upstream or shown(reply) != shown(plain)
    match support:
        case "passed":
            missing = object()
            same = value_at(received, field.name, missing) == example and not reported
            return "" if same else f"not passed: {received}"
        case "mapped":
            return "" if not reported and (changed or field.name in UNSEEN) else "no effect"
        case "reported":
            if received != plain_upstream:
                return f"reported, but the upstream got it: {received}"
            return "" if reported else "not reported"
    return "accepted"


async def send(
    stage: Stage, fake: FakeUpstream, api: str, body: dict[str, Any]
) -> tuple[Any, list[Any]]:
    fake.requests.clear()
    reply = await stage.request("POST", PATHS[api], body)
    return reply, [one.body for one in fake.requests if one.body]


def value_at(bodies: list[Any], path: str, missing: object) -> Any:
    """Return the value at the path of the only body; `[]` is the first item."""
    at: Any = bodies[0] if len(bodies) == 1 else {}
    for name in path.split("."):
        at = at.get(name.removesuffix("[]"), missing) if isinstance(at, dict) else missing
        at = at[0] if name.endswith("[]") and isinstance(at, list) and at else at
    return at


def test_undeclared_fields_are_passed_to_the_same_api_and_reported_otherwise() -> None:
    async def scene() -> None:
        for api, upstream in PAIRS:
            async with relaying(upstream) as (stage, fake):
                reply, (received,) = await send(stage, fake, api, BODIES[api] | {"of_tomorrow": 1})
                note = reply.headers.get("x-dovetail-diagnostics")
                expected = (1, None) if api == upstream else (None, "ignored:of_tomorrow")
                assert (received.get("of_tomorrow"), note) == expected

    run(scene)


def test_tools_are_passed_as_they_were_declared() -> None:
    async def scene() -> None:
        tools = [
            {"type": "web_search", "search_context_size": "low"},
            {"type": "function", "name": "look_up", "parameters": {"type": "object"}, "of": 1},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
        ]
        async with relaying("responses") as (stage, fake):
            body = BODIES["responses"] | {"tools": tools, "tool_choice": {"type": "web_search"}}
            reply, (received,) = await send(stage, fake, "responses", body)
            assert reply.status == 200
            assert "x-dovetail-diagnostics" not in reply.headers
            assert received["tools"] == tools
            assert received["tool_choice"] == {"type": "web_search"}
            include = ["file_search_call.results"]
            _, (received,) = await send(
                stage, fake, "responses", BODIES["responses"] | {"include": include}
            )
            assert received["include"] == ["reasoning.encrypted_content", *include]

    run(scene)


def test_a_hint_that_the_upstream_rejects_is_left_out_and_reported() -> None:
    def strict(request: FakeRequest) -> FakeResponse:
        body = request.body or {}
        if "verbosity" in body.get("text", {}):
            error = {"message": "Unknown parameter: 'text.verbosity'.", "param": "text.verbosity"}
            return FakeResponse(400, json.dumps({"error": error}).encode())
        if "user" in body:
            return FakeResponse(400, b'{"error": {"message": "\'user\' is not supported"}}')
        return respond(request)

    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = strict
            body = BODIES["responses"] | {"text": {"verbosity": "low"}, "user": "u", "metadata": {}}
            for _ in range(2):
                reply, received = await send(stage, fake, "responses", body)
                notes = reply.headers["x-dovetail-diagnostics"].split(", ")
                assert sorted(notes) == ["ignored:text.verbosity", "ignored:user"]
                assert (received[-1]["text"], received[-1]["metadata"]) == ({}, {})
            assert len(received) == 1  # the second request was sent once

    run(scene)


def counted(request: FakeRequest) -> FakeResponse:
    """Count custom tools like a server that shows them to its model."""
    body = request.body or {}
    if body.get("stream") is not False:
        return respond(request)
    tokens = 20 + 100 * len(body.get("tools", ()))
    return FakeResponse(body=json.dumps({"usage": {"input_tokens": tokens}}).encode())


GRAMMAR = {"syntax": "lark", "definition": 'start: "a"'}
CUSTOM_TOOLS: dict[UpstreamApi, dict[str, Any]] = {
    "responses": {"type": "custom", "name": "patch", "format": {"type": "grammar", **GRAMMAR}},
    "chat": {
        "type": "custom",
        "custom": {"name": "patch", "format": {"type": "grammar", "grammar": GRAMMAR}},
    },
}


@pytest.mark.parametrize("api", CUSTOM_TOOLS)
def test_custom_tools_are_native_on_a_server_that_shows_them(api: UpstreamApi) -> None:
    def without(request: FakeRequest) -> FakeResponse:
        found = counted(request)
        return found if found.kind != "application/json" else FakeResponse(404)

    def renamed(request: FakeRequest) -> FakeResponse:
        """Reject the older name of the limit in Chat Completions."""
        if "max_tokens" in (request.body or {}):
            return FakeResponse(400, b'{"error": {"message": "Use max_completion_tokens."}}')
        return counted(request)

    async def scene() -> None:
        tool = CUSTOM_TOOLS[api]
        for responder in (counted, renamed, without):
            async with relaying(api, custom_tools=None) as (stage, fake):
                for _ in range(2):
                    fake.respond = responder
                    body = BODIES[api] | {"tools": [tool]}
                    reply, received = await send(stage, fake, api, body)
                    (sent,) = received[-1]["tools"]
                    notes = reply.headers.get("x-dovetail-diagnostics", "")
                    if responder is without:
                        assert (sent["type"], notes) == ("function", "custom_tools_converted")
                    else:
                        assert (sent, notes) == (tool, "")
                assert len(received) == 1  # probed once

    run(scene)
