"""A real vLLM that offers its token API: the same tokens as through the completions API."""

import asyncio
from array import array
from collections.abc import Iterator
from uuid import uuid4

import anthropic
import pytest
from server_process import Running, served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import NAME, REAL, Vllm, running_vllm

from dovetail.engines.completions.client import CompletionsClient
from dovetail.engines.completions.constraint_probe import PROBES
from dovetail.engines.completions.generate import offers_generate
from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.vllm.discovery import discover
from dovetail.engines.vllm.engine import VllmEngine
from dovetail.net.http_client import Endpoint
from dovetail_model import ContextOverflow, InvalidRequest, Sampling
from dovetail_tokenizers import load_tokenizer

pytestmark = REAL

PROMPT = array("I", range(1000, 1100))
END = 151645


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    folder = tmp_path_factory.mktemp("vllm")
    model = tiny_qwen3(folder / "model")
    flags = ("--served-model-name", NAME, "--enable-prompt-tokens-details", "--enable-scale-out")
    with running_vllm(model, folder, *flags) as running:
        yield running


async def generate(vllm: Vllm, request: EngineRequest, *, api: bool = True) -> list[TokenDelta]:
    client = CompletionsClient(
        Endpoint("127.0.0.1", vllm.port), NAME, tokenizer=load_tokenizer(vllm.folder)
    )
    client.uses_generate = api
    try:
        return [delta async for delta in iter_deltas(client, request)]
    finally:
        client.abort_all()  # closes the idle connection


def ids(deltas: list[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_api_is_detected_and_probed(vllm: Vllm) -> None:
    async def check() -> None:
        endpoint = Endpoint("127.0.0.1", vllm.port)
        assert await offers_generate(endpoint)
        engine = VllmEngine(endpoint, await discover(endpoint), load_tokenizer(vllm.folder))
        await engine.start()
        assert engine.capabilities.constraints == tuple(PROBES)
        assert engine.capabilities.cached_tokens
        assert ((await engine.health()).facts or {})["api"] == "generate"
        await engine.stop()

    asyncio.run(check())


def test_tokens_are_those_of_the_completions_api(vllm: Vllm) -> None:
    sampling = Sampling(temperature=0.0, logprobs=2)
    both = [
        asyncio.run(generate(vllm, EngineRequest(uuid4().hex, PROMPT, 12, sampling), api=api))
        for api in (True, False)
    ]
    assert ids(both[0]) == ids(both[1])
    assert all(delta.exact for deltas in both for delta in deltas)
    first, second = ([one for delta in deltas for one in delta.logprobs] for deltas in both)
    assert [one.token for one in first] == [one.token for one in second]
    assert [one.logprob for one in first] == pytest.approx([one.logprob for one in second], 1e-3)
    assert [len(one.top) for one in first] == [2] * 12


def test_stop_token_and_constraint(vllm: Vllm) -> None:
    constraint = Constraint("ebnf", 'root ::= "yes" | "no"')
    sampling = Sampling(temperature=1.0)
    request = EngineRequest("end", PROMPT, 50, sampling, frozenset({END}), constraint)
    deltas = asyncio.run(generate(vllm, request))
    found = ids(deltas)
    assert (deltas[-1].finish, found[-1] in (END, 151643)) == ("stop", True)
    assert load_tokenizer(vllm.folder).decode(found[:-1]) in ("yes", "no")


def test_cached_tokens_salt_and_errors(vllm: Vllm) -> None:
    prompt, mine = array("I", range(3000, 3200)), uuid4().hex

    def cached(salt: str) -> int | None:
        request = EngineRequest(uuid4().hex, prompt, 2, cache_salt=salt, priority=4, session="s")
        return asyncio.run(generate(vllm, request))[-1].cached

    assert [cached(mine), cached(mine), cached(uuid4().hex)] == [0, 192, 0]
    with pytest.raises(ContextOverflow):
        asyncio.run(generate(vllm, EngineRequest("long", array("I", [5] * 41000), 5)))
    wrong = EngineRequest("wrong", PROMPT, 5, constraint=Constraint("ebnf", "root ::= ("))
    with pytest.raises(InvalidRequest, match="grammar"):
        asyncio.run(generate(vllm, wrong))


def test_messages_through_the_token_api(vllm: Vllm) -> None:
    with served("--engine", "vllm", "--engine-url", vllm.url) as running:
        check_two_turns(running)


def check_two_turns(server: Running) -> None:
    """The second turn extends the first one, whose tokens are cached."""
    client: anthropic.Anthropic = server.anthropic()
    first = client.messages.create(
        model=NAME, max_tokens=64, messages=[{"role": "user", "content": "word " * 100}]
    )
    assert first.usage.output_tokens > 0
    health = server.request("GET", "/health").json
    assert "generate" in str(health)
