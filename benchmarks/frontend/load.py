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
from benchmarks.frontend.requests import MOST, PATHS, body
from benchmarks.frontend.servers import Frontend

MISSING = "wrk is not installed; on Debian and Ubuntu: apt-get install wrk"
_PATIENCE = 120  # seconds without an answer, which are no error here


@dataclass(frozen=True)
class Cost:
    """What a load took: tokens, answers, wall time, and processor time of the frontend."""

    tokens: int
    answers: int
    seconds: float
    spent: cpu.Spent

    @property
    def us(self) -> float:
        """Microseconds of processor time for a token."""
        return self.spent.total / max(1, self.tokens) * 1e6

    @property
    def length(self) -> float:
        """Tokens of an answer."""
        return self.tokens / max(1, self.answers)

    def beyond(self, shorter: "Cost") -> float:
        """Microseconds for each of the tokens that a shorter answer does not have."""
        more = self.us * self.length - shorter.us * shorter.length
        return more / (self.length - shorter.length)


@dataclass(frozen=True)
class Ask:
    """A request: an API, the message that names the part, and the limit of the answer."""

    api: str
    cue: str
    most: int = MOST

    @property
    def body(self) -> bytes:
        return body(self.api, NAME, self.cue, self.most)

    def plan(self, port: int, streams: int = 1, **more: Any) -> client.Plan:
        """The same for the lean client."""
        return client.Plan(port, PATHS[self.api], (self.body.decode(),), streams, **more)


def missing() -> str | None:
    """What has to be installed first, if anything."""
    if not (TOKENIZERS / "qwen3").is_dir():
        return "no tokenizer qwen3 at hand: make tokenizers"
    return None if shutil.which("wrk") else MISSING


def wrk(frontend: Frontend, ask: Ask, streams: int, seconds: int) -> Cost:
    """Streams of the same request, again and again, broken off when the time is over."""
    before, begun = frontend.settled(), cpu.spent(frontend.pid)
    told = _run_wrk(f"http://127.0.0.1:{frontend.port}{PATHS[ask.api]}", ask, streams, seconds)
    tokens = frontend.settled() - before
    return Cost(tokens, _answers(told), seconds, cpu.spent(frontend.pid).since(begun))


def whole(frontend: Frontend, ask: Ask, streams: int, times: int) -> Cost:
    """Streams that are all read to their ends, so that what an end costs is counted too."""
    before, begun = frontend.settled(), cpu.spent(frontend.pid)
    seen = client.run(ask.plan(frontend.port, streams, times=times))
    tokens = frontend.settled() - before
    spent = cpu.spent(frontend.pid).since(begun)
    took = max(one.times[-1] for one in seen) - min(one.asked for one in seen)
    return Cost(tokens, len(seen), took / 1e9, spent)


def _run_wrk(url: str, ask: Ask, streams: int, seconds: int) -> str:
    with tempfile.TemporaryDirectory(prefix="dovetail-wrk-") as folder:
        script = Path(folder) / "request.lua"
        script.write_text(
            'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\n'
            f"wrk.body = {json.dumps(ask.body.decode())}\n"
        )
        flags = ["-t1", f"-c{streams}", f"-d{seconds}s", f"--timeout={_PATIENCE}s"]
        done = subprocess.run(
            ["wrk", *flags, "-s", str(script), url], capture_output=True, text=True, check=True
        )
    return done.stdout


def _answers(told: str) -> int:
    """The requests that wrk saw answered to the end."""
    if "Non-2xx" in told:
        raise RuntimeError(f"the frontend refused requests:\n{told}")
    found = re.search(r"(\d+) requests in", told)
    return int(found[1]) if found else 0
