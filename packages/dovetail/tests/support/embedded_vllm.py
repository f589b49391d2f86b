"""The embedded vLLM for tests, in an event loop of its own."""

import asyncio
import os
from array import array
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from step_fixture import CollectingSink
from tiny_qwen3 import tiny_lora, tiny_qwen3
from vllm_environment import ENVIRONMENT, PYTHON

from dovetail.engines.engine import EngineRequest
from dovetail.engines.registry import EngineSetup
from dovetail.engines.vllm.embedded import EmbeddedVllmEngine, create_embedded
from dovetail_model import Sampling
from dovetail_tokenizers import load_tokenizer

BLOCK = 32
GREEDY = Sampling(temperature=0.0)
T = TypeVar("T")


class RunningEngine:
    """The engine, started once for all tests of a module."""

    def __init__(self, engine: EmbeddedVllmEngine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self._loop = loop
        self._numbers = iter(range(1 << 20))

    def run(self, work: Awaitable[T], timeout: float = 240.0) -> T:
        async def limited() -> T:
            return await asyncio.wait_for(work, timeout)

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result(timeout + 10)

    def request(self, prompt: "array[int] | None" = None, **fields: Any) -> EngineRequest:
        number = next(self._numbers)
        if prompt is None:
            prompt = array("I", range(1000 + number, 1100 + number))
        fields = {"max_tokens": 24, "sampling": GREEDY, **fields}
        return EngineRequest(id=f"r{number}", prompt=prompt, **fields)

    def generate(self, request: EngineRequest) -> CollectingSink:
        sink = CollectingSink()
        self.run(self.engine.generate(request, sink))
        return sink


@contextmanager
def running_embedded_vllm(folder: Path) -> Iterator[RunningEngine]:
    """Start the embedded vLLM with the tiny Qwen3 and two LoRA adapters, `a` and `b`."""
    model = tiny_qwen3(folder / "model")
    adapters = ",".join(f"{name}={tiny_lora(folder / name, at)}" for at, name in enumerate("ab"))
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    options = {
        "python": os.environ[PYTHON],
        "lora_modules": adapters,
        "dtype": "float32",
        "enforce_eager": "true",
        "block_size": str(BLOCK),
        "max_num_seqs": "4",
        "max_model_len": "8192",
        "max_lora_rank": "8",
    }
    setup = EngineSetup(load_tokenizer(model), model, options=options)
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    running = RunningEngine(create_embedded(setup), loop)
    try:
        running.run(running.engine.start(), 500)
        yield running
    finally:
        running.run(running.engine.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
