"""The running scripted engine: sessions, timing, prefix cache, failures, cancellation."""

import asyncio
from array import array
from collections.abc import Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from fake_clock_loop import run_jumping
from scripted_fixture import (
    END,
    TOKENIZER,
    deltas,
    engine,
    generate_text,
    ids,
    play,
    play_text,
    request,
)

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta, TokenEngine
from dovetail.engines.scripted import ScriptedEngine
from dovetail.engines.scripted.reply import MAX_BATCH_DELTAS
from dovetail.engines.scripted.script import Script, ScriptedReply
from dovetail.engines.scripted.selection import ReplySelector
from dovetail.engines.token_stream import iter_deltas
from dovetail_model import (
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from dovetail_tokenizers import ByteTokenizer

TURNS = "[{text: one}, {text: two, times: 2}, {text: three}]"


def test_scripted_engine_implements_token_engine() -> None:
    scripted: TokenEngine = engine("[{text: a}]")
    assert {"gbnf", "lark", "structural_tag", "json_schema"} <= set(
        scripted.capabilities.constraints
    )


def texts(scripted: ScriptedEngine, requests: list[EngineRequest]) -> list[str]:
    return [play_text(scripted, one).removesuffix("<|end|>") for one in requests]


def test_own_selector_replaces_the_rules_of_the_script() -> None:
    class Echo(ReplySelector):
        def select(self, request: EngineRequest) -> ScriptedReply:
            return ScriptedReply((f"{len(request.prompt)} tokens",))

    script, tokenizer = Script.from_text("from the script"), ByteTokenizer(["<|end|>"])
    stop_ids = tokenizer.encode("<|end|>")
    scripted = ScriptedEngine(
        tokenizer, script, stop_ids=stop_ids, selector=Echo(script, tokenizer)
    )
    length = len(request().prompt)
    assert texts(scripted, [request()]) == [f"{length} tokens"]


@pytest.mark.parametrize(
    ("end", "fifth"), [("last", "three"), ("first", "one"), ("fail", "no more turns")]
)
def test_session_gets_its_turns_in_order(end: str, fifth: str) -> None:
    scripted = engine(f"{{turns: {TURNS}, end: {end}}}")
    requests = [request(session=name) for name in "aabaab"]
    assert texts(scripted, requests) == ["one", "two", "one", "two", "three", "two"]
    try:
        result = play_text(scripted, request(session="a"))
    except EngineError as error:
        result = str(error)
    assert fifth in result


def test_extended_prompt_without_a_session_is_the_next_turn() -> None:
    scripted = engine(TURNS)
    prompts = [
        ("hello", "one"),
        ("hello", "one"),  # a repeated prompt is the same turn
        ("hello, one, go on", "two"),
        ("hello, you", "two"),  # a fork
        ("help", "one"),
        ("hello, one, go on, two, and on", "two"),
        ("hello, one, go on, two, and on, two, further", "three"),
        ("hell", "one"),
    ]
    replies = texts(scripted, [request(prompt) for prompt, _ in prompts])
    assert replies == [turn for _, turn in prompts]


def test_rules_can_have_turns() -> None:
    script = """
    - when: {text: agent}
      turns: [{text: agent one}, {text: agent two}]
    - text: main one
    - text: main two
    """
    prompts = [("agent", "s"), ("main", "s"), ("main", "s"), ("agent", "s"), ("agent", "t")]
    replies = texts(engine(script), [request(prompt, session=name) for prompt, name in prompts])
    assert replies == ["agent one", "main one", "main two", "agent two", "agent one"]


def test_request_without_a_matching_rule() -> None:
    with pytest.raises(EngineError, match="no rule matches it"):
        play(engine("[{when: {text: x}, text: a}]"), request("y"))


def test_reply_continues_after_a_reasoning_span_closed_by_the_server() -> None:
    scripted = engine("[{text: 'first thought</think>answer'}, {text: other}]")
    first_request = request("q<think>", session="s")
    play(scripted, first_request)
    grown = first_request.prompt + array("I", ids("first</think>"))
    again = EngineRequest(
        first_request.id, grown, 100, stop_ids=first_request.stop_ids, session="s"
    )
    assert play_text(scripted, again) == "answer<|end|>"
    budget_none = first_request.prompt + array("I", ids("</think>"))
    again = EngineRequest(
        first_request.id, budget_none, 100, stop_ids=first_request.stop_ids, session="s"
    )
    assert play_text(scripted, again) == "answer<|end|>"


def test_each_reasoning_span_of_a_turn_can_be_closed() -> None:
    scripted = engine("[{text: 'a1</think>call<think>b2</think>end'}]")
    first_request = request("q<think>", session="s")
    play(scripted, first_request)
    generated, replies = "", []
    for more in ("a</think>", "call<think></think>"):
        generated += more
        grown = first_request.prompt + array("I", ids(generated))
        again = EngineRequest(
            first_request.id, grown, 100, stop_ids=first_request.stop_ids, session="s"
        )
        replies.append(play_text(scripted, again))
        assert play_text(scripted, again) == replies[-1]  # the request is repeated
    assert replies == ["call<think>b2</think>end<|end|>", "end<|end|>"]


def test_request_id_can_be_reused_for_the_next_turn() -> None:
    scripted = engine("[{text: one}, {text: two}]")
    first = request("q", id="x", session="s")
    assert play_text(scripted, first) == "one<|end|>"
    grown = request("qone<|end|>next", id="x", session="s")
    assert play_text(scripted, grown) == "two<|end|>"


def cached(scripted: ScriptedEngine, request: EngineRequest) -> int | None:
    first, *others = play(scripted, request)
    assert all(delta.cached is None for delta in others)
    return first.cached


def test_prompt_and_output_are_cached_in_complete_blocks() -> None:
    scripted = engine(f"[{{text: '{'a' * 40}'}}]")
    prompt = "p" * 24
    assert cached(scripted, request(prompt)) == 0
    assert cached(scripted, request(prompt)) == 16
    grown = prompt + "a" * 40
    assert cached(scripted, request(grown)) == 48  # 64 tokens, but at least one is computed
    assert cached(scripted, request(grown + "<|end|>next")) == 64
    assert cached(scripted, request(grown, cache_salt="tenant")) == 0


def test_tokens_that_were_not_sent_are_not_cached() -> None:
    scripted = engine(f"[{{text: '{'a' * 200}'}}]")

    async def main() -> None:
        async with aclosing(scripted.generate_batches(request("p" * 16))) as batches:
            assert len(await anext(batches)) == MAX_BATCH_DELTAS
        # the KV entries of the last sampled token have not been computed
        assert scripted.cache.blocks == 1
        async with aclosing(scripted.generate_batches(request("p" * 16))) as batches:
            await anext(batches)
            await anext(batches)
        assert scripted.cache.blocks == 2

    asyncio.run(main())


def test_prompt_is_cached_at_the_first_token() -> None:
    scripted = engine("[{text: abc, delay: {between: 1}}]")

    async def main() -> list[TokenDelta]:
        async with aclosing(iter_deltas(scripted, request("p" * 33))) as first:
            await anext(first)
            return await deltas(scripted, request("p" * 33))

    assert run_jumping(main())[0].cached == 32


def test_cache_evicts_beyond_its_capacity() -> None:
    scripted = engine("[{text: a}]", cache_blocks=2)
    assert cached(scripted, request("a" * 33)) == 0
    assert cached(scripted, request("a" * 33)) == 32
    assert cached(scripted, request("b" * 33)) == 0
    assert cached(scripted, request("a" * 33)) == 0


async def timed(scripted: ScriptedEngine, request: EngineRequest) -> list[tuple[float, int]]:
    """Return when each delta arrived, and its number of tokens."""
    clock = asyncio.get_running_loop().time
    return [(round(clock(), 6), len(delta.ids)) async for delta in iter_deltas(scripted, request)]


@pytest.mark.parametrize(
    ("script", "options", "times"),
    [
        ("[{text: abc, delay: 2}]", {}, [(2, 1)] * 4),
        (
            "[{text: abc, delay: {first: 1, between: 10}}]",
            {},
            [(1, 1), (11, 1), (21, 1), (31, 1)],
        ),
        ("[{text: abc}]", {"decode_rate": 4}, [(0, 1), (0.25, 1), (0.5, 1), (0.75, 1)]),
        ("[{text: abcde}]", {"decode_rate": 4, "chunk": 4}, [(0, 4), (1, 2)]),
        ("[{text: a}]", {"prefill_rate": 10}, [(3.2, 1), (3.2, 1)]),
        (
            "[{text: ab, delay: {first: 1, between: 2}}]",
            {"prefill_rate": 32, "decode_rate": 1},
            [(2, 1), (5, 1), (8, 1)],
        ),
    ],
)
def test_timing_follows_script_and_rates(
    script: str, options: dict[str, Any], times: list[tuple[float, int]]
) -> None:
    assert run_jumping(timed(engine(script, **options), request("p" * 32))) == times


def test_replies_in_step_emit_together() -> None:
    scripted = engine("[{text: abc, delay: {between: 10, in_step: true}}]")

    async def later() -> list[tuple[float, int]]:
        await asyncio.sleep(4)
        return await timed(scripted, request("p"))

    async def main() -> list[list[tuple[float, int]]]:
        return list(await asyncio.gather(timed(scripted, request("p")), later()))

    first, second = run_jumping(main())
    assert [at for at, _ in first] == [0, 10, 20, 30]
    assert [at for at, _ in second] == [4, 20, 30, 40]


def test_cached_tokens_need_no_prefill() -> None:
    scripted = engine("[{text: a}]", prefill_rate=1)

    async def main() -> list[float]:
        first = (await timed(scripted, request("p" * 64)))[0][0]
        again = (await timed(scripted, request("p" * 64)))[0][0]
        return [first, again - first]

    assert run_jumping(main()) == [64, 16]


def test_late_reader_gets_due_deltas_in_one_batch() -> None:
    scripted = engine("[{text: abcdef}]", decode_rate=1)

    async def main() -> list[int]:
        sizes = []
        async with aclosing(scripted.generate_batches(request())) as batches:
            async for burst in batches:
                sizes.append(len(burst))
                await asyncio.sleep(2.5)
        return sizes

    assert run_jumping(main()) == [1, 2, 3, 1]


def test_playback_at_full_speed_yields_to_other_tasks() -> None:
    scripted = engine(f"[{{text: '{'a' * 999}'}}]")

    async def main() -> int:
        ticks = 0
        running = True

        async def tick() -> None:
            nonlocal ticks
            while running:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        assert len(await deltas(scripted, request())) == 1000
        running = False
        await ticking
        return ticks

    assert asyncio.run(main()) >= 1000 // MAX_BATCH_DELTAS


KINDS = [
    ("fail: no luck", EngineError, "no luck"),
    ("fail: {kind: overloaded, message: full}", Overloaded, "full"),
    ("fail: {kind: timeout}", EngineTimeout, "the script makes this request fail"),
    ("fail: {kind: unavailable}", EngineUnavailable, "the script makes this request fail"),
    ("die: true", EngineUnavailable, "died"),
]


@pytest.mark.parametrize(("how", "kind", "message"), KINDS)
def test_failures_before_the_first_token(how: str, kind: type[EngineError], message: str) -> None:
    with pytest.raises(EngineError, match=message) as error:
        play(engine(f"[{{text: abc, {how}}}]"), request())
    assert type(error.value) is kind


async def until_error(scripted: ScriptedEngine, request: EngineRequest) -> list[TokenDelta]:
    received: list[TokenDelta] = []

    async def listen() -> None:
        async for delta in iter_deltas(scripted, request):
            received.append(delta)  # noqa: PERF401 (deltas before the error count)

    with pytest.raises(EngineError):
        await listen()
    return received


@pytest.mark.parametrize(
    ("script", "texts"),
    [
        ("[{text: abcdef, fail: {after: 3}}]", ["a", "b", "c"]),
        ("[{text: abcdef, die: 2}]", ["a", "b"]),
        ("[{text: abcdef, chunks: 2, die: 3}]", ["ab", "c"]),
        ("[{text: abc, fail: {after: 3}}]", ["a", "b", "c"]),
        ("[{fail: now}]", []),
        ("[{text: abc, die: 0}]", []),
    ],
)
def test_failures_in_the_middle(script: str, texts: list[str]) -> None:
    received = asyncio.run(until_error(engine(script), request()))
    assert [TOKENIZER.decode(delta.ids) for delta in received] == texts
    assert not any(delta.finish for delta in received)


def test_failure_after_the_end_has_no_effect() -> None:
    assert play_text(engine("[{text: ab, fail: {after: 3}}]"), request()) == "ab<|end|>"
    short = request(max_tokens=1)
    assert play_text(engine("[{text: ab, die: 2}]"), short) == "a"


def test_dead_engine_fails_all_generations_until_restarted() -> None:
    scripted = engine("[{when: {text: die}, text: ab, die: 1}, {text: abc, delay: 1000}]")

    async def main() -> None:
        other = asyncio.ensure_future(generate_text(scripted, request("live")))
        await asyncio.sleep(1)
        await until_error(scripted, request("die"))
        with pytest.raises(EngineUnavailable):
            await other
        health = await scripted.health()
        assert not health.ready
        assert "died" in health.detail
        with pytest.raises(EngineUnavailable):
            await generate_text(scripted, request("live"))
        await scripted.start()
        assert (await scripted.health()).ready
        assert await generate_text(scripted, request("live")) == "abc<|end|>"
        assert asyncio.get_running_loop().time() == 1001

    run_jumping(main())


def test_hung_generation_emits_nothing_until_the_engine_stops() -> None:
    scripted = engine("[{text: abc, hang: 2}]")

    async def main() -> None:
        hung = asyncio.ensure_future(until_error(scripted, request()))
        await asyncio.sleep(10_000)
        assert not hung.done()
        await scripted.stop()
        assert [delta.ids for delta in await hung] == [ids("a"), ids("b")]

    run_jumping(main())


@pytest.mark.parametrize("chunks", ["[ab, c]", "[a, b, c]"])
def test_last_delta_waits_for_a_file(chunks: str, tmp_path: Path) -> None:
    awaited = tmp_path / "awaited"
    scripted = engine(f"[{{chunks: {chunks}, wait_for: {awaited}}}]")

    async def main() -> None:
        batches = scripted.generate_batches(request())
        assert [id for delta in await anext(batches) for id in delta.ids] == ids("ab")
        last = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(1_000)
        assert not last.done()
        awaited.touch()
        assert [delta.ids for delta in await last] == [ids("c<|end|>")]
        await batches.aclose()

    run_jumping(main())


@pytest.mark.parametrize(
    "script",
    [
        "[{text: abc, delay: 1000}]",
        "[{text: abc, delay: {between: 1000}}]",
        "[{text: abc, hang: true}]",
        f"[{{text: '{'a' * 100_000}'}}]",
    ],
)
def test_cancellation_is_immediate(script: str) -> None:
    scripted = engine(script)

    async def main() -> None:
        task = asyncio.ensure_future(generate_text(scripted, request()))
        for _ in range(5):
            await asyncio.sleep(0)
        assert scripted.counters.running == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scripted.counters.running == 0
        assert asyncio.get_running_loop().time() == 0

    run_jumping(main())


def test_closing_the_iterator_ends_the_generation() -> None:
    scripted = engine("[{text: abcdef, delay: {between: 1}}]")

    async def main() -> None:
        async with aclosing(iter_deltas(scripted, request())) as stream:
            async for _ in stream:
                break
        assert scripted.counters.running == 0
        assert scripted.counters.generated == 1

    run_jumping(main())


def test_last_requests_are_retained() -> None:
    scripted = engine("[{text: a}]", remember=2)
    requests = [request(constraint=Constraint("gbnf", f"root ::= {n}")) for n in "abc"]
    for one in requests:
        play(scripted, one)
    assert list(scripted.requests) == requests[1:]


def test_context_length_limits_prompt_and_output() -> None:
    scripted = engine("[{text: abcdef}]", context_length=8)
    assert play_text(scripted, request("hello")) == "abc"
    with pytest.raises(ContextOverflow, match="8 tokens > 7 maximum"):
        play(scripted, request("hello you"[:8]))


def test_many_streams_at_once_are_all_complete() -> None:
    scripted = engine("[{text: abcdefgh, delay: {between: 0.5}}]")

    async def main() -> list[str]:
        coroutines: list[Coroutine[Any, Any, str]] = [
            generate_text(scripted, request()) for _ in range(500)
        ]
        return await asyncio.gather(*coroutines)

    assert set(run_jumping(main())) == {"abcdefgh<|end|>"}
    assert scripted.counters.generated == 500 * 9
    assert END in scripted.requests[-1].stop_ids
