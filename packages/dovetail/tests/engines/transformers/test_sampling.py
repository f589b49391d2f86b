"""Sampling of the transformers engine, compared with a plain implementation."""

import json
import math
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch_environment import PYTHON, need_torch

import dovetail
import dovetail_model
import dovetail_parsers
import dovetail_protocols
import dovetail_tokenizers
from dovetail.engines.transformers.child.batch_sampler import (
    FULL_SORT,
    MIN_P,
    NOISE,
    PARTIAL_SORT,
    PENALTY,
    key_graphs_by_steps,
    required_steps,
)
from dovetail.engines.transformers.child.sampling_params import (
    MAX_PENALTY,
    MAX_TEMPERATURE,
    SamplingDefaults,
    SamplingParams,
)
from dovetail_model import Sampling

VOCABULARY, SPELLED = 200, 197
NEEDED = (dovetail, dovetail_model, dovetail_parsers, dovetail_protocols, dovetail_tokenizers)
BITS_32, BITS_64 = (1 << 32) - 1, (1 << 64) - 1
real_torch = pytest.mark.transformers
names = (f"bench {number}" for number in count())


class Worker:
    """A processor in the interpreter that has torch."""

    def __init__(self) -> None:
        folders = [str(Path(package.__path__[0]).parent) for package in NEEDED]
        self._process = subprocess.Popen(
            [PYTHON, str(Path(__file__).parents[2] / "support" / "sampling_worker.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        )

    def run(self, bench: str, size: Sequence[int], act: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([bench, size, act, given]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Batch:
    """One processor for a single test."""

    def __init__(self, worker: Worker, size: Sequence[int] = (16, VOCABULARY, SPELLED)) -> None:
        self._worker, self._size, self._name = worker, size, next(names)

    def step(self, *rows: dict[str, Any]) -> list[list[float | None]]:
        scores = [row["scores"] for row in rows]
        fields = [{name: row[name] for name in row if name != "scores"} for row in rows]
        done: list[list[float | None]] = self._worker.run(
            self._name, self._size, "step", rows=fields, scores=scores
        )
        return done

    def draws(
        self, seeds: Sequence[int], places: int, scores: list[float] | int, **fields: Any
    ) -> list[list[int]]:
        sampled: list[list[int]] = self._worker.run(
            self._name,
            self._size,
            "draws",
            seeds=list(seeds),
            places=places,
            scores=scores,
            fields=fields,
        )
        return sampled


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    need_torch()
    made = Worker()
    yield made
    made.close()


def some_scores(seed: int) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(0, 3) for _ in range(VOCABULARY)]


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "prompt": [1, 2, 3, 2], "generated": [], "scores": some_scores(1), **more}


def left(done: Sequence[float | None]) -> set[int]:
    return {id for id, score in enumerate(done) if score is not None}


def plain_filter(scores: Sequence[float], draw: dict[str, Any]) -> set[int]:
    """Return the tokens that remain after min_p, then top_k, then top_p."""
    ranked = sorted(range(SPELLED), key=lambda id: -scores[id])
    weights = [math.exp(score / draw["temperature"]) for score in scores]
    ranked = [id for id in ranked if weights[id] >= draw.get("min_p", 0) * weights[ranked[0]]]
    ranked = ranked[: draw.get("top_k", 0) or None]
    whole, before = sum(weights[id] for id in ranked), 0.0
    nucleus: set[int] = set()
    for id in ranked:
        if before < draw.get("top_p", 1.0) * whole or not nucleus:
            nucleus.add(id)
        before += weights[id]
    return nucleus


def plain_noise(seed: int, place: int, id: int) -> float:
    """Return the noise of a token, computed with plain integers."""
    key = _mixed((_mixed(seed & BITS_64) + place) & BITS_64)
    factor, offset = (key & BITS_32) | 1, key >> 32
    mixed = ((_mixed(id) >> 32) * factor + offset) & BITS_32
    mixed = (mixed ^ _shifted(mixed, 15)) * 0x2C1B3C6D & BITS_32
    mixed ^= _shifted(mixed, 13)
    assert mixed < 1 << 31
    return -math.log(-math.log1p(-(mixed + 0.5) * (1 - 2**-23) / 2**31))


def _mixed(number: int) -> int:
    number = (number + 1) * 0x9E3779B97F4A7C15 & BITS_64
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & BITS_64
    number = (number ^ number >> 27) * 0x94D049BB133111EB & BITS_64
    return number ^ number >> 31


def _shifted(number: int, by: int) -> int:
    """Shift arithmetically, as for signed integers."""
    signed = number - (1 << 32) if number >> 31 else number
    return signed >> by & BITS_32


def penalized(scores: Sequence[float], prompt: list[int], generated: list[int], draw: Any) -> Any:
    done: list[float | None] = []
    for id, score in enumerate(scores):
        if id in generated or id in prompt:
            rate = draw.get("repetition", 1.0)
            score = score / rate if score > 0 else score * rate
        times = generated.count(id)
        score -= draw.get("frequency", 0.0) * times + draw.get("presence", 0.0) * (times > 0)
        done.append(score if id < SPELLED else None)
    return pytest.approx(done, abs=1e-4)


def surprise(counts: Counter[Any], shares: dict[Any, float]) -> float:
    """Return chi-square, in standard deviations from its expected value."""
    total = counts.total()
    square = sum(
        (counts[key] - share * total) ** 2 / (share * total) for key, share in shares.items()
    )
    freedom = len(shares) - 1
    return (square - freedom) / math.sqrt(2 * freedom)


def softmax(scores: Sequence[float], temperature: float = 1.0) -> dict[int, float]:
    weights = [math.exp(score / temperature) for score in scores]
    return {id: weight / sum(weights) for id, weight in enumerate(weights)}


def test_unset_parameters_are_the_models_defaults() -> None:
    sampler = SamplingDefaults({"temperature": 0.6, "top_k": 20, "top_p": None, "min_p": 0.1}, 100)
    draw = sampler.resolve(Sampling(top_p=0.5, presence_penalty=1.5))
    assert (draw.temperature, draw.top_k, draw.top_p, draw.min_p) == (0.6, 20, 0.5, 0.1)
    assert (draw.presence, draw.frequency, draw.repetition) == (1.5, 0.0, 1.0)
    assert draw.has_penalties
    assert not SamplingDefaults({}, 100).resolve(Sampling()).has_penalties


def test_parameters_are_clamped() -> None:
    draw = SamplingDefaults({}, 100).resolve(
        Sampling(top_k=100, top_p=-1.0, min_p=7.0, repetition_penalty=0.0, temperature=1.0)
    )
    assert (draw.top_k, draw.top_p, draw.min_p) == (0, 0.0, 1.0)
    assert draw.repetition > 0
    assert SamplingDefaults({}, 100).resolve(Sampling(top_k=-1)).top_k == 0
    wild = Sampling(temperature=1e39, presence_penalty=-1e39, frequency_penalty=1e39)
    draw = SamplingDefaults({}, 100).resolve(wild)
    assert (draw.temperature, draw.presence, draw.frequency) == (
        MAX_TEMPERATURE,
        -MAX_PENALTY,
        MAX_PENALTY,
    )


def test_greedy_filters_nothing() -> None:
    """The best token passes every filter."""
    draw = SamplingDefaults({"top_k": 20}, 100).resolve(
        Sampling(temperature=1e-9, top_p=0.1, min_p=0.2)
    )
    assert (draw.temperature, draw.top_k, draw.top_p, draw.min_p) == (0.0, 0, 1.0, 0.0)


def test_request_without_a_seed_gets_a_unique_one() -> None:
    sampler = SamplingDefaults({}, 100)
    assert len({sampler.resolve(Sampling()).seed for _ in range(8)}) == 8
    assert sampler.resolve(Sampling(seed=-5)).seed == -5


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"temperature": 0.0}, 0),
        ({}, NOISE),
        ({"top_k": 20, "top_p": 0.9}, NOISE | PARTIAL_SORT),
        ({"top_p": 0.9}, NOISE | FULL_SORT),
        ({"top_k": 5000, "min_p": 0.1}, NOISE | FULL_SORT | MIN_P),
        ({"temperature": 0.0, "repetition": 1.1}, PENALTY),
    ],
)
def test_different_steps_use_different_graphs(fields: dict[str, Any], steps: int) -> None:
    """Work that no request needs is skipped, and a graph is replayed only for the same steps."""
    sampler: Any = SimpleNamespace(
        steps=required_steps([SamplingParams(**fields), SamplingParams(temperature=0.0)])
    )
    assert sampler.steps == steps
    buffers = SimpleNamespace(_get_graph_key=lambda: (8,))
    key_graphs_by_steps(buffers, sampler)
    assert buffers._get_graph_key() == ((8,) if steps == NOISE else (8, "needs", steps))


@real_torch
def test_greedy_masks_only_padding_ids(worker: Worker) -> None:
    scores = some_scores(5)
    (done,) = Batch(worker).step(row("a", draw={"temperature": 0.0}, scores=scores))
    assert done[:SPELLED] == pytest.approx(scores[:SPELLED])
    assert done[SPELLED:] == [None] * (VOCABULARY - SPELLED)


@real_torch
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, 2**70 + 3])
def test_noise_is_a_function_of_seed_position_and_token(worker: Worker, seed: int) -> None:
    draw = {"temperature": 2.0, "seed": seed}
    for place in (0, 1, 17):
        given = row("a", draw=draw, generated=[9] * place)
        (done,) = Batch(worker).step(given)
        noise = [(done[id] - given["scores"][id]) / 2.0 for id in range(SPELLED)]
        expected = [plain_noise(seed, place, id) for id in range(SPELLED)]
        assert noise == pytest.approx(expected, abs=1e-4)


@real_torch
@pytest.mark.parametrize(
    "draw",
    [
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.3, "top_p": 0.999},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 2.0, "top_k": 7},
        {"temperature": 2.0, "top_k": 150},
        {"temperature": 1.5, "min_p": 0.2},
        {"temperature": 5.0, "top_k": 30, "top_p": 0.7},
        {"temperature": 5.0, "top_k": 190, "top_p": 0.7},
        {"temperature": 3.0, "top_k": 40, "top_p": 0.8, "min_p": 0.3},
        {"temperature": 1.0, "top_p": 1.0},
    ],
)
def test_filters_match_the_reference(worker: Worker, draw: dict[str, Any]) -> None:
    for seed in range(3):
        scores = some_scores(seed)
        (done,) = Batch(worker).step(row("a", draw=draw, scores=scores))
        expected = plain_filter(scores, draw)
        assert left(done) == expected
        assert len(expected) in range(1, SPELLED + 1)


@real_torch
def test_penalties_follow_generated_tokens(worker: Worker) -> None:
    batch, draws = (
        Batch(worker),
        [
            {"temperature": 0.0, "repetition": 1.3},
            {"temperature": 0.0, "presence": 0.7},
            {"temperature": 0.0, "frequency": 0.4, "repetition": 0.8, "presence": -0.2},
            {"temperature": 0.0},
        ],
    )
    generated: list[list[int]] = [[], [], [], []]
    for step in range(4):
        order = [0, 1, 2, 3] if step % 2 else [3, 1, 0, 2]  # rows change their positions
        rows = [row(f"r{at}", draw=draws[at], generated=generated[at]) for at in order]
        for at, one, done in zip(order, rows, batch.step(*rows), strict=True):
            assert done == penalized(one["scores"], one["prompt"], generated[at], draws[at])
        for at in order:
            generated[at] = [*generated[at], 2 + at * step, 77]


@real_torch
def test_more_requests_with_penalties_than_slots(worker: Worker) -> None:
    """A request that lost its slot is counted from the start when it returns."""
    batch = Batch(worker, (2, VOCABULARY, SPELLED))
    generated: dict[str, list[int]] = {name: [] for name in "abcde"}
    for pair in ("ab", "cd", "ae", "ab", "ec", "da"):
        draw = {"temperature": 0.0, "frequency": 0.5, "repetition": 1.1}
        rows = [row(name, draw=draw, generated=generated[name]) for name in pair]
        for name, one, done in zip(pair, rows, batch.step(*rows), strict=True):
            assert done == penalized(one["scores"], one["prompt"], generated[name], draw)
            generated[name] = [*generated[name], ord(name), 5]


@real_torch
def test_restarted_request_continues_as_before(worker: Worker) -> None:
    draw = {"temperature": 1.0, "seed": 3, "frequency": 0.5, "repetition": 1.2}
    generated = [5, 6, 5, 7]
    (plain,) = Batch(worker).step(row("a", draw=draw, generated=generated))
    (moved,) = Batch(worker).step(row("a", draw=draw, generated=generated, moved=3))
    assert moved == plain
    batch = Batch(worker)
    batch.step(row("a", draw=draw, generated=generated[:3]))
    (resumed,) = batch.step(row("a", draw=draw, generated=generated, moved=3))
    assert resumed == plain


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"seed": 1},
    "top_k": {"seed": 2, "top_k": 5, "top_p": 0.9},
    "top_p": {"seed": 3, "top_p": 0.8},
    "min_p": {"seed": 4, "min_p": 0.1},
    "guided": {"seed": 5, "allow": [3, 31, 32, 63, 199]},
    "penalized": {"seed": 6, "presence": 1.0},
}


@real_torch
def test_rows_are_independent_of_the_batch(worker: Worker) -> None:
    rows = [row(name, draw=dict(draw), generated=[4, 2]) for name, draw in KINDS.items()]
    together = Batch(worker).step(*rows)
    for one, done in zip(rows, together, strict=True):
        (alone,) = Batch(worker).step(one)
        assert done == [None if x is None else pytest.approx(x, abs=1e-5) for x in alone], one
    assert left(together[list(KINDS).index("guided")]) == {3, 31, 32, 63}


@real_torch
def test_mask_is_cleared_when_its_request_has_left(worker: Worker) -> None:
    batch = Batch(worker)
    guided = row("g", draw={"temperature": 0.0, "allow": [5]})
    other = row("h", draw={"temperature": 0.0, "allow": [6, 7]})
    free = row("f", draw={"temperature": 0.0})
    assert [left(done) for done in batch.step(guided, free, other)] == [
        {5},
        set(range(SPELLED)),
        {6, 7},
    ]
    assert [left(done) for done in batch.step(free, other)] == [set(range(SPELLED)), {6, 7}]
    assert [left(done) for done in batch.step(other, free)] == [{6, 7}, set(range(SPELLED))]
    assert [left(done) for done in batch.step(free, free)] == [set(range(SPELLED))] * 2


@real_torch
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_follow_their_distribution(worker: Worker, temperature: float) -> None:
    scores = some_scores(11)[:12]
    batch = Batch(worker, (64, 12, 12))
    sampled = batch.draws(range(64), 200, scores, temperature=temperature)
    counts = Counter(id for column in sampled for id in column)
    likely = {id: p for id, p in softmax(scores, temperature).items() if p * 12_800 > 5}
    assert abs(surprise(counts, likely)) < 4


@real_torch
def test_samples_are_independent(worker: Worker) -> None:
    """Neither adjacent positions nor adjacent seeds are correlated."""
    sampled = Batch(worker, (64, 4, 4)).draws(range(64), 200, [0.0, 0.3, 0.6, 0.9])
    single = softmax([0.0, 0.3, 0.6, 0.9])
    shares = {(a, b): single[a] * single[b] for a in single for b in single}
    places = Counter(pair for column in sampled for pair in pairwise(column))
    seeds = Counter(pair for at in zip(*sampled, strict=True) for pair in pairwise(at))
    assert abs(surprise(places, shares)) < 4
    assert abs(surprise(seeds, shares)) < 4


@real_torch
def test_large_vocabulary_is_sampled_evenly(worker: Worker) -> None:
    size = 151_936
    sampled = Batch(worker, (16, size, size)).draws(range(16), 100, size)
    ids = [id for column in sampled for id in column]
    parts = dict.fromkeys(range(16), 1 / 16)
    assert abs(surprise(Counter(id * 16 // size for id in ids), parts)) < 4
    assert abs(surprise(Counter(id % 16 for id in ids), parts)) < 4
    assert len(set(ids)) > 1580  # of 1600: the number of distinct values expected by chance


@real_torch
def test_filters_do_not_change_the_noise(worker: Worker) -> None:
    """The noise of a token does not depend on which other tokens are allowed."""
    draw = {"temperature": 1.0, "seed": 8}
    (free,) = Batch(worker).step(row("a", draw=draw))
    (filtered,) = Batch(worker).step(row("a", draw={**draw, "top_k": 20}))
    allowed = left(filtered)
    assert [filtered[id] for id in allowed] == pytest.approx([free[id] for id in allowed])
