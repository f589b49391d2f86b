"""Exported sessions with the embedded engine contain its own ids and logprobs.

The weights are real. The engine's output is recorded at its source, and llama.cpp is then queried
over its native API for the logprob of each token.
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

LISTED = 500  # most likely tokens; nearly every sampled token is among them
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


async def token_logprob(engine: LlamaCppEngine, prompt: Sequence[int], id: int) -> float | None:
    """Return the logprob of a token after a prompt; None if llama.cpp does not list it."""
    fields = {"prompt": list(prompt), "n_predict": 1, "n_probs": LISTED, "temperature": 0.0}
    assert engine.endpoint is not None
    call = ClientRequest("POST", "/completion", msgspec.json.encode(fields))
    status, content = await fetch(engine.endpoint, call)
    assert status == 200, content
    (token,) = json.loads(content)["completion_probabilities"]
    return next((one["logprob"] for one in token["top_logprobs"] if one["id"] == id), None)


async def check_output(engine: LlamaCppEngine, output: EngineOutput) -> None:
    for at in range(0, len(output.ids), 3):
        logprob = output.logprobs[at]
        if logprob is not None and logprob > -6:
            again = await token_logprob(engine, [*output.prompt, *output.ids[:at]], output.ids[at])
            assert again == pytest.approx(logprob, abs=NEAR)


@pytest.mark.parametrize(("api", "keep"), REQUESTED_OR_STORED)
def test_exported_logprobs_are_those_of_llamacpp(bench: Bench, api: str, keep: bool) -> None:
    recorded, ledger = RecordingEngine(bench.engine), Ledger(MemoryLedgerStore())
    preparer = ChatPreparer(bench.model, ledger, Keyring([bytes(32)]))
    entry = TokenModel(
        ("small",), bench.model, preparer, ReplicaPool([recorded]), keep_logprobs=keep
    )
    known = keep or api != "messages"

    async def run() -> tuple[list[list[float]], list[Any]]:
        async with serving(registry=ModelRegistry([entry], {})) as stage:
            session = Session(stage.url, api, "small", "s")
            shown = await asyncio.to_thread(session.run)
        for output in recorded.outputs if known else ():
            await check_output(bench.engine, output)
        return shown, msgspec.to_builtins(await exported(ledger, "s"))

    shown, samples = bench.runner.run(run())
    assert [len(one.logprobs) == len(one.ids) for one in recorded.outputs] == [known] * 2
    check_samples(samples, recorded.outputs, known=known)
    check_shown(api, shown, recorded.outputs)


def test_too_many_top_logprobs_are_rejected(bench: Bench) -> None:
    too_many = request(array("i", bench.model.tokenizer.encode("Hi")), 4, logprobs=21)
    with pytest.raises(InvalidRequest, match="at most 20") as raised:
        bench.runner.run(collect(bench.engine, too_many))
    assert raised.value.param == "top_logprobs"
