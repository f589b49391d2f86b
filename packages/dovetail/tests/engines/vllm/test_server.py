"""A real vLLM behind `dovetail serve`: what clients can do with it, seen from both ends.

The weights are random, so nothing is asserted about sense: only about form, numbers and what the
engine reports of itself.
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
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm import VllmEngine, discover
from dovetail.engines.vllm.discovery import PROBES
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


def asks(text: str) -> Any:
    return [{"role": "user", "content": text}]


def endpoint(vllm: Vllm) -> Endpoint:
    return Endpoint.parse(vllm.url)


def test_what_it_says_about_itself(vllm: Vllm, tokenizer: Tokenizer) -> None:
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


async def said(vllm: Vllm, asked: EngineRequest) -> tuple[list[int], str | None]:
    client, ids, finish = CompletionsClient(endpoint(vllm), NAME), [], None
    async with aclosing(iter_deltas(client, asked)) as deltas:
        async for delta in deltas:
            ids += delta.ids
            finish = delta.finish
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
def test_the_token_that_ended_a_turn_is_told(
    vllm: Vllm, tokenizer: Tokenizer, syntax: ConstraintSyntax, grammar: str
) -> None:
    """A grammar makes the model end its turn; the stop ids are ours and its own."""
    asked = EngineRequest(
        f"end-{syntax}",
        PROMPT,
        50,
        Sampling(temperature=1.0),
        frozenset({END}),
        Constraint(syntax, grammar),
    )
    ids, finish = asyncio.run(said(vllm, asked))
    assert finish == "stop"
    assert ids[-1] in (END, 151643)
    assert tokenizer.decode(ids[:-1]) in ("yes", "no")


def test_a_seed_is_kept(vllm: Vllm) -> None:
    def once(seed: int) -> list[int]:
        sampling = Sampling(temperature=1.0, seed=seed)
        return asyncio.run(said(vllm, EngineRequest(f"seed-{seed}", PROMPT, 10, sampling)))[0]

    assert once(7) == once(7)
    assert once(7) != once(-8)


def test_what_does_not_fit_and_what_is_wrong(vllm: Vllm) -> None:
    long = EngineRequest("long", array("I", [5] * 41000), 5)
    with pytest.raises(ContextOverflow, match="maximum context length is 40960"):
        asyncio.run(said(vllm, long))
    wrong = EngineRequest("wrong", PROMPT, 5, constraint=Constraint("ebnf", "root ::= ("))
    with pytest.raises(InvalidRequest, match="grammar"):
        asyncio.run(said(vllm, wrong))


def test_a_priority_is_taken_and_a_salt_keeps_caches_apart(vllm: Vllm) -> None:
    async def cached(salt: str | None) -> int | None:
        client, told = CompletionsClient(endpoint(vllm), NAME), None
        prompt = array("I", range(3000, 3200))
        asked = EngineRequest(f"salt-{salt}", prompt, 2, priority=4, cache_salt=salt)
        async for delta in iter_deltas(client, asked):
            told = delta.cached
        return told

    async def main() -> list[int | None]:
        mine, foreign = uuid4().hex, uuid4().hex
        return [await cached(salt) for salt in (mine, mine, foreign)]

    first, second, foreign = asyncio.run(main())
    assert (first, foreign) == (0, 0)
    assert second == 192


def test_hanging_up_aborts(vllm: Vllm, server: Running) -> None:
    """vLLM counts no success for it, not even under its reason "abort"; it stops generating."""
    before = vllm.metric("generation_tokens_total"), vllm.metric("request_success_total")
    body = {"model": NAME, "max_tokens": 4000, "stream": True, "messages": asks("Go on and on.")}
    with server.open("POST", "/v1/messages", body) as response:
        while b"content_block_delta" not in response.readline():
            pass
        assert vllm.metric("num_requests_running") == 1
    until = time.monotonic() + 30
    while vllm.metric("num_requests_running"):
        assert time.monotonic() < until, "vLLM was not told"
    generated = vllm.metric("generation_tokens_total") - before[0]
    assert 0 < generated < 3000
    assert vllm.metric("request_success_total") == before[1]


def test_probabilities(server: Running, recorder: Recorder, tokenizer: Tokenizer) -> None:
    answer = server.openai().chat.completions.create(
        model=NAME, messages=asks("Hi"), max_tokens=8, logprobs=True, top_logprobs=3
    )
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert len(told.content) == 8
    for one in told.content:
        assert -40 < one.logprob < 0
        values = [top.logprob for top in one.top_logprobs]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) < 1
    heard = recorder.completions[-1]
    assert heard.request["return_tokens_as_token_ids"]  # whatever else has the same text
    assert [one.token for one in told.content] == [tokenizer.decode([id]) for id in heard.generated]
    assert [one.logprob for one in told.content] == heard.logprobs


def test_a_prompt_that_is_too_long_is_the_clients_error(server: Running) -> None:
    long = asks("word " * 45_000)
    with pytest.raises(anthropic.BadRequestError, match="too long"):
        server.anthropic().messages.create(model=NAME, max_tokens=10, messages=long)
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().chat.completions.create(model=NAME, max_tokens=10, messages=long)
    assert caught.value.code == "context_length_exceeded"


def test_a_stop_text_ends_the_turn(server: Running, recorder: Recorder) -> None:
    """What stops it is a part of what the same seed says without it."""
    asked: Any = {"model": NAME, "max_tokens": 60, "messages": asks("Stop?"), "seed": 3}
    client = server.openai()
    whole = client.chat.completions.create(**asked).choices[0].message.content or ""
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    answer = client.chat.completions.create(**{**asked, "max_tokens": 2000}, stop=[stop])
    text = answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert text == whole[: whole.index(stop)]
    full, cut = recorder.completions[-2:]
    common = min(len(full.generated), len(cut.generated))
    assert full.generated[:common] == cut.generated[:common]
    assert len(cut.generated) < 2000  # it was told to stop


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "warm": {"type": "boolean"}},
    "required": ["city", "warm"],
    "additionalProperties": False,
}


def test_an_answer_in_json(server: Running) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    answer = server.openai().chat.completions.create(
        model=NAME,
        messages=asks("Where?"),
        max_tokens=200,
        response_format=form,
        reasoning_effort="none",
    )
    assert answer.choices[0].finish_reason == "stop"
    told = json.loads(answer.choices[0].message.content or "")
    assert set(told) == {"city", "warm"}


def test_a_named_tool_is_called_and_its_call_replayed(server: Running, recorder: Recorder) -> None:
    """The tool that is not named would be as likely: the dice have no preference."""
    names = ("look_up", "forget")
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in names
    ]
    named: Any = {"type": "function", "function": {"name": "look_up"}}
    asked: Any = {"model": NAME, "tools": tools, "max_tokens": 300, "reasoning_effort": "none"}
    client, history = server.openai(), asks("How warm is it?")
    first = client.chat.completions.create(messages=history, tool_choice=named, **asked)
    message = first.choices[0].message
    calls: Any = message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert {call.function.name for call in calls} == {"look_up"}
    assert all(set(json.loads(call.function.arguments)) == {"city", "warm"} for call in calls)
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Yes."} for call in calls]
    history += [message.model_dump(exclude_none=True), *results]
    client.chat.completions.create(messages=history, **{**asked, "max_tokens": 5})
    call, after = recorder.completions[-2:]
    known = call.prompt + call.generated[:-1]
    assert call.finish == "stop"
    assert after.prompt[: len(known)] == known
