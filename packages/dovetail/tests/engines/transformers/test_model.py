"""The transformers engine with a real model: what it says, and what becomes of it.

One process for all: each test leaves it as it found it. The oracle is `generate` of the same
weights, run by transformers alone.
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

import pytest
from http_fixture import serving
from logprob_sessions import RecordingEngine
from torch_environment import PYTHON, WINDOW, build, need_torch

from dovetail.engines.engine import EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers import TransformersEngine, TransformersOptions
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
LENGTHS = (1, 40, 700)  # of prompts: the last is read in two batches
COUNT = 24
T = TypeVar("T")


def prompt(length: int) -> list[int]:
    return [(at * 7919 + length) % 150_000 for at in range(length)]


@dataclass
class Bench:
    """The engine, the loop that it lives in, and what the model says greedily."""

    runner: asyncio.Runner
    engine: TransformersEngine
    folder: Path
    greedy: dict[int, list[int]]

    def run(self, scene: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(scene)

    async def hear(self, asked: EngineRequest) -> list[TokenDelta]:
        return await collect(self.engine, asked)

    async def facts(self) -> tuple[int, int]:
        facts = (await self.engine.health()).facts or {}
        return facts["running"], facts["waiting"]

    async def idle(self) -> None:
        """Waits until the model has let go of everything."""
        while await self.facts() != (0, 0):
            pass


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need_torch()
    folder = tmp_path_factory.mktemp("tiny")
    answers = build(folder, [(prompt(length), COUNT) for length in LENGTHS])
    options = TransformersOptions(
        python=PYTHON, threads=1, device_map="cpu", page_size=PAGE, cache_tokens=2 * WINDOW
    )
    engine = TransformersEngine(folder, options=options)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Bench(runner, engine, folder, dict(zip(LENGTHS, answers, strict=True)))
        finally:
            runner.run(engine.stop())


def asked(ids: Sequence[int], max_tokens: int = COUNT, **fields: Any) -> EngineRequest:
    fields.setdefault("sampling", Sampling(temperature=0.0))
    return EngineRequest("r", array("I", ids), max_tokens, **fields)


def all_ids(deltas: Sequence[TokenDelta]) -> list[int]:
    return [id for delta in deltas for id in delta.ids]


def test_the_oracle_is_worth_something(bench: Bench) -> None:
    assert all(len(set(answer)) > COUNT // 2 for answer in bench.greedy.values())


@pytest.mark.parametrize("length", LENGTHS)
def test_greedy_is_what_generate_says(bench: Bench, length: int) -> None:
    heard = bench.run(bench.hear(asked(prompt(length))))
    assert all_ids(heard) == bench.greedy[length]
    assert [delta.finish for delta in heard if delta.finish] == ["length"]


def test_several_at_once_do_not_disturb_each_other(bench: Bench) -> None:
    wild = asked(prompt(40), sampling=Sampling(temperature=1.0))

    async def scene() -> list[list[TokenDelta]]:
        greedy = [bench.hear(asked(prompt(length))) for length in LENGTHS]
        return await asyncio.gather(*greedy, bench.hear(wild), bench.hear(wild))

    *greedy, one, other = bench.run(scene())
    assert [all_ids(heard) for heard in greedy] == list(bench.greedy.values())
    assert len({tuple(all_ids(one)), tuple(all_ids(other)), tuple(bench.greedy[40])}) == 3
    assert len(all_ids(one)) == COUNT


def test_the_best_of_top_k_1_is_greedy_at_any_temperature(bench: Bench) -> None:
    heard = bench.run(bench.hear(asked(prompt(40), sampling=Sampling(temperature=5.0, top_k=1))))
    assert all_ids(heard) == bench.greedy[40]


@pytest.mark.parametrize("at", [0, 5])
def test_a_stop_id_ends_it_and_is_told(bench: Bench, at: int) -> None:
    said = bench.greedy[40]
    place = said.index(said[at])
    stops = frozenset({said[at], 151645})
    heard = bench.run(bench.hear(asked(prompt(40), stop_ids=stops)))
    assert all_ids(heard) == said[: place + 1]
    assert heard[-1].finish == "stop"


@pytest.mark.parametrize("limit", [1, 7])
def test_limits_hold(bench: Bench, limit: int) -> None:
    heard = bench.run(bench.hear(asked(prompt(40), limit)))
    assert all_ids(heard) == bench.greedy[40][:limit]
    assert heard[-1].finish == "length"


def test_a_known_prefix_is_told(bench: Bench) -> None:
    fresh = [149_000 - at for at in range(10 * PAGE + 3)]

    async def scene() -> list[int | None]:
        first = await bench.hear(asked(fresh))
        longer = await bench.hear(asked([*fresh, *all_ids(first)]))
        return [first[-1].cached, longer[-1].cached]

    assert bench.engine.capabilities.cached_tokens
    cold, warm = bench.run(scene())
    assert cold == 0
    assert warm is not None
    assert warm >= 10 * PAGE  # also what was generated, page by page
    assert warm % PAGE == 0


def test_hanging_up_frees_the_slot(bench: Bench) -> None:
    async def scene() -> None:
        await bench.idle()
        endless = asked(prompt(40), WINDOW)
        async with aclosing(iter_deltas(bench.engine, endless)) as one:
            await anext(one)
            async with aclosing(iter_deltas(bench.engine, endless)) as other:
                await anext(other)
                assert await bench.facts() == (2, 0)
            while (await bench.facts())[0] != 1:
                pass
            assert (await anext(one)).ids  # the other one goes on
        await bench.idle()
        assert all_ids(await bench.hear(asked(prompt(40)))) == bench.greedy[40]

    bench.run(scene())


def test_a_cancelled_prompt_is_not_read_to_its_end(bench: Bench) -> None:
    async def scene() -> None:
        await bench.idle()
        for _ in range(20):  # at any moment, also before it is looked at
            hearing = asyncio.ensure_future(bench.hear(asked(prompt(3000), WINDOW - 3000)))
            await asyncio.sleep(0)
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        await bench.idle()

    bench.run(scene())


def test_the_window_is_the_models(bench: Bench) -> None:
    assert bench.engine.capabilities.context_length == WINDOW
    with pytest.raises(ContextOverflow):
        bench.run(bench.hear(asked(prompt(WINDOW))))
    heard = bench.run(bench.hear(asked(prompt(WINDOW - 3), 100)))
    assert len(all_ids(heard)) == 3
    assert heard[-1].finish == "length"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_conversation_stays_exact(bench: Bench, temperature: float) -> None:
    model = load_model(bench.folder, tool_parser="hermes", reasoning_parser="none")
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    overheard = RecordingEngine(bench.engine)
    served = TokenModel(
        names=("tiny",), model=model, preparer=preparer, engine=ReplicaPool([overheard])
    )

    async def scene() -> list[Any]:
        usages = []
        async with serving(registry=ModelRegistry([served], {})) as stage:
            client = stage.openai()
            messages: list[Any] = [{"role": "user", "content": "Tell me of the sea. " * 20}]
            for question in ("And then?", "Why?"):
                answer = await client.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=40, temperature=temperature
                )
                text = answer.choices[0].message.content
                messages += [{"role": "assistant", "content": text}]
                messages += [{"role": "user", "content": question}]
                usages.append(answer.usage)
        return usages

    usages = bench.run(scene())
    one, other = overheard.outputs
    first, said, second, cached = one.prompt, one.ids, other.prompt, other.cached
    assert len(said) == 40
    assert second[: len(first) + len(said)] == first + said
    assert cached is not None
    assert cached >= (len(first) + len(said)) // PAGE * PAGE - PAGE
    assert usages[1].prompt_tokens == len(second)
    assert usages[1].prompt_tokens_details.cached_tokens == cached


def test_killed_while_it_speaks_and_brought_back(bench: Bench) -> None:
    async def scene() -> None:
        engine = bench.engine
        async with aclosing(iter_deltas(engine, asked(prompt(40), WINDOW))) as deltas:
            await anext(deltas)
            os.kill(engine.pid or 0, signal.SIGKILL)
            with pytest.raises(EngineUnavailable, match="was killed"):
                async for _ in deltas:
                    pass
        assert not (await engine.health()).ready
        await engine.stop()
        await engine.start()
        assert all_ids(await bench.hear(asked(prompt(40)))) == bench.greedy[40]

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
def test_memory_that_runs_out_later(bench: Bench, tmp_path: Path) -> None:
    """The library's loop ends with all its requests: so does the process, and it says why."""
    (tmp_path / "sitecustomize.py").write_text(FAILING)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {PYTHON} "$@"\n')
    program.chmod(0o755)
    engine = TransformersEngine(
        bench.folder, options=TransformersOptions(python=str(program), threads=1, cache_tokens=1000)
    )

    async def scene() -> None:
        await engine.start()
        requests = [asked(prompt(40), stop_ids=frozenset()) for _ in range(2)]
        hearing = [collect(engine, request) for request in requests]
        failures = await asyncio.gather(*hearing, return_exceptions=True)
        for failure in failures:
            assert isinstance(failure, EngineUnavailable)
            assert "out of memory" in failure.message
        assert "out of memory" in (await engine.health()).detail
        await engine.stop()

    bench.run(scene())


async def collect(engine: TransformersEngine, request: EngineRequest) -> list[TokenDelta]:
    return [delta async for delta in iter_deltas(engine, request)]


def test_a_gpu_that_is_not_there(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, device_map="cuda")
    engine = TransformersEngine(bench.folder, options=options)

    async def scene() -> str:
        try:
            await engine.start()
        except EngineUnavailable as error:
            return error.message
        await engine.stop()
        return "sees no GPU"  # but it does

    assert "sees no GPU" in bench.run(scene())


@pytest.mark.long
def test_weights_that_are_not_there(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((bench.folder / "config.json").read_bytes())
    engine = TransformersEngine(tmp_path, options=TransformersOptions(python=PYTHON))
    with pytest.raises(EngineUnavailable, match="no file named") as raised:
        bench.run(engine.start())
    assert str(tmp_path) in raised.value.message


@pytest.mark.long
def test_weights_that_lack_a_layer(bench: Bench, tmp_path: Path) -> None:
    """The library would make up what is missing."""
    folder = tmp_path / "model"
    shutil.copytree(bench.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    (folder / "config.json").write_text(json.dumps(config))
    engine = TransformersEngine(folder, options=TransformersOptions(python=PYTHON))
    with pytest.raises(EngineUnavailable, match=r"the weights lack model\.layers\.2\."):
        bench.run(engine.start())


@pytest.mark.long
@pytest.mark.parametrize("name", ["foo", "nn"])
def test_a_dtype_that_is_none(bench: Bench, name: str) -> None:
    options = TransformersOptions(python=PYTHON, dtype=name)
    with pytest.raises(EngineUnavailable, match=f"dtype is '{name}': auto, float32"):
        bench.run(TransformersEngine(bench.folder, options=options).start())


@pytest.mark.long
def test_a_cache_without_room_for_a_prompt(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, cache_tokens=10)
    with pytest.raises(EngineUnavailable, match="no room for a prompt"):
        bench.run(TransformersEngine(bench.folder, options=options).start())


@pytest.mark.long
def test_a_cache_that_does_not_fit(bench: Bench) -> None:
    options = TransformersOptions(python=PYTHON, cache_tokens=10**12)
    engine = TransformersEngine(bench.folder, options=options)
    with pytest.raises(EngineUnavailable, match="not enough memory"):
        bench.run(engine.start())
