"""The frontends that are measured, each with its engine: Dovetail, Dynamo's, vLLM's own."""

import json
import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

# First, because it adds the test modules to the path.
from tools.running import NAME, PARSERS, ROOT, dynamo, scripted_engine, vllm

# isort: split
from server_process import qwen_folder, served
from tiny_qwen3 import tiny_qwen3

from benchmarks.frontend.cpu import NOTHING, Spent, engine_process, resident, spent
from benchmarks.frontend.parts import Author, Part, write_ids, write_script

CONTEXT = 200_000
STEP_ENGINE = "benchmarks.frontend.step_engine:create"
WORKER = Path(__file__).with_name("dynamo_worker.py")
END = 151_645  # Qwen3's <|im_end|>
MAX_STREAMS = 8_192
_STILL = 0.3  # seconds without a token, in which the frontend uses less than _IDLE seconds of CPU
_IDLE = 0.03


@dataclass(frozen=True)
class Frontend:
    """A server under test: its process, its port, and the tokens that its engine sent.

    `fresh` is its memory before the first request, `engine` the port of an engine that accepts
    requests without the frontend, `child` a process of the engine whose CPU time counts, too.
    """

    name: str
    pid: int
    port: int
    tokens: Callable[[], int]
    fresh: int
    engine: int | None = None
    child: int | None = None

    def spent(self) -> Spent:
        """Return the CPU time of the frontend and of its child."""
        return spent(self.pid).plus(self.child_spent())

    def child_spent(self) -> Spent:
        return NOTHING if self.child is None else spent(self.child)

    def await_idle(self) -> int:
        """Wait until the engine and the frontend are idle, and return the number of tokens."""
        count, busy = self.tokens(), spent(self.pid).total
        while True:
            time.sleep(_STILL)
            before, worked = count, busy
            count, busy = self.tokens(), spent(self.pid).total
            if count == before and busy - worked < _IDLE:
                return count


@dataclass(frozen=True)
class Launch:
    """How Dovetail is started: the module that runs it, and variables of its environment."""

    program: tuple[str, ...] = ("-m", "dovetail")
    environment: Mapping[str, str] = field(default_factory=lambda: {"PYTHONPATH": str(ROOT)})


DEFAULT_LAUNCH = Launch()


def model_folder(folder: Path) -> Path:
    """Create a model folder with Qwen3's tokenizer and template, and context for long calls."""
    config = qwen_folder(folder) / "config.json"
    fields = json.loads(config.read_bytes())
    config.write_text(json.dumps({**fields, "max_position_embeddings": CONTEXT}), "utf-8")
    return folder


@contextmanager
def dovetail_frontend(
    parts: list[Part], model: Path, scratch: Path, launch: Launch = DEFAULT_LAUNCH
) -> Iterator[Frontend]:
    """Run Dovetail in front of the scripted engine, which serves vLLM's completions protocol."""
    script = write_script(parts, scratch / "script.json")
    with scripted_engine(script, model, scratch) as port:
        engine = ("--engine", "vllm", "--engine-url", f"http://127.0.0.1:{port}")
        limit = ("--max-concurrent-requests", str(MAX_STREAMS))
        flags = (*engine, "--tokenizer", model, *PARSERS, *limit)
        with served(*flags, environment=launch.environment, program=launch.program) as running:
            http = int(running.url.rpartition(":")[2])
            pid = running.process.pid
            yield Frontend(
                "dovetail", pid, http, lambda: generated_tokens(port), resident(pid), port
            )


@contextmanager
def steps_frontend(
    parts: list[Part], author: Author, scratch: Path, launch: Launch = DEFAULT_LAUNCH
) -> Iterator[Frontend]:
    """Run Dovetail with an engine behind the step protocol, whose process counts, too."""
    script = write_ids(parts, author, END, scratch / "step-ids.json")
    counter = scratch / "step-tokens"
    counter.write_bytes(bytes(8))
    engine = ["--engine", STEP_ENGINE, "--engine-option", f"script={script}"]
    engine += ["--engine-option", f"counter={counter}", "--served-model-name", NAME]
    limit = ("--max-concurrent-requests", str(MAX_STREAMS))
    with (
        counter.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as counted,
        served(
            scratch / "model",
            *engine,
            *PARSERS,
            *limit,
            environment=launch.environment,
            program=launch.program,
        ) as running,
    ):
        http, pid = int(running.url.rpartition(":")[2]), running.process.pid
        yield Frontend(
            "dovetail, steps",
            pid,
            http,
            lambda: int.from_bytes(counted[:8], "little"),
            resident(pid),
            child=engine_process(pid),
        )


@contextmanager
def dynamo_frontend(parts: list[Part], author: Author, scratch: Path) -> Iterator[Frontend]:
    """Run Dynamo's frontend, and a worker that outputs the same ids at the same pace."""
    script = write_ids(parts, author, END, scratch / "ids.json")
    counter = scratch / "tokens"
    counter.write_bytes(bytes(8))
    worker = [str(WORKER), "--script", str(script), "--counter", str(counter), "--name", NAME]
    worker += ["--model", str(scratch / "model"), "--context-length", str(CONTEXT), *PARSERS]
    with (
        counter.open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as counted,
        dynamo(worker, scratch) as (process, port),
    ):
        pid = process.pid
        yield Frontend(
            "dynamo", pid, port, lambda: int.from_bytes(counted[:8], "little"), resident(pid)
        )


@contextmanager
def vllm_frontend(scratch: Path) -> Iterator[Frontend]:
    """Run vLLM's API server. Its engine is a separate process, with a tiny model on the CPU."""
    with vllm(tiny_qwen3(scratch / "tiny"), scratch) as server:
        pid, count = server.process.pid, server.metric
        yield Frontend(
            "vllm", pid, server.port, lambda: int(count("generation_tokens_total")), resident(pid)
        )


def generated_tokens(port: int) -> int:
    """Return the tokens of the engine's finished and cancelled responses, if none is running."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = [line for line in response.read().decode().splitlines() if line[0] != "#"]
    values = {line.partition("{")[0]: float(line.split()[-1]) for line in lines}
    # A response is counted at its end: while one is running, the count must not look stable.
    going = values["vllm:num_requests_running"]
    return int(values["vllm:generation_tokens_total"]) if not going else -time.monotonic_ns()
