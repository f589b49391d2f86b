"""Load on a frontend, and what it costs there."""

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
_TIMEOUT_SECONDS = 120  # without a response, which is no error here


@dataclass(frozen=True)
class Cost:
    """The cost of a load: tokens, responses, wall time, and CPU time of the frontend."""

    tokens: int
    responses: int
    seconds: float
    spent: cpu.Spent

    @property
    def us(self) -> float:
        """Microseconds of processor time for a token."""
        return self.spent.total / max(1, self.tokens) * 1e6

    @property
    def length(self) -> float:
        """Tokens of a response."""
        return self.tokens / max(1, self.responses)

    def beyond(self, shorter: "Cost") -> float:
        """Microseconds for each of the tokens that a shorter response does not have."""
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
        """The same for the lean client."""
        return client.Plan(port, PATHS[self.api], (self.body.decode(),), streams, **more)


def missing() -> str | None:
    """What has to be installed first, if anything."""
    if not (TOKENIZERS / "qwen3").is_dir():
        return "no tokenizer qwen3 at hand: make tokenizers"
    return None if shutil.which("wrk") else MISSING


def wrk(frontend: Frontend, request: StreamRequest, streams: int, seconds: int) -> Cost:
    """Streams of the same request, again and again, broken off when the time is over."""
    before, begun = frontend.await_idle(), cpu.spent(frontend.pid)
    output = _run_wrk(
        f"http://127.0.0.1:{frontend.port}{PATHS[request.api]}", request, streams, seconds
    )
    tokens = frontend.await_idle() - before
    return Cost(tokens, _count_responses(output), seconds, cpu.spent(frontend.pid).since(begun))


def whole(frontend: Frontend, request: StreamRequest, streams: int, times: int) -> Cost:
    """Streams that are all read to their ends, so that what an end costs is counted too."""
    before, begun = frontend.await_idle(), cpu.spent(frontend.pid)
    seen = client.run(request.plan(frontend.port, streams, times=times))
    tokens = frontend.await_idle() - before
    spent = cpu.spent(frontend.pid).since(begun)
    took = max(one.times[-1] for one in seen) - min(one.sent for one in seen)
    return Cost(tokens, len(seen), took / 1e9, spent)


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
    """The number of requests that wrk saw completed."""
    if "Non-2xx" in output:
        raise RuntimeError(f"the frontend refused requests:\n{output}")
    found = re.search(r"(\d+) requests in", output)
    return int(found[1]) if found else 0
