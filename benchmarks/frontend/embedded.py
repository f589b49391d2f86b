"""What does a token of vLLM cost between its engine core and the client, with either frontend?

Dovetail with the embedded vLLM (its process and the child that runs `AsyncLLM`) is compared with
vLLM's own API server, on the CPU with a tiny model. Both stream Chat Completions at the rate that
the engine core sustains.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# First, because it adds the test modules to the path.
from tools.running import NAME, PARSERS, VLLM, VLLM_PYTHON, vllm

# isort: split
from server_process import served
from tiny_qwen3 import tiny_qwen3
from vllm_environment import ENVIRONMENT

from benchmarks.frontend import client
from benchmarks.frontend.cpu import engine_process, resident
from benchmarks.frontend.load import Cost
from benchmarks.frontend.requests import PATHS, body
from benchmarks.frontend.rounds import Costs
from benchmarks.frontend.servers import Frontend

STREAMS = (32, 64)
TOKENS = 256  # per stream
OURS, THEIRS = "dovetail, vllm embedded", "vllm serve"
ARGUMENTS = ("dtype=float32", "enforce_eager=true", "block_size=32", "max_num_seqs=64")
CUE = "Continue this text for as long as you can."


def compare(costs: Costs, scratch: Path, rounds: int) -> None:
    """Measure both, one after the other: two engine cores would share the CPU."""
    os.environ.setdefault(VLLM_PYTHON, str(VLLM))
    model = tiny_qwen3(scratch / "small")
    for start in (_embedded, _api_server):
        with start(model, scratch) as frontend:
            _run(frontend, 8)  # the first requests compile and allocate
            for _ in range(rounds):
                for streams in STREAMS:
                    key = (frontend.name, case_name(streams), "chat")
                    costs.add(key, _run(frontend, streams))


def case_name(streams: int) -> str:
    return f"embedded x {streams}"


def _run(frontend: Frontend, streams: int) -> Cost:
    """Read all streams to their ends. The weights are random, so the limit ends the output."""
    begun, child = frontend.spent(), frontend.child_spent()
    bodies = tuple(_body(number) for number in range(streams))
    seen = client.run(client.Plan(frontend.port, PATHS["chat"], bodies, streams))
    spent, child = frontend.spent().since(begun), frontend.child_spent().since(child)
    took = max(one.times[-1] for one in seen) - min(one.sent for one in seen)
    return Cost(streams * TOKENS, len(seen), took / 1e9, spent, child)


def _body(number: int) -> str:
    """Return a request. Without sampling, the output repeats few tokens, as text does."""
    fields = json.loads(body("chat", NAME, f"{number}: {CUE}", TOKENS))
    return json.dumps({**fields, "temperature": 0})


@contextmanager
def _embedded(model: Path, scratch: Path) -> Iterator[Frontend]:
    options = (f"python={os.environ[VLLM_PYTHON]}", *ARGUMENTS)
    flags = [part for option in options for part in ("--engine-option", option)]
    names = ("--served-model-name", NAME)
    with served(
        model, "--engine", "vllm", *flags, *names, *PARSERS, environment=ENVIRONMENT
    ) as running:
        pid, port = running.process.pid, int(running.url.rpartition(":")[2])
        child = engine_process(pid)
        yield Frontend(OURS, pid, port, lambda: 0, resident(pid), child=child)


@contextmanager
def _api_server(model: Path, scratch: Path) -> Iterator[Frontend]:
    with vllm(model, scratch, "--max-num-seqs", "64") as server:
        pid = server.process.pid
        yield Frontend(THEIRS, pid, server.port, lambda: 0, resident(pid))


def describe(costs: Costs) -> list[list[str]]:
    """Return the rows of the table."""
    rows = []
    for streams in STREAMS:
        ours = costs.best(OURS, case_name(streams), "chat")
        theirs = costs.best(THEIRS, case_name(streams), "chat")
        if ours is None or theirs is None:
            continue
        rates = [f"{cost.tokens / cost.seconds:.0f}" for cost in (ours, theirs)]
        parts = [f"{ours.us - ours.child_us:.1f}", f"{ours.child_us:.1f}", f"{theirs.us:.1f}"]
        rows.append([str(streams), *parts, f"{ours.us / theirs.us:.2f}", *rates])
    return rows
