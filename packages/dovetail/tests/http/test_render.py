"""The render endpoints return the prompt that the engine receives, and have no effects."""

from array import array
from hashlib import sha256
from typing import Any

import pytest
from http_fixture import CALL, NAME, Stage, run, serving

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.block_hashes import hash_dynamo_blocks, hash_vllm_blocks, to_event_hash

TOOL_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
KEYS = ("key-1", "key-2")
QUESTION = "What is the weather in Oslo?"

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/messages": {
        "model": NAME,
        "max_tokens": 100,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"name": "look_up", "input_schema": TOOL_SCHEMA}],
    },
    "/v1/responses": {
        "model": NAME,
        "instructions": "Be brief.",
        "input": QUESTION,
        "tools": [{"type": "function", "name": "look_up", "parameters": TOOL_SCHEMA}],
    },
    "/v1/chat/completions": {
        "model": NAME,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION},
        ],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": TOOL_SCHEMA}}],
    },
}


async def render(stage: Stage, path: str, body: dict[str, Any], query: str = "") -> Any:
    reply = await stage.request("POST", f"{path}/render{query}", body)
    assert reply.status == 200, reply.body
    return reply.json


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
def test_ids_are_those_of_the_engine(path: str, stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = {**REQUESTS[path], "stream": stream}
            rendered = await render(stage, path, body)
            assert stage.engine.requests == []
            await stage.request("POST", path, body)
            (sent,) = stage.engine.requests
            assert rendered["token_ids"] == sent.prompt.tolist()
            assert rendered["count"] == len(sent.prompt)
            assert (rendered["model"], rendered["max_model_len"]) == (NAME, 4096)
            assert "hashes" not in rendered

    run(scene)


def second_request(first: dict[str, Any]) -> dict[str, Any]:
    """Continue a response of the Messages API with the result of its call."""
    call = next(block for block in first["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Rain."}
    messages = [
        *REQUESTS["/v1/messages"]["messages"],
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [result]},
    ]
    return {**REQUESTS["/v1/messages"], "messages": messages}


def test_recorded_turns_are_spliced_and_nothing_is_recorded() -> None:
    store = MemoryLedgerStore()

    async def scene() -> None:
        async with serving(ledger=Ledger(store)) as stage:
            # Template and model differ in the spaces of the call, so only a splice is exact.
            stage.engine.plan = stage.engine.script(CALL.replace('": ', '":  '), "It rains.")
            first = (await stage.request("POST", "/v1/messages", REQUESTS["/v1/messages"])).json
            body = second_request(first)
            before = store_contents(store)
            rendered = [await render(stage, "/v1/messages", body) for _ in range(2)]
            assert store_contents(store) == before
            await stage.request("POST", "/v1/messages", body)
            assert store_contents(store) != before  # the comparison can fail
            sent = stage.engine.requests[-1].prompt.tolist()
            assert [one["token_ids"] for one in rendered] == [sent, sent]
            generated = stage.engine.tokenizer.encode(CALL.replace('": ', '":  '))
            assert contains(sent, generated)

    run(scene)


def store_contents(store: MemoryLedgerStore) -> str:
    return repr({name: vars_of(getattr(store, name)) for name in slots_of(store)})


def slots_of(value: object) -> list[str]:
    return list(getattr(value, "__dict__", {})) or list(getattr(type(value), "__slots__", ()))


def vars_of(value: object) -> object:
    """Return what a container holds; caches of the store are compared by their items."""
    names = slots_of(value)
    return {name: getattr(value, name) for name in names} if names else value


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[at : at + len(part)] == part for at in range(len(ids)))


def test_prefix_diagnostics_are_not_affected() -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = REQUESTS["/v1/messages"]
            other = {**body, "system": "Another text."}
            headers = {"x_session_id": "one", "x_dovetail_debug": "prefix"}
            await stage.request("POST", "/v1/messages", body, **headers)
            await stage.request("POST", "/v1/messages/render", other, **headers)
            reply = await stage.request("POST", "/v1/messages", body, **headers)
            total = reply.headers["x-dovetail-prefix-total"]
            assert reply.headers["x-dovetail-prefix-common"] == total

    run(scene)


def test_history_of_stored_responses_is_inserted() -> None:
    async def scene() -> None:
        async with serving() as stage:
            first = (await stage.request("POST", "/v1/responses", REQUESTS["/v1/responses"])).json
            body = {"model": NAME, "previous_response_id": first["id"], "input": "And now?"}
            rendered = await render(stage, "/v1/responses", body)
            await stage.request("POST", "/v1/responses", body)
            assert rendered["token_ids"] == stage.engine.requests[-1].prompt.tolist()

    run(scene)


def test_prompt_of_a_summary_precedes_a_compacted_response() -> None:
    body = {
        **REQUESTS["/v1/messages"],
        "messages": [{"role": "user", "content": "word " * 200}],
        "context_management": {
            "edits": [
                {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 100}}
            ]
        },
    }

    async def scene() -> None:
        async with serving() as stage:
            rendered = await render(stage, "/v1/messages", body)
            await stage.request("POST", "/v1/messages", body)
            summary, response = stage.engine.requests
            assert rendered["token_ids"] == summary.prompt.tolist() != response.prompt.tolist()

    run(scene)


def test_block_hashes() -> None:
    async def scene() -> None:
        async with serving() as stage:
            path, body = "/v1/messages", REQUESTS["/v1/messages"]
            rendered = await render(stage, path, body, "?block_hashes=dynamo")
            ids = array("I", rendered["token_ids"])
            blocks, sequences = hash_dynamo_blocks(ids, 16)
            assert rendered["hashes"] == {
                "algorithm": "dynamo",
                "seed": 1337,
                "block_size": 16,
                "block_hashes": blocks,
                "sequence_hashes": sequences,
            }
            query = "?block_hashes=vllm-sha256_cbor&seed=0&block_size=32"
            rendered = await render(stage, path, body, query)
            digests = hash_vllm_blocks(ids, 32, "sha256_cbor", seed="0")
            assert len(digests) == len(ids) // 32
            assert rendered["hashes"] == {
                "algorithm": "vllm-sha256_cbor",
                "seed": "0",
                "block_size": 32,
                "block_hashes": [to_event_hash(one) for one in digests],
                "digests": [one.hex() for one in digests],
            }

    run(scene)


def test_hashes_have_the_salt_that_the_engine_receives() -> None:
    keys = ApiKeys(hashed=[ApiKey(key, sha256(key.encode()).digest()) for key in KEYS])

    async def scene() -> None:
        async with serving(HttpOptions(keys=keys)) as stage:
            found = {}
            for key in KEYS:
                for query in ("?block_hashes=dynamo", "?block_hashes=vllm-sha256"):
                    path = f"/v1/messages/render{query}"
                    reply = await stage.request(
                        "POST", path, REQUESTS["/v1/messages"], x_api_key=key
                    )
                    found[key, query] = reply.json
                await stage.request("POST", "/v1/messages", REQUESTS["/v1/messages"], x_api_key=key)
            for key, sent in zip(KEYS, stage.engine.requests, strict=True):
                salted = hash_dynamo_blocks(sent.prompt, 16, cache_salt=sent.cache_salt)
                rendered = found[key, "?block_hashes=dynamo"]["hashes"]
                assert sent.cache_salt
                assert rendered["sequence_hashes"] == salted.sequences
                digests = hash_vllm_blocks(sent.prompt, 16, cache_salt=sent.cache_salt)
                rendered = found[key, "?block_hashes=vllm-sha256"]["hashes"]
                assert rendered["digests"] == [one.hex() for one in digests]

    run(scene)


def test_hashes_of_vllm_for_an_adapter_are_rejected() -> None:
    async def scene() -> None:
        async with serving() as stage:
            entry = stage.app.service.entries[0]
            assert isinstance(entry, TokenModel)
            object.__setattr__(entry, "adapter", "some-adapter")
            body = REQUESTS["/v1/messages"]
            path = "/v1/messages/render?block_hashes=vllm-sha256"
            reply = await stage.request("POST", path, body)
            assert reply.status == 400
            assert "some-adapter" in reply.json["error"]["message"]
            rendered = await render(stage, "/v1/messages", body, "?block_hashes=dynamo")
            ids = array("I", rendered["token_ids"])
            expected = hash_dynamo_blocks(ids, 16, lora_name="some-adapter").sequences
            assert rendered["hashes"]["sequence_hashes"] == expected

    run(scene)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("?block_hashes=md5", "`block_hashes` must be one of dynamo, vllm-sha256"),
        ("?block_hashes=dynamo&block_size=0", "`block_size` must be between 1 and"),
        ("?block_hashes=dynamo&block_size=-1", "`block_size` must be between 1 and"),
        ("?block_hashes=dynamo&block_size=1000000", "`block_size` must be between 1 and"),
        ("?block_hashes=dynamo&seed=one", "`seed` must be between 0 and"),
        ("?block_hashes=dynamo&seed=18446744073709551616", "`seed` must be between 0 and"),
        ("?block_hashes=vllm-xxhash", "`seed` is required with vllm-xxhash"),
        ("?block_hashes=vllm-sha256&seed=" + "x" * 257, "`seed` must have at most 256"),
        ("?block_size=16", "`block_size` requires `block_hashes`"),
        ("?seed=0", "`seed` requires `block_hashes`"),
    ],
)
def test_invalid_options(query: str, message: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            for path, body in REQUESTS.items():
                reply = await stage.request("POST", f"{path}/render{query}", body)
                assert reply.status == 400
                error = reply.json["error"]
                assert message in error["message"]
                assert error["type"] == "invalid_request_error"
                assert reply.json.get("type") == ("error" if "messages" in path else None)

    run(scene)


@pytest.mark.parametrize("path", REQUESTS)
def test_errors_and_access_are_those_of_the_api(path: str) -> None:
    keys = ApiKeys(KEYS)

    async def scene() -> None:
        async with serving(HttpOptions(keys=keys), max_context=60) as stage:
            body = REQUESTS[path]
            for sent in (body, {**body, "model": "unknown"}, {"model": NAME}):
                for headers in ({}, {"x_api_key": "key-1"}):
                    rendered = await stage.request("POST", f"{path}/render", sent, **headers)
                    reply = await stage.request("POST", path, sent, **headers)
                    assert rendered.status == reply.status >= 400
                    assert rendered.json["error"] == reply.json["error"]

    run(scene)
