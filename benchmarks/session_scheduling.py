"""Session scheduling with the transformers engine and a KV cache that is too small.

`python -m benchmarks.session_scheduling --model DIR`: agent sessions whose contexts together need
`--oversubscription` times the KV cache, with scheduling off, with the best static cap on concurrent
sessions, and with `auto`. 86 % of the turns return within 1 s and 95 % within 10 s. `--cpu` runs a
tiny model on the CPU, which checks this program and measures nothing.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from threading import Semaphore
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.gpu.__main__ import TINY
from benchmarks.gpu.bundle import lay_out_model

START_TIMEOUT_SECONDS, TURN_TIMEOUT_SECONDS = 900.0, 300.0
WORDS_PER_TOKEN = 0.11  # of the words below
NAME = "m"
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "read", "parameters": PARAMETERS},
}


@dataclass(frozen=True)
class Workload:
    """Sessions that start together; each has `tokens` of context at its end."""

    sessions: int
    turns: int
    tokens: int
    output_tokens: int
    gap_scale: float


@dataclass(frozen=True)
class Outcome:
    """One run: its time, the tokens that were prefilled again, the times of all turns."""

    seconds: float
    re_prefilled: float
    latencies: list[float]

    def latency(self, q: float) -> float:
        return sorted(self.latencies)[int(q * (len(self.latencies) - 1))]


def draw_gap(random: Random) -> float:
    """Return the seconds of a tool run."""
    share = random.random()
    low, high = (0.1, 1.0) if share < 0.86 else (1.0, 10.0) if share < 0.95 else (10.0, 60.0)
    return random.uniform(low, high)


def run_session(url: str, number: int, workload: Workload, slots: Semaphore) -> list[float]:
    """Run a session from its first turn to its last, and return the times of its turns."""
    random = Random(number)
    words = int(workload.tokens * WORDS_PER_TOKEN / workload.turns)
    headers = {"content-type": "application/json", "x-dynamo-session-id": f"s{number}"}
    fields = {"model": NAME, "max_tokens": workload.output_tokens, "temperature": 0}
    messages: list[dict[str, Any]] = []
    call: str | None = None
    latencies = []
    with slots:
        for turn in range(workload.turns):
            text = " ".join(f"w{number}t{turn}x{at * 7919 % 1000}" for at in range(words))
            role = {"role": "user"} if call is None else {"role": "tool", "tool_call_id": call}
            messages.append({**role, "content": text})
            choice = "none" if turn == workload.turns - 1 else "required"
            tools = {"tools": [TOOL], "tool_choice": choice}
            body = json.dumps({**fields, **tools, "messages": messages}).encode()
            began = time.monotonic()
            request = Request(f"{url}/v1/chat/completions", body, headers)
            with urlopen(request, timeout=TURN_TIMEOUT_SECONDS) as reply:
                message = json.load(reply)["choices"][0]["message"]
            latencies.append(time.monotonic() - began)
            messages.append({name: value for name, value in message.items() if value is not None})
            call = next((one["id"] for one in message.get("tool_calls") or ()), None)
            time.sleep(draw_gap(random) * workload.gap_scale)
    return latencies


@contextmanager
def server(flags: list[str], log: Path) -> Iterator[str]:
    """Start a server, and yield its URL when it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "dovetail", "serve", *flags, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_ready(process, url, log)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"{url}/ready", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def measure(flags: list[str], workload: Workload, cap: int | None, log: Path) -> Outcome:
    slots = Semaphore(cap or workload.sessions)
    with server(flags, log) as url:
        began = time.monotonic()
        with ThreadPoolExecutor(workload.sessions) as executor:
            runs = [
                executor.submit(run_session, url, number, workload, slots)
                for number in range(workload.sessions)
            ]
            latencies = [seconds for run in runs for seconds in run.result()]
        seconds = time.monotonic() - began
        with urlopen(f"{url}/metrics") as reply:
            metrics = reply.read().decode()
    found = re.findall(r"^dovetail_reprefilled_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return Outcome(seconds, sum(map(float, found)), latencies)


def main() -> None:
    given = parse_arguments()
    workload = Workload(
        given.sessions, given.turns, given.tokens, given.output_tokens, given.gap_scale
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder, options = given.model, [f"python={given.python}"] if given.python else []
        if given.cpu:
            folder = lay_out_model(Path(scratch) / "tiny", **TINY)
            options += ["device_map=cpu", "load_format=dummy"]
        cache = int(given.sessions * given.tokens / given.oversubscription)
        options += [f"cache_tokens={cache}", *given.engine_option]
        flags = [str(folder), "--engine", "transformers", "--served-model-name", NAME]
        flags += [part for option in options for part in ("--engine-option", option)]
        fitting = max(1, int(given.sessions / given.oversubscription))
        print(f"{workload}, KV cache {cache:,} tokens", flush=True)
        for name, mode, cap in [
            ("off", "off", None),
            *((f"cap:{cap}", "off", cap) for cap in sorted({max(1, fitting * 3 // 4), fitting})),
            ("auto", "auto", None),
        ]:
            log = Path(scratch) / f"{name}.log"
            one = measure([*flags, "--session-scheduling", mode], workload, cap, log)
            per_hour = workload.sessions * 3600 / one.seconds
            print(
                f"{name:8} {one.seconds:8.1f} s {per_hour:8.1f} sessions/h "
                f"{one.re_prefilled:12,.0f} tokens prefilled again, "
                f"turn p50 {one.latency(0.5):.2f} s, p95 {one.latency(0.95):.2f} s",
                flush=True,
            )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of weights")
    parser.add_argument("--cpu", action="store_true", help="run a tiny model on the CPU")
    parser.add_argument("--python", help="interpreter with torch and transformers")
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--output-tokens", type=int, default=150)
    parser.add_argument("--oversubscription", type=float, default=2.0)
    parser.add_argument("--gap-scale", type=float, default=1.0)
    parser.add_argument("--engine-option", action="append", default=[])
    given = parser.parse_args()
    if given.model is None and not given.cpu:
        parser.error("set --model or --cpu")
    return given


if __name__ == "__main__":
    main()
