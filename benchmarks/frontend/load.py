"""Load on a frontend, and its cost."""

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.running import NAME, TOKENIZERS

from benchmarks.frontend import client, cpu
from benchmarks.frontend.requests import MAX_TOKENS, PATHS, body
from benchmarks.frontend.servers import Frontend

MISSING = "wrk is not installed; on Debian and Ubuntu: apt-get install wrk"
_TIMEOUT_SECONDS = 120  # without a response; slow responses are no errors here


@dataclass(frozen=True)
class Cost:
    """The cost of a load: tokens, responses, wall time, and CPU time of the frontend.

    `child` is the part of the CPU time that its engine's process used, if that counts.
    """

    tokens: int
    responses: int
    seconds: float
    spent: cpu.Spent
    child: cpu.Spent = cpu.NOTHING

    @property
    def us(self) -> float:
        """Microseconds of CPU time per token."""
        return self.spent.total / max(1, self.tokens) * 1e6

    @property
    def request_us(self) -> float:
        """Microseconds of CPU time per response."""
        return self.spent.total / max(1, self.responses) * 1e6

    @property
    def child_us(self) -> float:
        """Microseconds of CPU time per token in the engine's process."""
        return self.child.total / max(1, self.tokens) * 1e6

    @property
    def length(self) -> float:
        """Tokens per response."""
        return self.tokens / max(1, self.responses)

    def beyond(self, shorter: "Cost") -> float:
        """Return the microseconds per token beyond the length of a shorter response."""
        more = self.us * self.length - shorter.us * shorter.length
        return more / (self.length - shorter.length)


@dataclass(frozen=True)
class StreamRequest:
    """A request: an API, the message that names the part, and the limit of the output."""

    api: str
    cue: str
    max_tokens: int = MAX_TOKENS

    @property
    def body(self) -> bytes:
        return body(self.api, NAME, self.cue, self.max_tokens)

    def plan(self, port: int, streams: int = 1, **more: Any) -> client.Plan:
        """Return the same request for the lean client."""
        return client.Plan(port, PATHS[self.api], (self.body.decode(),), streams, **more)


def missing() -> str | None:
    """Return what has to be installed first, or an empty string."""
    if not (TOKENIZERS / "qwen3").is_dir():
        return "the tokenizer of Qwen3 is missing: run `make tokenizers`"
    return None if shutil.which("wrk") else MISSING


def wrk(frontend: Frontend, request: StreamRequest, streams: int, seconds: int) -> Cost:
    """Stream the same request repeatedly, and abort at the end of the time."""
    before, begun, child = frontend.await_idle(), frontend.spent(), frontend.child_spent()
    output = _run_wrk(
        f"http://127.0.0.1:{frontend.port}{PATHS[request.api]}", request, streams, seconds
    )
    tokens = frontend.await_idle() - before
    spent, child = frontend.spent().since(begun), frontend.child_spent().since(child)
    return Cost(tokens, _count_responses(output), seconds, spent, child)


def whole(frontend: Frontend, request: StreamRequest, streams: int, times: int) -> Cost:
    """Read all streams to their ends, so that the cost of the end is included."""
    before, begun, child = frontend.await_idle(), frontend.spent(), frontend.child_spent()
    seen = client.run(request.plan(frontend.port, streams, times=times))
    tokens = frontend.await_idle() - before
    spent, child = frontend.spent().since(begun), frontend.child_spent().since(child)
    took = max(one.times[-1] for one in seen) - min(one.sent for one in seen)
    return Cost(tokens, len(seen), took / 1e9, spent, child)


def _run_wrk(url: str, request: StreamRequest, streams: int, seconds: int) -> str:
    with tempfile.TemporaryDirectory(prefix="dovetail-wrk-") as folder:
        script = Path(folder) / "request.lua"
        script.write_text(
            'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\n'
            f"wrk.body = {json.dumps(request.body.decode())}\n"
        )
        flags = ["-t1", f"-c{streams}", f"-d{seconds}s", f"--timeout={_TIMEOUT_SECONDS}s"]
        done = subprocess.run(
            ["wrk", *flags, "-s", str(script), url], capture_output=True, text=True, check=True
        )
    return done.stdout


def _count_responses(output: str) -> int:
    """Return the number of requests that wrk reports as completed."""
    if "Non-2xx" in output:
        raise RuntimeError(f"the frontend rejected requests:\n{output}")
    found = re.search(r"(\d+) requests in", output)
    return int(found[1]) if found else 0
