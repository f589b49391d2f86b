"""A real vLLM behind `dovetail serve`: what clients can do with it, checked at both ends.

The weights are random, so the tests check only the form, the numbers and what the engine reports
about itself.
"""

import asyncio
import json
import math
import time
from array import array
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import anthropic
import openai
import pytest
from recording_proxy import Recorder, recording
from server_process import Running, served
from vllm_environment import NAME, REAL, Vllm, shared_vllm

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.constraint_probe import PROBES
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.discovery import discover
from dovetail.engines.vllm.engine import VllmEngine
from dovetail.net.http_client import Endpoint
from dovetail_model import ContextOverflow, InvalidRequest, Sampling
from dovetail_tokenizers import Tokenizer, load_tokenizer

pytestmark = REAL

PROMPT = array("I", range(1000, 1100))
END = 151645


@pytest.fixture(scope="module")
def vllm(pytestconfig: pytest.Config) -> Vllm:
    return shared_vllm(pytestconfig)


@pytest.fixture(scope="module")
def tokenizer(vllm: Vllm) -> Tokenizer:
    return load_tokenizer(vllm.folder)


@pytest.fixture(scope="module")
def recorder(vllm: Vllm) -> Iterator[Recorder]:
    with recording(vllm.port) as recorder:
        yield recorder


@pytest.fixture(scope="module")
def server(recorder: Recorder) -> Iterator[Running]:
    with served("--engine", "vllm", "--engine-url", f"{recorder.url}/v1") as running:
        yield running


def user_message(text: str) -> Any:
    return [{"role": "user", "content": text}]


def endpoint(vllm: Vllm) -> Endpoint:
    return Endpoint.parse(vllm.url)


def test_discovery(vllm: Vllm, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        remote = await discover(endpoint(vllm))
        assert (remote.name, remote.names) == (NAME, (NAME,))
        assert remote.root == str(vllm.folder)
        assert remote.context_length == 40960
        assert remote.version
        engine = VllmEngine(endpoint(vllm), remote, tokenizer)
        await engine.start()
        state = await engine.health()
        assert state.ready
        assert engine.capabilities.constraints == tuple(PROBES)
        assert engine.capabilities.cached_tokens
        await engine.stop()

    asyncio.run(main())


async def generate(vllm: Vllm, request: EngineRequest) -> tuple[list[int], str | None]:
    client, ids, finish = CompletionsClient(endpoint(vllm), NAME), [], None
    try:
        async with aclosing(iter_deltas(client, request)) as deltas:
            async for delta in deltas:
                ids += delta.ids
                finish = delta.finish
    finally:
        client.abort_all()  # it keeps its connection for another request
    return ids, finish


@pytest.mark.parametrize(
    ("syntax", "grammar"),
    [
        ("ebnf", 'root ::= "yes" | "no"'),
        (
            "structural_tag",
            '{"type":"structural_tag","format":{"type":"regex","pattern":"yes|no"}}',
        ),
    ],
)
def test_stop_token_is_reported(
    vllm: Vllm, tokenizer: Tokenizer, syntax: ConstraintSyntax, grammar: str
) -> None:
    """A grammar makes the model end its turn; the stop ids are Dovetail's and the model's own."""
    request = EngineRequest(
        f"end-{syntax}",
        PROMPT,
        50,
        Sampling(temperature=1.0),
        frozenset({END}),
        Constraint(syntax, grammar),
    )
    ids, finish = asyncio.run(generate(vllm, request))
    assert finish == "stop"
    assert ids[-1] in (END, 151643)
    assert tokenizer.decode(ids[:-1]) in ("yes", "no")


def test_seed_is_reproducible(vllm: Vllm) -> None:
    def once(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return asyncio.run(generate(vllm, EngineRequest(f"seed-{seed}", PROMPT, 10, sampling)))[0]

    assert once(7) == once(7)
    assert once(7) != once(-8)


def test_context_overflow_and_invalid_requests(vllm: Vllm) -> None:
    long = EngineRequest("long", array("I", [5] * 41000), 5)
    with pytest.raises(ContextOverflow, match="maximum context length is 40960"):
        asyncio.run(generate(vllm, long))
    wrong = EngineRequest("wrong", PROMPT, 5, constraint=Constraint("ebnf", "root ::= ("))
    with pytest.raises(InvalidRequest, match="grammar"):
        asyncio.run(generate(vllm, wrong))


def test_priority_is_accepted_and_salts_separate_caches(vllm: Vllm) -> None:
    async def cached(salt: str | None) -> int | None:
        client, cached_tokens = CompletionsClient(endpoint(vllm), NAME), None
        prompt = array("I", range(3000, 3200))
        request = EngineRequest(f"salt-{salt}", prompt, 2, priority=4, cache_salt=salt)
        async for delta in iter_deltas(client, request):
            cached_tokens = delta.cached
        client.abort_all()
        return cached_tokens

    async def main() -> list[int | None]:
        mine, foreign = uuid4().hex, uuid4().hex
        return [await cached(salt) for salt in (mine, mine, foreign)]

    first, second, foreign = asyncio.run(main())
    assert (first, foreign) == (0, 0)
    assert second == 192


def test_disconnect_aborts(vllm: Vllm, server: Running) -> None:
    """vLLM counts no success for it, not even with the reason "abort"; it stops generating."""
    before = vllm.metric("generation_tokens_total"), vllm.metric("request_success_total")
    body = {
        "model": NAME,
        "max_tokens": 4000,
        "stream": True,
        "messages": user_message("Go on and on."),
    }
    with server.open("POST", "/v1/messages", body) as response:
        assert any(b"content_block_delta" in line for line in response)
        assert vllm.metric("num_requests_running") == 1
    until = time.monotonic() + 30
    while vllm.metric("num_requests_running"):
        assert time.monotonic() < until, "vLLM did not abort the request"
    generated = vllm.metric("generation_tokens_total") - before[0]
    assert 0 < generated < 3000
    assert vllm.metric("request_success_total") == before[1]


def test_logprobs(server: Running, recorder: Recorder, tokenizer: Tokenizer) -> None:
    response = server.openai().chat.completions.create(
        model=NAME, messages=user_message("Hi"), max_tokens=8, logprobs=True, top_logprobs=3
    )
    logprobs = response.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 8
    for one in logprobs.content:
        assert -40 < one.logprob < 0
        values = [top.logprob for top in one.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) < 1
    completion = recorder.completions[-1]
    # identifies tokens that have the same text
    assert completion.request["return_tokens_as_token_ids"]
    assert [one.token for one in logprobs.content] == [
        tokenizer.decode([id]) for id in completion.generated
    ]
    assert [one.logprob for one in logprobs.content] == completion.logprobs


def test_prompt_too_long_is_a_client_error(server: Running) -> None:
    long = user_message("word " * 45_000)
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        server.anthropic().messages.create(model=NAME, max_tokens=10, messages=long)
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model=NAME, max_tokens=10, messages=long)
    assert caught.value.code == "context_length_exceeded"


def test_stop_string_ends_the_turn(server: Running, recorder: Recorder) -> None:
    """The stop string is a part of the output that the same seed generates without it."""
    fields: Any = {"model": NAME, "max_tokens": 60, "messages": user_message("Stop?"), "seed": 3}
    client = server.openai()
    whole = client.chat.completions.create(**fields).choices[0].message.content or ""
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    response = client.chat.completions.create(**{**fields, "max_tokens": 2000}, stop=[stop])
    text = response.choices[0].message.content
    assert response.choices[0].finish_reason == "stop"
    assert text == whole[: whole.index(stop)]
    full, stopped = recorder.completions[-2:]
    common = min(len(full.generated), len(stopped.generated))
    assert full.generated[:common] == stopped.generated[:common]
    assert len(stopped.generated) < 2000  # it was stopped


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}


def test_json_schema_response(server: Running) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    response = server.openai().chat.completions.create(
        model=NAME,
        messages=user_message("Where?"),
        max_tokens=200,
        response_format=form,
        reasoning_effort="none",
    )
    assert response.choices[0].finish_reason == "stop"
    content = json.loads(response.choices[0].message.content or "")
    assert set(content) == {"city", "warm"}


def test_named_tool_is_called_and_replayed(server: Running, recorder: Recorder) -> None:
    """The other tool would be just as likely: the weights are random."""
    names = ("look_up", "forget")
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names
    ]
    named: Any = {"type": "function", "function": {"name": "look_up"}}
    fields: Any = {"model": NAME, "tools": tools, "max_tokens": 300, "reasoning_effort": "none"}
    client, history = server.openai(), user_message("How warm is it?")
    first = client.chat.completions.create(messages=history, tool_choice=named, **fields)
    message = first.choices[0].message
    calls: Any = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert {call.function.name for call in calls} == {"look_up"}
    assert all(set(json.loads(call.function.arguments)) == {"city", "warm"} for call in calls)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Yes."} for call in calls]
    history += [message.model_dump(exclude_none=True), *results]
    client.chat.completions.create(messages=history, **{**fields, "max_tokens": 5})
    call, after = recorder.completions[-2:]
    known = call.prompt + call.generated[:-1]
    assert call.finish == "stop"
    assert after.prompt[: len(known)] == known
