"""The embedded engine with real weights: outputs, exact ids, cancellation."""

import asyncio
import json
import os
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import msgspec
import pytest
from llamacpp_environment import (
    CONTEXT,
    END,
    WEIGHTS,
    Player,
    all_ids,
    collect,
    load_tokenizer,
    need_weights,
    request,
)

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.llamacpp import LlamaCppEngine, LlamaCppOptions
from dovetail.engines.token_stream import iter_deltas
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import ContextOverflow, InvalidRequest, Unsupported

FRANCE = "The capital of France is"
HERMES = r"""
root ::= "<tool_call>\n" call "\n</tool_call>"
call ::= "{\"name\": \"read_file\", \"arguments\": {\"path\": \"" name "\"}}"
name ::= [a-z]{1,8} ".py"
"""


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    need_weights()
    tokenizer = load_tokenizer()
    # One thread: several threads synchronize, which is slow on a busy machine.
    options = LlamaCppOptions(slots=2, batch=64, threads=1)
    engine = LlamaCppEngine(WEIGHTS, tokenizer, context_length=CONTEXT, options=options)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield Player(runner, engine, tokenizer)
        runner.run(engine.stop())


def test_real_output(player: Player) -> None:
    deltas = player.play(request(player.ids(FRANCE), 8))
    text = player.tokenizer.decode(all_ids(deltas))
    assert "Paris" in text
    assert deltas[-1].finish == "length"
    assert len(all_ids(deltas)) == 8


def test_turn_ends_with_its_stop_id(player: Player) -> None:
    deltas = player.play(request(player.chat("What is the capital of France?")))
    ids = all_ids(deltas)
    assert ids[-1] == END
    assert END not in ids[:-1]
    assert [delta.finish for delta in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert player.tokenizer.encode(player.tokenizer.decode(ids)) == ids


def test_stop_id_unknown_to_llamacpp_ends_the_turn(player: Player) -> None:
    plain = all_ids(player.play(request(player.ids(FRANCE), 8)))
    base = request(player.ids(FRANCE), 8)
    stop = plain[2]
    deltas = player.play(msgspec.structs.replace(base, stop_ids=frozenset({stop})))
    assert all_ids(deltas) == plain[: plain.index(stop) + 1]
    assert deltas[-1].finish == "stop"


def test_second_turn_hits_the_cache(player: Player) -> None:
    prompt = player.chat("Name three colours.")
    first = player.play(request(prompt, 12, session="colours"))
    generated = all_ids(first)
    other = player.play(request(player.chat("Name a river."), 4, session="rivers"))
    assert other[0].cached is not None
    grown = prompt + array("i", generated) + player.ids("\nAnd one more:")
    again = player.play(request(grown, 4, session="colours"))
    # The last id was sampled, but its KV entries were not computed.
    assert again[0].cached is not None
    assert again[0].cached >= len(prompt) + len(generated) - 1
    assert [delta.cached for delta in again[1:]] == [None] * (len(again) - 1)


def test_more_sessions_than_slots_retain_their_cache(player: Player) -> None:
    prompts = [player.chat(f"Tell me about the number {n}. " * 8) for n in range(3)]
    for number, prompt in enumerate(prompts):
        player.play(request(prompt, 1, session=f"s{number}"))
    again = player.play(request(prompts[0], 1, session="s0"))
    assert again[0].cached is not None
    assert again[0].cached >= len(prompts[0]) - 1


def test_ids_of_split_characters_are_recovered(player: Player) -> None:
    deltas = player.play(request(player.ids("Say it:"), grammar='root ::= "a🦜é漢b"'))
    ids = all_ids(deltas)
    output = b"".join(player.tokenizer.bytes_of(id) for id in ids[:-1])
    assert output.decode() == "a🦜é漢b"
    assert len(ids) > 6  # more than the stream alone contains
    assert all(delta.exact for delta in deltas)
    # The ids are those in llama.cpp's own cache.
    prompt = player.ids("Say it:") + array("i", ids)
    again = player.play(request(prompt, 1))
    assert again[0].cached == len(prompt) - 1


@pytest.mark.parametrize("limit", range(1, 11))
def test_limit_inside_a_character(player: Player, limit: int) -> None:
    whole_request = request(player.ids("Say it:"), grammar='root ::= "a🦜é漢b"')
    whole = all_ids(player.play(whole_request))
    truncated = player.play(request(whole_request.prompt, limit, grammar='root ::= "a🦜é漢b"'))
    assert all_ids(truncated) == whole[:limit]
    assert truncated[-1].finish == "length"
    assert all(delta.exact for delta in truncated)


def test_ambiguous_character_is_marked(player: Player) -> None:
    deltas = player.play(request(player.ids("Say it:"), grammar='root ::= "🥰!"'))
    assert player.tokenizer.decode(all_ids(deltas)[:-1]) == "🥰!"
    assert [delta.exact for delta in deltas if delta.ids].count(False) == 1
    health = player.runner.run(player.engine.health())
    assert health.facts is not None
    assert health.facts["ids_doubtful"] == 1
    assert health.facts["ids_recovered"] > 0


def test_grammar_forces_a_call(player: Player) -> None:
    deltas = player.play(request(player.chat("Read a file."), grammar=HERMES))
    text = player.tokenizer.decode(all_ids(deltas)[:-1])
    inner = text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    assert json.loads(inner)["name"] == "read_file"
    assert deltas[-1].finish == "stop"


def test_one_logprob_per_id(player: Player) -> None:
    deltas = player.play(request(player.ids(FRANCE), 4, logprobs=2))
    for delta in deltas:
        assert len(delta.logprobs) == len(delta.ids)
    first = deltas[0].logprobs[0]
    assert first.token == player.tokenizer.decode(deltas[0].ids[:1])
    assert len(first.top) == 2
    assert first.top[0] == (first.token, first.logprob)


def test_logprobs_of_omitted_ids(player: Player) -> None:
    deltas = player.play(request(player.ids("Say:"), logprobs=0, grammar='root ::= "🦜"'))
    logprobs = [one for delta in deltas for one in delta.logprobs]
    assert len(logprobs) == len(all_ids(deltas)) >= 3  # the end of the turn may follow
    assert [one.logprob for one in logprobs[:2]] == [-9999.0, -9999.0]
    assert -100 < logprobs[2].logprob < 0
    assert logprobs[2].top == ()


def test_context_overflow(player: Player) -> None:
    long = array("i", [100] * CONTEXT)
    with pytest.raises(ContextOverflow, match="prompt is too long: 512 tokens > 511 maximum"):
        player.play(request(long))


def test_context_window_ends_the_turn(player: Player) -> None:
    deltas = player.play(request(array("i", [100] * (CONTEXT - 3)), 50))
    assert deltas[-1].finish == "length"
    assert 1 <= len(all_ids(deltas)) <= 3


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (Constraint("gbnf", "root ::= (("), InvalidRequest),
        (Constraint("lark", 'start: "a"'), Unsupported),
    ],
)
def test_unsupported_constraints(
    player: Player, constraint: Constraint, error: type[Exception]
) -> None:
    constrained = EngineRequest("r", player.ids(FRANCE), 4, constraint=constraint)
    with pytest.raises(error):
        player.play(constrained)
    assert player.play(request(player.ids(FRANCE), 1))[-1].finish == "length"


def test_closing_frees_the_slot(player: Player) -> None:
    async def main() -> None:
        for _ in range(4):  # more than there are slots
            async with aclosing(iter_deltas(player.engine, request(prompt, 900))) as deltas:
                first = await anext(deltas)
                assert first.finish is None
        # Both slots are requested at once: an abandoned stream must not hold one.
        both = [collect(player.engine, request(prompt, 2)) for _ in range(2)]
        assert [len(all_ids(deltas)) for deltas in await asyncio.gather(*both)] == [2, 2]
        await idle(player.engine)

    prompt = player.ids("Once upon a time")
    player.runner.run(main())


def test_cancel_during_prefill(player: Player) -> None:
    async def main() -> None:
        task = asyncio.create_task(collect(player.engine, request(prompt, 5)))
        async for slot in watch(player.engine):
            if slot["is_processing"]:
                break
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await idle(player.engine)

    prompt = array("i", [200 + n % 700 for n in range(CONTEXT - 10)])
    player.runner.run(main())


def test_two_concurrent_generations(player: Player) -> None:
    async def main() -> list[list[TokenDelta]]:
        requests = [request(player.ids(text), 8) for text in (FRANCE, "Two plus two is")]
        return await asyncio.gather(*(collect(player.engine, one) for one in requests * 2))

    results = player.runner.run(main())
    texts = [player.tokenizer.decode(all_ids(deltas)) for deltas in results]
    assert "Paris" in texts[0]
    assert "Paris" in texts[2]
    assert texts[1] == texts[3]
    assert all(deltas[-1].finish is not None for deltas in results)


def test_key_is_required(player: Player) -> None:
    endpoint = player.engine.endpoint
    assert endpoint is not None
    assert endpoint.socket is not None
    assert os.stat(os.path.dirname(endpoint.socket)).st_mode & 0o077 == 0
    assert "Bearer" not in repr(endpoint)
    for headers in ({}, {"authorization": "Bearer no"}):
        other_endpoint = Endpoint(socket=endpoint.socket, headers=headers)
        status, _ = player.runner.run(
            fetch(other_endpoint, ClientRequest("POST", "/completion", b"{}"))
        )
        assert status == 401


async def watch(engine: LlamaCppEngine) -> AsyncIterator[dict[str, bool]]:
    """Yield the state of the slots as llama.cpp reports it, repeatedly."""
    assert engine.endpoint is not None
    while True:
        _, content = await fetch(engine.endpoint, ClientRequest("GET", "/slots"))
        for slot in json.loads(content):
            yield slot


async def idle(engine: LlamaCppEngine) -> None:
    """Return when llama.cpp is idle. The test's timeout limits the wait."""
    quiet = 0
    async for slot in watch(engine):
        quiet = 0 if slot["is_processing"] else quiet + 1
        if quiet >= 4:
            return
