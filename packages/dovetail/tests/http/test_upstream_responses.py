"""What an upstream returns reaches a client of the same API: its fields, items and events."""

import json
from typing import Any

import anthropic
import openai
from http_fixture import NAME, Stage, run
from recording_upstream import relaying
from upstream_environment import FakeRequest, FakeResponse

RETURNED = {
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
    "safety_identifier": "user-7",
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "truncation": "auto",
    "temperature": 0.25,
    "reasoning": {"effort": "medium", "summary": None},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "billing": {"payer": "developer"},
}
SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {
        "type": "search",
        "query": "dovetail",
        "sources": [{"type": "url", "url": "https://example.com/joint"}],
    },
}
MCP = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Found.", "annotations": []}],
}
RESPONSE: dict[str, Any] = {
    "id": "resp_7",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "other-name",
    "output": [SEARCH, MCP, MESSAGE],
    "usage": {"input_tokens": 7, "output_tokens": 2},
    **RETURNED,
}


def frames() -> list[dict[str, Any]]:
    started = RESPONSE | {"status": "in_progress", "output": [], "service_tier": "auto"}
    running = {**SEARCH, "status": "in_progress"}
    at = {"output_index": 0, "item_id": "ws_1"}
    return [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": running},
        {"type": "response.web_search_call.in_progress", **at},
        {"type": "response.web_search_call.searching", **at},
        {"type": "response.web_search_call.completed", **at},
        {"type": "response.output_item.done", "output_index": 0, "item": SEARCH},
        {"type": "response.output_item.done", "output_index": 1, "item": MCP},
        {"type": "response.output_text.delta", "output_index": 2, "item_id": "msg_1", "delta": "F"},
        {
            "type": "response.output_text.annotation.added",
            "output_index": 2,
            "item_id": "msg_1",
            "annotation": {
                "type": "url_citation",
                "url": "https://example.com/joint",
                "title": "Joint",
                "start_index": 0,
                "end_index": 1,
            },
        },
        {"type": "response.completed", "response": RESPONSE},
    ]


def respond(request: FakeRequest) -> FakeResponse:
    if request.path != "/v1/responses":
        return FakeResponse(404)
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames()).encode()
    return FakeResponse(body=body, kind="text/event-stream")


def respond_whole(request: FakeRequest) -> FakeResponse:
    if request.path != "/v1/responses":
        return FakeResponse(404)
    return FakeResponse(body=json.dumps(RESPONSE).encode())


def sdk(stage: Stage) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{stage.port}/v1", api_key="x")


def test_items_and_events_of_hosted_tools_reach_a_responses_client() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = respond
            tools: Any = [{"type": "web_search"}]
            client = sdk(stage)
            stream = await client.responses.create(
                model=NAME, input="Search.", tools=tools, stream=True
            )
            events = [event async for event in stream]
            kinds = [event.type for event in events]
            assert kinds[2:8] == [
                "response.output_item.added",
                "response.web_search_call.in_progress",
                "response.web_search_call.searching",
                "response.web_search_call.completed",
                "response.output_item.done",
                "response.output_item.added",
            ]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            last: Any = events[-1]
            assert [item.type for item in last.response.output] == [
                "web_search_call",
                "mcp_list_tools",
                "message",
            ]
            assert last.response.output[0].model_dump(exclude_none=True) == SEARCH
            await client.close()

    run(scene)


def test_hosted_items_are_part_of_a_response_without_a_stream() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            for responder in (respond, respond_whole):
                fake.respond = responder
                body = {"model": NAME, "input": "Search.", "tools": [{"type": "web_search"}]}
                reply = await stage.request("POST", "/v1/responses", body)
                assert [item["type"] for item in reply.json["output"]] == [
                    "web_search_call",
                    "mcp_list_tools",
                    "message",
                ]
                assert reply.json["output"][0] == SEARCH

    run(scene)


def test_a_hosted_item_in_the_history_is_sent_as_the_client_sent_it() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            user = {"role": "user", "content": "And?"}
            body = {"model": NAME, "input": [SEARCH, MESSAGE, user]}
            await stage.request("POST", "/v1/responses", body)
            assert fake.bodies("/v1/responses")[-1]["input"][0] == SEARCH

    run(scene)


def test_response_repeats_what_the_upstream_returned() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = respond
            reply = await stage.request("POST", "/v1/responses", {"model": NAME, "input": "Hi."})
            assert {name: reply.json[name] for name in RETURNED} == RETURNED
            assert (reply.json["model"], reply.json["id"] != "resp_7") == (NAME, True)

    run(scene)


def test_response_repeats_only_what_was_sent() -> None:
    """A field that the upstream rejects, and a tier that it does not return, are not repeated."""

    def strict(request: FakeRequest) -> FakeResponse:
        if "safety_identifier" in (request.body or {}):
            return FakeResponse(400, b'{"error": {"message": "Unknown: safety_identifier"}}')
        if request.method == "GET":
            return FakeResponse(404)
        plain = {name: value for name, value in RESPONSE.items() if name not in RETURNED}
        return FakeResponse(body=json.dumps(plain).encode())

    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = strict
            sent = {"safety_identifier": "user-7", "user": "u", "service_tier": "flex"}
            body = {"model": NAME, "input": "Hi.", **sent}
            reply = await stage.request("POST", "/v1/responses", body)
            found = {name: reply.json[name] for name in sent}
            assert found == {"safety_identifier": None, "user": "u", "service_tier": None}
            assert reply.headers["x-dovetail-diagnostics"] == "ignored:safety_identifier"

    run(scene)


def test_chat_repeats_the_tier_and_the_fingerprint_of_the_upstream() -> None:
    def tiered(request: FakeRequest) -> FakeResponse:
        if request.method == "GET":
            return FakeResponse(404)
        server = {"service_tier": "flex", "system_fingerprint": "fp_7"}
        choices = [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}]
        chunk = json.dumps({"choices": choices, **server})
        return FakeResponse(body=f"data: {chunk}\n\n".encode(), kind="text/event-stream")

    async def scene() -> None:
        async with relaying("chat") as (stage, fake):
            body = {"model": NAME, "messages": [{"role": "user", "content": "Hi."}]}
            reply = await stage.request(
                "POST", "/v1/chat/completions", body | {"service_tier": "flex"}
            )
            assert "service_tier" not in reply.json  # the upstream returned none
            fake.respond = tiered
            reply = await stage.request("POST", "/v1/chat/completions", body)
            assert (reply.json["service_tier"], reply.json["system_fingerprint"]) == (
                "flex",
                "fp_7",
            )
            client = sdk(stage)
            messages: Any = body["messages"]
            stream = await client.chat.completions.create(
                model=NAME, messages=messages, stream=True
            )
            async for chunk in stream:
                assert (chunk.service_tier, chunk.system_fingerprint) == ("flex", "fp_7")
            await client.close()

    run(scene)


WEB_SEARCH: Any = {
    "type": "web_search_20250305",
    "name": "web_search",
    "max_uses": 3,
    "allowed_domains": ["example.com"],
    "blocked_domains": [],
}


def test_search_of_the_upstream_reaches_a_messages_client_in_its_own_form() -> None:
    async def scene() -> None:
        async with relaying("responses", hosted_tools="web_search") as (stage, fake):
            fake.respond = respond
            client = anthropic.AsyncAnthropic(
                base_url=f"http://127.0.0.1:{stage.port}", api_key="x"
            )
            async with client.messages.stream(
                model=NAME,
                max_tokens=100,
                messages=[{"role": "user", "content": "Search."}],
                tools=[WEB_SEARCH],
                tool_choice={"type": "tool", "name": "web_search"},
            ) as stream:
                message = await stream.get_final_message()
            await client.close()
            sent = fake.bodies("/v1/responses")[-1]
            assert sent["tools"] == [
                {"type": "web_search", "filters": {"allowed_domains": ["example.com"]}}
            ]
            assert (sent["max_tool_calls"], sent["tool_choice"]) == (3, {"type": "web_search"})
            assert "web_search_call.action.sources" in sent["include"]
            found: Any = message.content
            assert [block.type for block in found] == [
                "server_tool_use",
                "web_search_tool_result",
                "text",
            ]
            assert found[0].input == {"query": "dovetail"}
            assert found[1].tool_use_id == found[0].id
            assert found[1].content[0].url == "https://example.com/joint"
            assert found[2].citations[0].url == "https://example.com/joint"
            assert message.stop_reason == "end_turn"
            assert message.usage.server_tool_use is not None
            assert message.usage.server_tool_use.web_search_requests == 1

    run(scene)


def test_annotations_reach_a_responses_client() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, fake):
            fake.respond = respond
            reply = await stage.request("POST", "/v1/responses", {"model": NAME, "input": "Hi."})
            (annotation,) = reply.json["output"][-1]["content"][0]["annotations"]
            assert (annotation["url"], annotation["end_index"]) == ("https://example.com/joint", 1)

    run(scene)


def test_search_that_the_upstream_does_not_run_is_rejected() -> None:
    async def scene() -> None:
        async with relaying("responses") as (stage, _):
            body = {
                "model": NAME,
                "max_tokens": 9,
                "messages": [{"role": "user", "content": "Search."}],
                "tools": [WEB_SEARCH],
            }
            reply = await stage.request("POST", "/v1/messages", body)
            assert reply.status == 400
            assert "web_search_20250305" in reply.json["error"]["message"]

    run(scene)
