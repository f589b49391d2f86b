"""The embedded vLLM for real, on the CPU: `dovetail serve --engine vllm` without a URL.

The weights are random, so the tests check the form, the numbers, and the ids that vLLM returns. The
oracle is vLLM itself: its own `generate` in the same process, which requests with logprobs use. All
tests run twice, the second time with a vLLM that lacks an attribute of the step output, so that all
requests use `generate`.
"""

import asyncio
import logging
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import vllm_without_steps
from embedded_vllm import BLOCK, RunningEngine, running_embedded_vllm
from step_fixture import CollectingSink
from vllm_environment import PYTHON, REAL

from dovetail.engines.engine import Constraint
from dovetail.engines.registry import EngineSetup
from dovetail.engines.token_stream import collect_token_ids
from dovetail.engines.vllm import process
from dovetail.engines.vllm.embedded import create_embedded
from dovetail.routing.pool import ReplicaPool
from dovetail_model import ContextOverflow, EngineUnavailable, InvalidRequest, NotFound, Sampling
from dovetail_tokenizers import load_tokenizer

pytestmark = REAL

#: The ways that the output takes: the second without an attribute that the first requires.
WAYS = {"steps": process.CHILD_MODULE, "generate": vllm_without_steps.__name__}
REASONS = {"steps": "steps", "generate": f"generate ({vllm_without_steps.MISSING} is missing)"}


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def vllm(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "CHILD_MODULE", WAYS[way])
        patch.setenv("PYTHONPATH", str(Path(vllm_without_steps.__file__).parent))
        with running_embedded_vllm(tmp_path_factory.mktemp("embedded")) as running:
            yield running


def test_the_way_of_the_output_is_reported(vllm: RunningEngine, way: str) -> None:
    state = vllm.run(vllm.engine.health())
    assert state.ready
    assert state.facts is not None
    assert state.facts["output"] == REASONS[way]
    assert state.facts["version"]
    assert vllm.engine.capabilities.context_length == 8192


def test_the_way_of_the_output_is_logged(
    vllm: RunningEngine, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    vllm.engine.log_loaded()
    (record,) = (record for record in caplog.records if record.message == "engine_loaded")
    assert record.__dict__["fields"]["output"] == REASONS[way]


@pytest.fixture(scope="module")
def ids_by_prompt() -> dict[int, list[int]]:
    return {}


def test_both_ways_return_the_same_ids(
    vllm: RunningEngine, ids_by_prompt: dict[int, list[int]]
) -> None:
    """The fixture outlives the engines: the second one has to return what the first one did."""
    for start in range(10_000, 10_600, 100):
        ids = vllm.generate(vllm.request(array("I", range(start, start + 70)))).ids
        assert ids_by_prompt.setdefault(start, ids) == ids


def test_ids_are_those_of_vllms_own_generate(vllm: RunningEngine) -> None:
    for length in (1, 31, 32, 33, 500):
        prompt = array("I", range(2000, 2000 + length))
        by_steps = vllm.generate(vllm.request(prompt))
        by_generate = vllm.generate(
            vllm.request(prompt, sampling=Sampling(temperature=0.0, logprobs=1))
        )
        assert by_steps.ids == by_generate.ids
        assert len(by_steps.ids) == 24
        assert by_steps.deltas[-1].finish == "length"
        assert all(len(one.logprobs) == len(one.ids) for one in by_generate.deltas)


def test_a_seed_gives_the_same_samples(vllm: RunningEngine) -> None:
    sampling = Sampling(temperature=1.0, seed=7, top_k=50)
    prompt = array("I", [5, 6, 7])
    first, second = (vllm.generate(vllm.request(prompt, sampling=sampling)) for _ in range(2))
    assert first.ids == second.ids


def test_the_stop_token_is_the_last_id(vllm: RunningEngine) -> None:
    prompt = array("I", range(3000, 3050))
    whole = vllm.generate(vllm.request(prompt)).ids
    stopped = vllm.generate(vllm.request(prompt, stop_ids=frozenset({whole[0]})))
    assert stopped.ids == whole[:1]
    assert stopped.deltas[-1].finish == "stop"


def test_the_next_turn_finds_the_prefix_in_the_cache(vllm: RunningEngine) -> None:
    prompt = array("I", range(4000, 4200))
    first = vllm.generate(vllm.request(prompt))
    assert first.deltas[0].cached == 0
    turn = prompt + array("I", first.ids) + array("I", range(9000, 9040))
    second = vllm.generate(vllm.request(turn))
    assert (second.deltas[0].cached or 0) >= (len(prompt) + len(first.ids) - 1) // BLOCK * BLOCK
    salted = vllm.generate(vllm.request(turn, cache_salt="tenant"))
    assert salted.deltas[0].cached == 0
    assert second.ids == salted.ids


@pytest.mark.parametrize(
    ("syntax", "text", "expected"),
    [
        ("ebnf", 'root ::= "dovetail"', "dovetail"),
        ("json_schema", '{"enum":["dovetail"]}', '"dovetail"'),
        (
            "structural_tag",
            '{"type":"structural_tag","format":{"type":"const_string","value":"dovetail"}}',
            "dovetail",
        ),
    ],
)
def test_structured_outputs(vllm: RunningEngine, syntax: Any, text: str, expected: str) -> None:
    request = vllm.request(constraint=Constraint(syntax, text), sampling=Sampling(temperature=1.0))
    output = vllm.engine._tokenizer.decode(vllm.generate(request).ids)  # type: ignore[union-attr]
    assert output.startswith(expected)


def test_each_adapter_changes_the_output(vllm: RunningEngine) -> None:
    prompt = array("I", range(5000, 5040))
    outputs = {
        name: tuple(vllm.generate(vllm.request(prompt, adapter=name)).ids)
        for name in (None, "a", "b", None, "a")
    }
    assert len(set(outputs.values())) == 3
    with pytest.raises(NotFound, match="no LoRA adapter 'c'"):
        vllm.generate(vllm.request(prompt, adapter="c"))


def test_urgent_requests_overtake_waiting_ones(vllm: RunningEngine) -> None:
    async def main() -> list[str]:
        finished: list[str] = []

        async def run(name: str, tokens: int, priority: int) -> None:
            await vllm.engine.generate(
                vllm.request(max_tokens=tokens, priority=priority), CollectingSink()
            )
            finished.append(name)

        running = [asyncio.create_task(run("first", 300, 5)) for _ in range(4)]
        await asyncio.sleep(1.0)
        waiting = [asyncio.create_task(run("later", 40, 0)) for _ in range(4)]
        await asyncio.sleep(0.3)
        await asyncio.gather(run("urgent", 40, 3), *running, *waiting)
        return finished

    finished = vllm.run(main())
    assert finished.index("urgent") < finished.index("later")


def test_a_cancelled_request_frees_its_place(vllm: RunningEngine) -> None:
    async def main() -> None:
        tasks = [
            asyncio.create_task(
                vllm.engine.generate(vllm.request(max_tokens=8000), CollectingSink())
            )
            for _ in range(4)
        ]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # All four places were taken; this one would have to wait for minutes.
        await asyncio.wait_for(collect_token_ids(vllm.engine, vllm.request(max_tokens=4)), 30)

    vllm.run(main())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": array("I", [999_999_999])}, InvalidRequest),
        ({"prompt": array("I", [5] * 9000)}, ContextOverflow),
        ({"constraint": Constraint("json_schema", '{"type": "nonsense"}')}, InvalidRequest),
    ],
)
def test_rejected_requests_are_errors_of_the_client(
    vllm: RunningEngine, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as got:
        vllm.generate(vllm.request(**fields))
    assert "\n" not in str(got.value)
    assert len(vllm.generate(vllm.request(max_tokens=3)).ids) == 3


def test_an_unknown_argument_is_one_line(vllm: RunningEngine, tmp_path: Path) -> None:
    model = vllm.engine._config["model"]
    options = {"python": os.environ[PYTHON], "no_such_argument": "1"}
    setup = EngineSetup(load_tokenizer(Path(model)), Path(model), options=options)
    with pytest.raises(EngineUnavailable, match="no engine argument 'no_such_argument'") as got:
        asyncio.run(create_embedded(setup).start())
    assert "\n" not in got.value.message


def _core_pid(child: int) -> int:
    """Return the id of the engine core, which is a child of the engine's process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                name = (entry / "comm").read_text()
            except OSError:
                continue
            if int(fields[1]) == child and "EngineCor" in name:
                return int(entry.name)
    raise AssertionError("the engine core is not running")


def _await(condition: Callable[[], bool], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_fifty_streams_end_when_the_engine_core_is_killed(vllm: RunningEngine) -> None:
    """And the process is restarted, after which streams run again. This is the last test."""

    async def main() -> None:
        pool = ReplicaPool([vllm.engine])
        sinks = [CollectingSink() for _ in range(50)]
        streams = [
            asyncio.create_task(pool.generate(vllm.request(max_tokens=8000), sink))
            for sink in sinks
        ]
        while not any(sink.deltas for sink in sinks):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert vllm.engine.pid is not None
        os.kill(_core_pid(vllm.engine.pid), signal.SIGKILL)
        killed = time.monotonic()
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert time.monotonic() - killed < 20
        assert all(isinstance(one, EngineUnavailable) for one in results), results
        assert await pool.wait_available(400)
        assert len(await collect_token_ids(vllm.engine, vllm.request(max_tokens=4))) == 4

    vllm.run(main(), 500)
