"""One tenant has every handle of another tenant's session, and gets no data with any of them.

The session contains words that occur nowhere else. They must neither be returned to the other
tenant nor reach one of its prompts. The owner's second key sends the same requests and gets them.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import pytest
from http_fixture import CALL, NAME, Reply, Stage, run, serving
from websocket_fixture import request_response, socket_to

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.access.limits import RateLimits
from dovetail.http.options import HttpOptions

INPUT_WORD, REASONING_WORD = "KESTREL", "MAGPIE"
WORDS = (INPUT_WORD, REASONING_WORD)
OUTPUT = f"<think>\nIt is {REASONING_WORD}.\n</think>\n\nSurely.\n{CALL}"
OWNER, SAME, THIEF, NAMELESS = "key-owner", "key-same", "key-thief", "key-nameless"
HASHED = (("owner", OWNER), ("owner", SAME), ("thief", THIEF))
KEYS = ApiKeys([NAMELESS], [ApiKey(name, sha256(key.encode()).digest()) for name, key in HASHED])
TOOL: dict[str, Any] = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
MESSAGES_TOOL = {"name": "look_up", "input_schema": {"type": "object", "properties": {}}}


@dataclass(frozen=True)
class Loot:
    """Everything that could be seen on the wire of another tenant's session."""

    id: str
    items: list[dict[str, Any]]
    hidden: list[dict[str, Any]]
    content: list[dict[str, Any]]
    call: dict[str, Any]

    @property
    def reasoning(self) -> dict[str, Any]:
        return next(item for item in self.items if item["type"] == "reasoning")


Theft = Callable[[Loot], tuple[str, str, dict[str, Any]]]


def _responses(loot: Loot, *items: Any, **more: Any) -> tuple[str, str, dict[str, Any]]:
    body = {"model": NAME, "input": [*items, {"role": "user", "content": "And?"}], **more}
    return "POST", "/v1/responses", body


def _messages(loot: Loot, *reasoning: Any) -> tuple[str, str, dict[str, Any]]:
    """The owner's turn as it was returned, except for the reasoning, which is sealed."""
    content = [block for block in loot.content if "thinking" not in block["type"]]
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "rain"}
    messages = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": [*reasoning, *content]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": NAME, "max_tokens": 99, "tools": [MESSAGES_TOOL], "messages": messages}
    return "POST", "/v1/messages", body


def _seal(loot: Loot) -> str:
    return str(next(block["signature"] for block in loot.content if "signature" in block))


def _sealed_items(loot: Loot) -> list[dict[str, Any]]:
    """A turn as it was returned, with sealed reasoning and a user text without secrets."""
    output = {
        "type": "function_call_output",
        "call_id": loot.hidden[-1]["call_id"],
        "output": "rain",
    }
    return [{"role": "user", "content": "Hello?"}, *loot.hidden, output]


def _chat(loot: Loot) -> tuple[str, str, dict[str, Any]]:
    """Only the call: its id identifies the turn, and its text contains no secrets."""
    messages = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Surely.", "tool_calls": [loot.call]},
        {"role": "tool", "tool_call_id": loot.call["id"], "content": "rain"},
    ]
    tools = [{"type": "function", "function": TOOL}]
    return "POST", "/v1/chat/completions", {"model": NAME, "messages": messages, "tools": tools}


THEFTS: dict[str, Theft] = {
    "reads it": lambda loot: ("GET", f"/v1/responses/{loot.id}", {}),
    "reads what was asked": lambda loot: ("GET", f"/v1/responses/{loot.id}/input_items", {}),
    "goes on from it": lambda loot: _responses(loot, previous_response_id=loot.id),
    "counts what it has": lambda loot: (
        "POST",
        "/v1/responses/input_tokens",
        {"model": NAME, "previous_response_id": loot.id},
    ),
    "compacts it": lambda loot: (
        "POST",
        "/v1/responses/compact",
        {"model": NAME, "previous_response_id": loot.id},
    ),
    "names its thought": lambda loot: _responses(
        loot, {"type": "item_reference", "id": loot.reasoning["id"]}
    ),
    "sends its sealed thought": lambda loot: _responses(loot, *_sealed_items(loot)),
    "sends the seal of a thought": lambda loot: _messages(
        loot, {"type": "thinking", "thinking": "", "signature": _seal(loot)}
    ),
    "sends the seal as one that was hidden": lambda loot: _messages(
        loot, {"type": "redacted_thinking", "data": _seal(loot)}
    ),
    "sends the id of a call": lambda loot: _messages(loot),
    "sends the id of a call in another API": _chat,
}
#: Handles that return no secret words even to their owner.
COUNTS = ("counts what it has",)


@pytest.mark.parametrize("thief", [THIEF, NAMELESS])
def test_no_handle_returns_data_to_another_tenant(thief: str) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            loot = await _session(stage)
            for name, theft in THEFTS.items():
                reply, prompts = await _try(stage, thief, theft(loot))
                assert not _is_leaked(reply, prompts), name
            assert _is_leaked(*await _try(stage, SAME, THEFTS["reads it"](loot)))

    run(scene)


def test_every_handle_returns_data_to_its_owner() -> None:
    """Without this check, the test above would prove nothing."""

    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            loot = await _session(stage)
            for name, theft in THEFTS.items():
                reply, prompts = await _try(stage, SAME, theft(loot))
                assert reply.status == 200, (name, reply.body)
                assert _is_leaked(reply, prompts) or name in COUNTS, name

    run(scene)


def test_ids_of_another_tenant_look_like_unknown_ids() -> None:
    """A tenant cannot even find out whether a response of another tenant exists."""

    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            loot = await _session(stage)
            made_up = "resp_" + "0" * (len(loot.id) - 5)
            tries: list[tuple[str, str, dict[str, Any]]] = [
                ("GET", "", {}),
                ("GET", "/input_items", {}),
                ("POST", "/cancel", {}),
                ("DELETE", "", {}),
            ]
            for method, behind, body in tries:
                theirs, none = [
                    (await _try(stage, THIEF, (method, f"/v1/responses/{id}{behind}", body)))[0]
                    for id in (loot.id, made_up)
                ]
                assert theirs.status == none.status == 404, method
                assert theirs.body == none.body.replace(made_up.encode(), loot.id.encode())
            for id in (loot.id, made_up):
                reply, _ = await _try(stage, THIEF, _responses(loot, previous_response_id=id))
                assert (reply.status, reply.json["error"]["code"]) == (
                    400,
                    "previous_response_not_found",
                )
            assert (await _try(stage, OWNER, THEFTS["reads it"](loot)))[0].status == 200

    run(scene)


def test_websocket_returns_no_data_to_another_tenant() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            loot = await _session(stage)
            before = len(stage.engine.requests)
            async with socket_to(stage, authorization=f"Bearer {THIEF}") as socket:
                events = await request_response(socket, previous_response_id=loot.id)
                assert events[-1]["error"]["code"] == "previous_response_not_found"
                events = await request_response(socket, input=_sealed_items(loot))
                assert not any(word in json.dumps(events) for word in WORDS)
            assert not any(word in text for word in WORDS for text in _prompts(stage, before))
            async with socket_to(stage, authorization=f"Bearer {SAME}") as socket:
                events = await request_response(socket, previous_response_id=loot.id)
                assert events[-1]["type"] == "response.completed"

    run(scene)


def test_sessions_of_two_tenants_with_the_same_id_are_separate() -> None:
    """Neither the session id nor the text reveals that the other tenant used it."""

    async def scene() -> None:
        async with serving(HttpOptions(keys=KEYS)) as stage:
            body = {"model": NAME, "max_tokens": 9, "messages": [_user("Hello there, all of you.")]}
            common_tokens = []
            for key in (OWNER, THIEF, OWNER):
                reply = await stage.request(
                    "POST",
                    "/v1/messages",
                    body,
                    x_api_key=key,
                    x_claude_code_session_id="one-session",
                    x_dovetail_debug="prefix",
                )
                common_tokens.append(reply.headers["x-dovetail-prefix-common"])
            assert common_tokens[:2] == ["0", "0"]
            assert int(common_tokens[2]) > 0
            one, two, again = (request.cache_salt for request in stage.engine.requests)
            assert one == again != two
            numbers = (await stage.request("GET", "/metrics")).body.decode()
            assert not any(word in numbers for word in ("owner", "thief", "one-session"))

    run(scene)


def test_exhausted_limit_does_not_affect_other_tenants() -> None:
    async def scene() -> None:
        narrow = RateLimits(requests=2, concurrent=1)
        hashed = [ApiKey(name, sha256(key.encode()).digest(), narrow) for name, key in HASHED]
        async with serving(HttpOptions(keys=ApiKeys([], hashed))) as stage:
            body = {"model": NAME, "messages": [_user("Hi")]}
            request = "POST", "/v1/chat/completions", body
            greedy = [(await _try(stage, THIEF, request))[0].status for _ in range(6)]
            assert greedy.count(429) >= 3
            assert (await _try(stage, OWNER, request))[0].status == 200

    run(scene)


async def _session(stage: Stage) -> Loot:
    """The owner's session over all three APIs, as seen on the wire."""
    stage.engine.plan = stage.engine.script(OUTPUT, OUTPUT, OUTPUT, "Well.")
    common: dict[str, Any] = {"model": NAME, "tools": [{**TOOL, "type": "function"}]}
    first, plain = [
        await _post(stage, "/v1/responses", {**common, "input": [_user(question)], **more})
        for question, more in (
            (f"Where is the {INPUT_WORD}?", {}),
            ("Hello?", {"include": ["reasoning.encrypted_content"], "store": False}),
        )
    ]
    message = await _post(
        stage,
        "/v1/messages",
        {
            "model": NAME,
            "max_tokens": 99,
            "tools": [MESSAGES_TOOL],
            "messages": [_user("Hello?")],
        },
    )
    use = message["content"][-1]
    function = {"name": use["name"], "arguments": json.dumps(use["input"])}
    return Loot(
        first["id"],
        first["output"],
        [_without_summary(item) for item in plain["output"]],
        message["content"],
        {"id": use["id"], "type": "function", "function": function},
    )


async def _post(stage: Stage, path: str, body: dict[str, Any]) -> Any:
    reply = await stage.request("POST", path, body, x_api_key=OWNER)
    assert reply.status == 200, reply.body
    return reply.json


async def _try(
    stage: Stage, key: str, request: tuple[str, str, dict[str, Any]]
) -> tuple[Reply, list[str]]:
    """Return the response and the prompts that were rendered for it."""
    method, path, body = request
    before = len(stage.engine.requests)
    async with asyncio.timeout(20):
        reply = await stage.request(method, path, body or b"", x_api_key=key)
    return reply, _prompts(stage, before)


def _prompts(stage: Stage, first: int) -> list[str]:
    return [stage.engine.tokenizer.decode(one.prompt) for one in stage.engine.requests[first:]]


def _is_leaked(reply: Reply, prompts: list[str]) -> bool:
    return any(word in text for word in WORDS for text in (reply.body.decode(), *prompts))


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _without_summary(item: dict[str, Any]) -> dict[str, Any]:
    """Reasoning that only its seal contains."""
    sealed = {"type", "id", "encrypted_content"}
    if item["type"] != "reasoning":
        return item
    return {**{name: value for name, value in item.items() if name in sealed}, "summary": []}
