"""Logprobs of the transformers engine, compared with a plain forward pass.

All tests share one process. The forward pass runs the same weights with transformers alone, over
the prompt and the engine's output.
"""

import asyncio
import json
from array import array
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pytest
from exported_sessions import exported
from http_fixture import serving
from logprob_sessions import (
    REQUESTED_OR_STORED,
    SHAPE,
    RecordingEngine,
    Session,
    check_samples,
    check_shown,
)
from tiny_qwen3 import tiny_qwen3
from torch_environment import PYTHON, ForwardProcess, forward, need_torch

from dovetail.engines.engine import Constraint, EngineRequest, TokenDelta
from dovetail.engines.token_stream import iter_deltas
from dovetail.engines.transformers.child.batch_sampler import (
    LOGPROB_ROWS_UNIT,
    LOGPROBS,
    NOISE,
    TOP_LOGPROBS,
    required_steps,
)
from dovetail.engines.transformers.child.sampling_params import SamplingParams
from dovetail.engines.transformers.engine import TransformersEngine
from dovetail.engines.transformers.options import TransformersOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import ClientError, Sampling, TokenLogprob

pytestmark = [pytest.mark.transformers, pytest.mark.long, pytest.mark.timeout(600)]
SPELLED = 151_669
ENDS = frozenset({151_643, 151_645})
COUNT = 12
NEAR = 1e-4
EQUALS = 20  # tokens that may be as likely as the last of the top logprobs
T = TypeVar("T")


@dataclass
class Bench:
    """The engine, its event loop, and the reference model."""

    runner: asyncio.Runner
    engine: TransformersEngine
    model: Model
    plain: ForwardProcess

    def run(self, run: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(run)

    def generate(self, *requests: EngineRequest) -> list[list[TokenDelta]]:
        """Run all requests at once."""

        async def one(request: EngineRequest) -> list[TokenDelta]:
            return [delta async for delta in iter_deltas(self.engine, request)]

        async def run() -> list[list[TokenDelta]]:
            return await asyncio.gather(*map(one, requests))

        return self.run(run())

    def check(self, request: EngineRequest, deltas: Sequence[TokenDelta]) -> list[int]:
        """Check that each logprob is the model's own for the token. Return the ids."""
        ids = [id for delta in deltas for id in delta.ids]
        logprobs = [one for delta in deltas for one in delta.logprobs]
        assert all(len(delta.logprobs) == len(delta.ids) for delta in deltas)
        best = request.sampling.logprobs
        assert best is not None
        prompt = request.prompt.tolist()
        plain = self.plain.run([*prompt, *ids], len(prompt), best + EQUALS, SPELLED)
        assert [one.token for one in logprobs] == [self._text(id) for id in ids]
        assert [one.logprob for one in logprobs] == pytest.approx(plain.logprobs, abs=NEAR)
        for one, likeliest in zip(logprobs, plain.best, strict=True):
            assert len(one.top) == best
            self._check_best(one, likeliest)
        return ids

    def _check_best(self, one: TokenLogprob, likeliest: Sequence[tuple[int, float]]) -> None:
        values = [value for _, value in likeliest[: len(one.top)]]
        assert [value for _, value in one.top] == pytest.approx(values, abs=NEAR)
        pairs: list[Any] = [
            (self._text(id), pytest.approx(value, abs=NEAR)) for id, value in likeliest
        ]
        for pair in one.top:
            pairs.remove(pair)

    def _text(self, id: int) -> str:
        return self.model.tokenizer.decode([id])


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    need_torch()
    folder = tiny_qwen3(tmp_path_factory.mktemp("tiny") / "model", spread=0.5)
    options = TransformersOptions(
        python=PYTHON, threads=1, device_map="cpu", page_size=16, cache_tokens=4096
    )
    model = load_model(folder)
    engine = TransformersEngine(folder, model.tokenizer, options=options)
    with forward(folder) as plain, asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Bench(runner, engine, model, plain)
        finally:
            runner.run(engine.stop())


def make_request(number: int, count: int = COUNT, **fields: Any) -> EngineRequest:
    prompt = [(at * 7919 + number * 131) % 150_000 for at in range(20 + number)]
    constraint = fields.pop("constraint", None)
    stops = ENDS if constraint is not None else frozenset()
    sampling = Sampling(**{"seed": number, "logprobs": 3, **fields})
    return EngineRequest(
        f"r{number}", array("I", prompt), count, sampling, stops, constraint=constraint
    )


SCHEMA = Constraint("json_schema", json.dumps(SHAPE))
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "hot": {"temperature": 4.0, "logprobs": 20},
    "the drawn token alone": {"temperature": 1.0, "logprobs": 0},
    "filtered": {"temperature": 2.0, "top_k": 5, "top_p": 0.5, "min_p": 0.01, "logprobs": 1},
    "penalized": {
        "temperature": 0.0,
        "presence_penalty": 2.0,
        "frequency_penalty": 1.0,
        "repetition_penalty": 1.3,
        "logprobs": 5,
    },
    "constrained": {"temperature": 1.0, "constraint": SCHEMA, "count": 60, "logprobs": 2},
}


def test_logprobs_are_a_capability(bench: Bench) -> None:
    assert bench.engine.capabilities.logprobs


def test_similar_logprob_counts_share_a_graph() -> None:
    """The number of rows is rounded up, so a batch that grows by one may use the same graph."""
    needs = [
        required_steps([SamplingParams(logprobs=0)] * count + [SamplingParams()] * 9)
        for count in range(6)
    ]
    assert needs == [
        NOISE,
        *(NOISE | LOGPROBS | LOGPROB_ROWS_UNIT * rows for rows in (1, 2, 4, 4, 8)),
    ]
    assert (
        required_steps([SamplingParams(logprobs=0), SamplingParams(logprobs=5)])
        == NOISE | LOGPROBS | TOP_LOGPROBS | LOGPROB_ROWS_UNIT * 2
    )


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_match_the_forward_pass(bench: Bench, kind: str) -> None:
    request = make_request(1, **KINDS[kind])
    (deltas,) = bench.generate(request)
    assert len(bench.check(request, deltas)) >= 5


def test_all_kinds_in_one_batch(bench: Bench) -> None:
    """Rows come and go because lengths differ, and some requests need no logprobs."""
    requests = [
        make_request(at, **{"count": 4 + 3 * at, **kind}) for at, kind in enumerate(KINDS.values())
    ]
    silent = [make_request(20 + at, 12, logprobs=None) for at in range(3)]
    mixed = [silent[0], *requests[:4], silent[1], *requests[4:], silent[2]]
    outputs = dict(zip((one.id for one in mixed), bench.generate(*mixed), strict=True))
    for request in requests:
        bench.check(request, outputs[request.id])
    for request in silent:
        assert not any(delta.logprobs for delta in outputs[request.id])


def test_logprobs_do_not_change_the_tokens(bench: Bench) -> None:
    """Requesting logprobs does not change sampling."""
    for kind in ("sampled", "penalized"):
        plain = {**KINDS[kind], "logprobs": None}
        outputs = bench.generate(make_request(5, **KINDS[kind]), make_request(5, **plain))
        # A delta contains the tokens of several steps if the server was busy.
        one, other = ([token for delta in deltas for token in delta.ids] for deltas in outputs)
        assert one == other


def test_constraint_does_not_change_logprobs(bench: Bench) -> None:
    """Tokens that a grammar enforces may be unlikely, and are reported as such."""
    request = make_request(1, **KINDS["constrained"])
    (deltas,) = bench.generate(request)
    logprobs = [one for delta in deltas for one in delta.logprobs]
    assert bench.check(request, deltas)[-1] in ENDS
    assert min(one.logprob for one in logprobs) < -8
    assert all(one.top[0][1] > one.logprob for one in logprobs if one.logprob < -8)


@pytest.mark.parametrize("count", [21, 10**6])
def test_too_many_top_logprobs_are_rejected(bench: Bench, count: int) -> None:
    with pytest.raises(ClientError, match="at most 20"):
        bench.generate(make_request(1, logprobs=count))


@dataclass
class RecordedRegistry:
    """The engine behind the server's own pipeline."""

    service: ModelRegistry
    ledger: Ledger
    recorded: RecordingEngine


def create_registry(bench: Bench, *, keep: bool) -> RecordedRegistry:
    ledger = Ledger(MemoryLedgerStore())
    recorded = RecordingEngine(bench.engine)
    preparer = ChatPreparer(bench.model, ledger, Keyring([bytes(32)]))
    model = TokenModel(
        ("tiny",), bench.model, preparer, ReplicaPool([recorded]), keep_logprobs=keep
    )
    return RecordedRegistry(ModelRegistry([model], {}), ledger, recorded)


def test_chat_completions_streamed_and_folded(bench: Bench) -> None:
    body: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me of the sea."}],
        "max_tokens": 8,
        "seed": 4,
        "temperature": 1.0,
        "logprobs": True,
        "top_logprobs": 4,
    }

    async def run() -> tuple[list[Any], list[Any]]:
        async with serving(registry=create_registry(bench, keep=False).service) as stage:
            client = stage.openai()
            response = await client.chat.completions.create(**body)
            assert response.choices[0].logprobs is not None
            streamed: list[Any] = []
            async for chunk in await client.chat.completions.create(**body, stream=True):
                for choice in chunk.choices:
                    if choice.logprobs is not None:
                        streamed += choice.logprobs.content or []
            return response.choices[0].logprobs.content or [], streamed

    whole, streamed = bench.run(run())
    assert len(whole) == 8
    assert {len(one.top_logprobs) for one in whole} == {4}
    assert [one.token for one in whole] == [one.token for one in streamed]
    for one, other in zip(whole, streamed, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=NEAR)
        best = [top.logprob for top in one.top_logprobs]
        assert best == pytest.approx([top.logprob for top in other.top_logprobs], abs=NEAR)
        assert max(best) >= one.logprob - NEAR


@pytest.mark.parametrize(("api", "keep"), REQUESTED_OR_STORED)
def test_exported_logprobs_are_those_of_the_model(bench: Bench, api: str, keep: bool) -> None:
    stand = create_registry(bench, keep=keep)

    async def run() -> tuple[list[list[float]], list[Any]]:
        async with serving(registry=stand.service) as stage:
            session = Session(stage.url, api, "tiny", "s")
            shown = await asyncio.to_thread(session.run)
            return shown, msgspec.to_builtins(await exported(stand.ledger, "s"))

    shown, samples = bench.run(run())
    outputs = stand.recorded.outputs
    check_samples(samples, outputs, known=keep or api != "messages")
    check_shown(api, shown, outputs)
    for truth in outputs:
        start = len(truth.prompt)
        plain = bench.plain.run([*truth.prompt, *truth.ids], start, 1, SPELLED)
        assert truth.logprobs == (
            pytest.approx(plain.logprobs, abs=NEAR) if keep or api != "messages" else []
        )
