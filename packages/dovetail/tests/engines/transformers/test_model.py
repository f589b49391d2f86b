"""The transformers engine with a real model: outputs, cancellation, failures.

All tests share one process, and each test leaves it as it found it. The oracle is `generate` of the
same weights, run by transformers alone.
"""

import asyncio
import json
import os
import shutil
import signal
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from http_fixture import serving
from logprob_sessions import RecordingEngine
from torch_environment import PYTHON, WINDOW, build, need_torch

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import load_model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import ContextOverflow, EngineUnavailable, Sampling

pytestmark = [pytest.mark.transformers, pytest.mark.timeout(600)]
PAGE = 16
LENGTHS = (1, 40, 700)  # of prompts: the last is prefilled in two batches
COUNT = 24
T = TypeVar("T")


def prompt(length: int) -> list[int]:
    return [(at * 7919 + length) % 150_000 for at in range(length)]


@dataclass
class Bench:
    """The engine, its event loop, and the model's greedy output."""

    runner: asyncio.Runner
    engine: TransformersEngine
    folder: Path
    greedy: dict[int, list[int]]

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(scene)

    async def generate(self, request: EngineRequest) -> list[TokenDelta]:
        return await collect(self.engine, request)

    async def facts(self) -> tuple[int, int]:
        facts = (await self.engine.health()).facts or {}
        return facts["running"], facts["waiting"]

    async def idle(self) -> None:
        """Wait until the model has no running requests."""
        while await self.facts() != (0, 0):
            pass


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need_torch()
    folder = tmp_path_factory.mktemp("tiny")
    outputs = build(folder, [(prompt(length), COUNT) for length in LENGTHS])
    options = TransformersOptions(
        python=PYTHON, threads=1, device_map="cpu", page_size=PAGE, cache_tokens=2 * WINDOW
    )
    engine = TransformersEngine(folder, options=options)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Bench(runner, engine, folder, dict(zip(LENGTHS, outputs, strict=True)))
        finally:
            runner.run(engine.stop())


def make_request(ids: Sequence[int], max_tokens: int = COUNT, **fields: Any) -> EngineRequest:
    fields.setdefault("sampling", Sampling(temperature=0.0))
    return EngineRequest("r", array("I", ids), max_tokens, **fields)


def all_ids(deltas: Sequence[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_reference_outputs_are_varied(bench: Bench) -> None:
    assert all(len(set(output)) > COUNT // 2 for output in bench.greedy.values())


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_output_equals_generate(bench: Bench, length: int) -> None:
    deltas = bench.run(bench.generate(make_request(prompt(length))))
    assert all_ids(deltas) == bench.greedy[length]
    assert [delta.finish for delta in deltas if delta.finish] == ["length"]


def test_concurrent_requests_are_independent(bench: Bench) -> None:
    wild = make_request(prompt(40), sampling=Sampling(temperature=1.0))

    async def scene() -> list[list[TokenDelta]]:
        greedy = [bench.generate(make_request(prompt(length))) for length in LENGTHS]
        return await asyncio.gather(*greedy, bench.generate(wild), bench.generate(wild))

    *greedy, one, other = bench.run(scene())
    assert [all_ids(deltas) for deltas in greedy] == list(bench.greedy.values())
    assert len({tuple(all_ids(one)), tuple(all_ids(other)), tuple(bench.greedy[40])}) == 3
    assert len(all_ids(one)) == COUNT


def test_top_k_1_is_greedy_at_any_temperature(bench: Bench) -> None:
    deltas = bench.run(
        bench.generate(make_request(prompt(40), sampling=Sampling(temperature=5.0, top_k=1)))
    )
    assert all_ids(deltas) == bench.greedy[40]


@pytest.mark.parametrize("at", [0, 5])
def test_stop_id_is_reported(bench: Bench, at: int) -> None:
    generated = bench.greedy[40]
    place = generated.index(generated[at])
    stops = frozenset({generated[at], 151645})
    deltas = bench.run(bench.generate(make_request(prompt(40), stop_ids=stops)))
    assert all_ids(deltas) == generated[: place + 1]
    assert deltas[-1].finish == "stop"


@pytest.mark.parametrize("limit", [1, 7])
def test_limits_are_enforced(bench: Bench, limit: int) -> None:
    deltas = bench.run(bench.generate(make_request(prompt(40), limit)))
    assert all_ids(deltas) == bench.greedy[40][:limit]
    assert deltas[-1].finish == "length"


def test_cached_prefix_is_reported(bench: Bench) -> None:
    fresh = [149_000 - at for at in range(10 * PAGE + 3)]

    async def scene() -> list[int | None]:
        first = await bench.generate(make_request(fresh))
        longer = await bench.generate(make_request([*fresh, *all_ids(first)]))
        return [first[0].cached, longer[0].cached]

    assert bench.engine.capabilities.cached_tokens
    cold, warm = bench.run(scene())
    assert cold == 0
    assert warm is not None
    assert warm >= 10 * PAGE  # includes the generated tokens, in complete pages
    assert warm % PAGE == 0


@pytest.mark.parametrize("retained", [True, False])
def test_retained_session_stays_cached_while_others_are_evicted(
    bench: Bench, retained: bool
) -> None:
    """Sessions that together need more than the cache of two windows."""
    client = bench.engine._client
    if client is None or not client.description.retention:
        pytest.skip("this version of transformers has no hooks for retention")
    first, second, third = (
        [(number * 20_011 + retained * 7 + at * 31) % 150_000 for at in range(3_500)]
        for number in (1, 2, 3)
    )

    async def scene() -> int:
        request = msgspec.structs.replace(make_request(first, 1), id=f"first {retained}")
        await bench.generate(request)
        if retained:
            bench.engine.retain(request.id, 60.0)
        await bench.generate(make_request(second, 1))
        await bench.generate(make_request(third, 1))
        return (await bench.generate(make_request(first, 1)))[0].cached or 0

    assert (bench.run(scene()) > 3_400) == retained


def test_cancelling_frees_the_slot(bench: Bench) -> None:
    async def scene() -> None:
        await bench.idle()
        endless = make_request(prompt(40), WINDOW)
        async with aclosing(iter_deltas(bench.engine, endless)) as one:
            await anext(one)
            async with aclosing(iter_deltas(bench.engine, endless)) as other:
                await anext(other)
                assert await bench.facts() == (2, 0)
            while (await bench.facts())[0] != 1:
                pass
            assert (await anext(one)).ids  # the other stream continues
        await bench.idle()
        assert all_ids(await bench.generate(make_request(prompt(40)))) == bench.greedy[40]

    bench.run(scene())


def test_cancelled_prefill_stops(bench: Bench) -> None:
    async def scene() -> None:
        await bench.idle()
        for _ in range(20):  # at any moment, even before the request is scheduled
            generation = asyncio.ensure_future(
                bench.generate(make_request(prompt(3000), WINDOW - 3000))
            )
            await asyncio.sleep(0)
            generation.cancel()
            await asyncio.gather(generation, return_exceptions=True)
        await bench.idle()

    bench.run(scene())


def test_context_length_is_the_models(bench: Bench) -> None:
    assert bench.engine.capabilities.context_length == WINDOW
    with pytest.raises(ContextOverflow):
        bench.run(bench.generate(make_request(prompt(WINDOW))))
    deltas = bench.run(bench.generate(make_request(prompt(WINDOW - 3), 100)))
    assert len(all_ids(deltas)) == 3
    assert deltas[-1].finish == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_conversation_stays_exact(bench: Bench, temperature: float) -> None:
    model = load_model(bench.folder, tool_parser="hermes", reasoning_parser="none")
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    recorded = RecordingEngine(bench.engine)
    entry = TokenModel(
        names=("tiny",), model=model, preparer=preparer, engine=ReplicaPool([recorded])
    )

    async def scene() -> list[Any]:
        usages = []
        async with serving(registry=ModelRegistry([entry], {})) as stage:
            client = stage.openai()
            messages: list[Any] = [{"role": "user", "content": "Tell me of the sea. " * 20}]
            for question in ("And then?", "Why?"):
                response = await client.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=40, temperature=temperature
                )
                text = response.choices[0].message.content
                messages += [{"role": "assistant", "content": text}]
                messages += [{"role": "user", "content": question}]
                usages.append(response.usage)
        return usages

    usages = bench.run(scene())
    one, other = recorded.outputs
    first, generated, second, cached = one.prompt, one.ids, other.prompt, other.cached
    assert len(generated) == 40
    assert second[: len(first) + len(generated)] == first + generated
    assert cached is not None
    assert cached >= (len(first) + len(generated)) // PAGE * PAGE - PAGE
    assert usages[1].prompt_tokens == len(second)
    assert usages[1].prompt_tokens_details.cached_tokens == cached


def test_killed_during_a_stream_and_restarted(bench: Bench) -> None:
    async def scene() -> None:
        engine = bench.engine
        async with aclosing(iter_deltas(engine, make_request(prompt(40), WINDOW))) as deltas:
            await anext(deltas)
            os.kill(engine.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="was killed"):
                async for _ in deltas:
                    pass
        assert not (await engine.health()).ready
        await engine.stop()
        await engine.start()
        assert all_ids(await bench.generate(make_request(prompt(40)))) == bench.greedy[40]

    bench.run(scene())


FAILING = """\
import torch

draw, left = torch.argmax, [5]


def failing(*given, **more):
    left[0] -= 1
    if left[0] < 0:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB.")
    return draw(*given, **more)


torch.argmax = failing
"""


@pytest.mark.long
def test_out_of_memory_while_running(bench: Bench, tmp_path: Path) -> None:
    """The library's loop ends with all its requests. The process exits with the reason."""
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {PYTHON} "$@"\n')
    program.chmod(0o755)
    engine = TransformersEngine(
        bench.folder, options=TransformersOptions(python=str(program), threads=1, cache_tokens=1000)
    )

    async def scene() -> None:
        await engine.start()
        requests = [make_request(prompt(40), stop_ids=frozenset()) for _ in range(2)]
        generation = [collect(engine, request) for request in requests]
        failures = await asyncio.gather(*generation, return_exceptions=True)
        for failure in failures:
            assert isinstance(failure, EngineUnavailable)
            assert "out of memory" in failure.message
        assert "out of memory" in (await engine.health()).detail
        await engine.stop()

    bench.run(scene())


async def collect(engine: TransformersEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]


def test_missing_gpu(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, device_map="cuda")
    engine = TransformersEngine(bench.folder, options=options)

    async def scene() -> str:
        try:
            await engine.start()
        except EngineUnavailable as error:
            return error.message
        await engine.stop()
        return "finds no GPU"  # this machine has a GPU

    assert "finds no GPU" in bench.run(scene())


@pytest.mark.long
def test_missing_weights(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((bench.folder / "config.json").read_bytes())
    engine = TransformersEngine(tmp_path, options=TransformersOptions(python=PYTHON))
    with pytest.raises(EngineUnavailable, match="no file named") as raised:
        bench.run(engine.start())
    assert str(tmp_path) in raised.value.message


@pytest.mark.long
def test_weights_without_one_layer(bench: Bench, tmp_path: Path) -> None:
    """The library would initialize the missing weights randomly."""
    folder = tmp_path / "model"
    shutil.copytree(bench.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps(config))
    engine = TransformersEngine(folder, options=TransformersOptions(python=PYTHON))
    with pytest.raises(EngineUnavailable, match=r"the weights do not contain model\.layers\.2\."):
        bench.run(engine.start())


@pytest.mark.long
@pytest.mark.parametrize("name", ["foo", "nn"])
def test_invalid_dtype(bench: Bench, name: str) -> None:
    options = TransformersOptions(python=PYTHON, dtype=name)
    with pytest.raises(EngineUnavailable, match=f"got '{name}'"):
        bench.run(TransformersEngine(bench.folder, options=options).start())


@pytest.mark.long
def test_cache_too_small_for_a_prompt(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, cache_tokens=10)
    with pytest.raises(EngineUnavailable, match="too small for a prompt"):
        bench.run(TransformersEngine(bench.folder, options=options).start())


@pytest.mark.long
def test_cache_larger_than_memory(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, cache_tokens=10**12)
    engine = TransformersEngine(bench.folder, options=options)
    with pytest.raises(EngineUnavailable, match="not enough memory"):
        bench.run(engine.start())
