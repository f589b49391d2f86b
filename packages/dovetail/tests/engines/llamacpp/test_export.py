"""What is exported of sessions with the embedded engine: its own ids and logprobs.

Real weights. What the engine said is noted where it says it, and llama.cpp is asked once more, in
its own words, how likely each token is.
"""

import asyncio
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from exported_sessions import exported
from http_fixture import serving
from llamacpp_environment import CONTEXT, WEIGHTS, collect, need_weights, request
from logprob_sessions import (
    REQUESTED_OR_STORED,
    EngineOutput,
    RecordingEngine,
    Session,
    check_samples,
    check_shown,
)

from dovetail.engines.llamacpp import LlamaCppEngine, LlamaCppOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.net.http_client import ClientRequest, fetch
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import ModelRegistry, TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import InvalidRequest

LISTED = 500  # of the likeliest tokens, among which nearly every drawn one is
NEAR = 0.02  # scores depend on how many tokens are computed at once


@dataclass
class Bench:
    runner: asyncio.Runner
    engine: LlamaCppEngine
    model: Model


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    need_weights()
    model = load_model(WEIGHTS)
    options = LlamaCppOptions(slots=2, batch=64, threads=1)
    engine = LlamaCppEngine(WEIGHTS, model.tokenizer, context_length=CONTEXT, options=options)
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield Bench(runner, engine, model)
        runner.run(engine.stop())


async def likely(engine: LlamaCppEngine, prompt: Sequence[int], id: int) -> float | None:
    """How likely llama.cpp finds a token behind a prompt; None where it does not list it."""
    asked = {"prompt": list(prompt), "n_predict": 1, "n_probs": LISTED, "temperature": 0.0}
    assert engine.endpoint is not None
    call = ClientRequest("POST", "/completion", msgspec.json.encode(asked))
    status, content = await fetch(engine.endpoint, call)
    assert status == 200, content
    (told,) = json.loads(content)["completion_probabilities"]
    return next((one["logprob"] for one in told["top_logprobs"] if one["id"] == id), None)


async def check_truth(engine: LlamaCppEngine, truth: EngineOutput) -> None:
    for at in range(0, len(truth.ids), 3):
        told = truth.logprobs[at]
        if told is not None and told > -6:
            again = await likely(engine, [*truth.prompt, *truth.ids[:at]], truth.ids[at])
            assert again == pytest.approx(told, abs=NEAR)


@pytest.mark.parametrize(("api", "keep"), REQUESTED_OR_STORED)
def test_what_llamacpp_told_is_what_is_exported(bench: Bench, api: str, keep: bool) -> None:
    overheard, ledger = RecordingEngine(bench.engine), Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(bench.model, ledger, Keyring([bytes(32)]))
    served = TokenModel(
        ("small",), bench.model, preparer, ReplicaPool([overheard]), keep_logprobs=keep
    )
    known = keep or api != "messages"

    async def scene() -> tuple[list[list[float]], list[Any]]:
        async with serving(registry=ModelRegistry([served], {})) as stage:
            session = Session(stage.url, api, "small", "s")
            shown = await asyncio.to_thread(session.run)
        for truth in overheard.outputs if known else ():
            await check_truth(bench.engine, truth)
        return shown, msgspec.to_builtins(await exported(ledger, "s"))

    shown, samples = bench.runner.run(scene())
    assert [len(one.logprobs) == len(one.ids) for one in overheard.outputs] == [known] * 2
    check_samples(samples, overheard.outputs, known=known)
    check_shown(api, shown, overheard.outputs)


def test_more_than_is_told_is_refused(bench: Bench) -> None:
    asked = request(array("i", bench.model.tokenizer.encode("Hi")), 4, logprobs=21)
    with pytest.raises(InvalidRequest, match="at most 20") as raised:
        bench.runner.run(collect(bench.engine, asked))
    assert raised.value.param == "top_logprobs"
