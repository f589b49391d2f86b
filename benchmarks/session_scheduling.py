"""Session scheduling with a real engine and a KV cache that is too small.

`python -m benchmarks.session_scheduling --model DIR`: agents whose contexts together need
`--oversubscription` times the KV cache. 86 % of their turns return within 1 s and 95 % within 10 s.
Each mode runs on a server of its own: `off`, static caps on concurrent sessions (`cap:N`), `auto`.
Clients start the next session when one has ended, so the load is constant; what is measured are the
turns that end in a time window after a warm-up. `--cpu` runs a small model on the CPU.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Semaphore
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

from benchmarks.gpu.__main__ import TINY
from benchmarks.gpu.bundle import lay_out_model
from benchmarks.gpu.processes import share_paths
from dovetail.simulate.report import draw_bars

START_TIMEOUT_SECONDS, TURN_TIMEOUT_SECONDS = 900.0, 300.0
NAME = "m"
#: Each is one token in the vocabulary of Qwen3.
_NOUNS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line"
)
WORDS = _NOUNS.split()
#: Settings of vLLM on a CPU.
CPU_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
VLLM_BLOCK_TOKENS = 32
#: The tools by the share of turns that call them, with the seconds that they run.
TOOLS = (("read", 0.86, 0.1, 1.0), ("make", 0.95, 1.0, 10.0), ("test", 1.0, 10.0, 60.0))


@dataclass(frozen=True)
class Workload:
    """Agents and their sessions. Pairs are ranges.

    `first_tokens`: of the first prompt, in addition to the head that all sessions share.
    `result_tokens`: by which a tool result extends the prompt.
    `call_words`: of the argument of each call, which the grammar enforces.
    """

    clients: int
    turns: tuple[int, int]
    head_tokens: int
    first_tokens: tuple[int, int]
    result_tokens: tuple[int, int]
    call_words: int
    gap_scale: float
    seed: int

    @property
    def mean_context(self) -> int:
        """The tokens of an average prompt, without calls."""
        grown = (sum(self.turns) / 2 - 1) / 2 * sum(self.result_tokens) / 2
        return int(self.head_tokens + sum(self.first_tokens) / 2 + grown)


@dataclass(frozen=True)
class Window:
    """The time in which turns are measured, in seconds of the monotonic clock."""

    begins: float
    ends: float

    @property
    def seconds(self) -> float:
        return self.ends - self.begins

    def has(self, time: float) -> bool:
        return self.begins <= time < self.ends


@dataclass
class Outcome:
    """The turns that ended in the window.

    `sessions`: completed ones; each turn counts as its part of its session.
    """

    mode: str
    seconds: float
    turns: int = 0
    sessions: float = 0.0
    re_prefilled_tokens: float = 0.0
    ttfts: list[float] = field(default_factory=list, repr=False)
    latencies: list[float] = field(default_factory=list, repr=False)

    def row(self) -> dict[str, Any]:
        """Return the figures of this mode."""
        return {
            "mode": self.mode,
            "seconds": round(self.seconds, 1),
            "turns": self.turns,
            "sessions_per_hour": round(self.sessions * 3600 / self.seconds, 1),
            "re_prefilled_tokens": round(self.re_prefilled_tokens),
            "re_prefilled_per_turn": round(self.re_prefilled_tokens / max(1, self.turns)),
            "ttft_p50": round(_quantile(self.ttfts, 0.5), 3),
            "ttft_p95": round(_quantile(self.ttfts, 0.95), 3),
            "turn_p50": round(_quantile(self.latencies, 0.5), 3),
            "turn_p95": round(_quantile(self.latencies, 0.95), 3),
        }


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[int(q * (len(values) - 1))] if values else 0.0


def make_tools(words: int) -> list[dict[str, Any]]:
    """Return the tools. Their argument has one possible value, so that random weights write it."""
    text = {"type": "string", "enum": [make_text("call", words)]}
    parameters = {"type": "object", "properties": {"text": text}, "required": ["text"]}
    return [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, *_ in TOOLS
    ]


def make_text(name: str, tokens: int) -> str:
    """Return a text of so many tokens, the same one for the same name."""
    return " ".join(Random(name).choices(WORDS, k=tokens))


class Agent:
    """One client, which runs one session after the other."""

    def __init__(self, url: str, number: int, workload: Workload, window: Window) -> None:
        self._url = url
        self._number = number
        self._workload = workload
        self._window = window
        self.turns: list[tuple[int, float, float]] = []  # turns of the session, TTFT, latency
        self.prompt_tokens = 0

    def run(self, slots: Semaphore, stop: Event) -> None:
        """Run sessions until `stop`, each while it holds one of the slots."""
        try:
            for session in count():
                with slots:
                    self._run_session(f"c{self._number}s{session}", stop)
                if stop.is_set():
                    return
        except (OSError, ValueError, HTTPException):
            if not stop.is_set():  # the server was stopped during a request
                raise

    def _run_session(self, name: str, stop: Event) -> None:
        workload = self._workload
        random = Random(f"{workload.seed}/{name}")
        turns = random.randint(*workload.turns)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": make_text("head", workload.head_tokens)}
        ]
        text = make_text(name, random.randint(*workload.first_tokens))
        messages.append({"role": "user", "content": text})
        for turn in range(turns):
            share = random.random()
            tool, _, low, high = next(one for one in TOOLS if share <= one[1])
            gap = random.uniform(low, high)
            if stop.is_set():
                return
            is_last = turn == turns - 1
            choice = {"type": "function", "function": {"name": tool}}
            message = self._send(name, messages, "none" if is_last else choice, turns)
            if not is_last and not stop.is_set():
                (call,) = message["tool_calls"]
                text = make_text(f"{name}t{turn}", random.randint(*workload.result_tokens))
                result = {"role": "tool", "tool_call_id": call["id"], "content": text}
                messages += (message, result)
                stop.wait(gap * workload.gap_scale)

    def _send(
        self, session: str, messages: list[dict[str, Any]], choice: object, turns: int
    ) -> dict[str, Any]:
        """Send a turn, and return the message of the assistant."""
        body = {
            "model": NAME,
            "messages": messages,
            "tools": make_tools(self._workload.call_words),
            "tool_choice": choice,
            "max_tokens": 16 if choice == "none" else 1024,
            "temperature": 1.0,
            "chat_template_kwargs": {"enable_thinking": False},
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"content-type": "application/json", "x-dynamo-session-id": session}
        began = time.monotonic()
        request = Request(f"{self._url}/v1/chat/completions", json.dumps(body).encode(), headers)
        message: dict[str, Any] = {}
        first: float | None = None
        with urlopen(request, timeout=TURN_TIMEOUT_SECONDS) as reply:
            for chunk in _chunks(reply):
                if chunk.get("usage"):
                    self.prompt_tokens = chunk["usage"]["prompt_tokens"]
                for one in chunk["choices"]:
                    if first is None and (
                        one["delta"].get("tool_calls") or one["delta"].get("content")
                    ):
                        first = time.monotonic()
                    _add(message, one["delta"])
        ended = time.monotonic()
        if self._window.has(ended):
            self.turns.append((turns, (first or ended) - began, ended - began))
        return message


def _chunks(reply: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in reply:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            yield chunk


def _add(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta to a message with at most one call."""
    message.setdefault("role", "assistant")
    if delta.get("content"):
        message["content"] = message.get("content", "") + delta["content"]
    for one in delta.get("tool_calls") or ():
        function = one.get("function", {})
        if "id" in one:
            call = {"id": one["id"], "type": "function"}
            call["function"] = {"name": function["name"], "arguments": ""}
            message["tool_calls"] = [call]
        message["tool_calls"][0]["function"]["arguments"] += function.get("arguments") or ""


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
        process.kill()
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


def read_re_prefilled(url: str) -> float:
    """Return how many tokens the server counted as re-prefilled so far."""
    with urlopen(f"{url}/metrics") as reply:
        metrics = reply.read().decode()
    found = re.findall(r"^dovetail_reprefilled_tokens_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    return sum(map(float, found))


def measure(mode: str, flags: list[str], workload: Workload, times: tuple[float, float]) -> Outcome:
    """Run the agents against a new server. `times`: the warm-up and the window in seconds."""
    cap = int(mode.partition(":")[2]) if mode.startswith("cap:") else workload.clients
    scheduling = "auto" if mode == "auto" else "off"
    stop = Event()
    # The server ends first, which also ends the requests of the agents.
    with (
        tempfile.TemporaryDirectory() as scratch,
        ThreadPoolExecutor(workload.clients) as executor,
        server(
            [*flags, "--session-scheduling", scheduling, "--data-dir", scratch],
            Path(scratch) / "server.log",
        ) as url,
    ):
        begins = time.monotonic() + times[0]
        window = Window(begins, begins + times[1])
        agents = [Agent(url, number, workload, window) for number in range(workload.clients)]
        slots = Semaphore(cap)
        runs = [executor.submit(agent.run, slots, stop) for agent in agents]
        try:
            time.sleep(times[0])
            before = read_re_prefilled(url)
            while time.monotonic() < window.ends and not any(run.done() for run in runs):
                time.sleep(0.1)
            after = read_re_prefilled(url)
        finally:
            stop.set()
    for run in runs:
        run.result()
    turns = [turn for agent in agents for turn in agent.turns]
    return Outcome(
        mode,
        window.seconds,
        len(turns),
        sum(1 / turns_of_session for turns_of_session, _, _ in turns),
        after - before,
        [ttft for _, ttft, _ in turns],
        [latency for _, _, latency in turns],
    )


def main() -> None:
    given = parse_arguments()
    if given.plot:
        given.plot.write_text(plot(json.loads(given.out.read_bytes())), "utf-8")
        return
    share_paths()
    workload = Workload(
        given.clients,
        tuple(given.turns),
        given.head_tokens,
        tuple(given.first_tokens),
        tuple(given.result_tokens),
        given.call_words,
        given.gap_scale,
        given.seed,
    )
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.model
        if given.cpu:
            shape = {
                name: int(value) for name, _, value in (one.partition("=") for one in given.shape)
            }
            folder = lay_out_model(Path(scratch) / "tiny", **{**TINY, "head_dim": 32, **shape})
            os.environ.update(CPU_ENVIRONMENT)
        cache = int(workload.clients * workload.mean_context / given.oversubscription)
        options = [*engine_options(given.engine, cache, on_cpu=given.cpu), *given.engine_option]
        if given.python:
            options.append(f"python={given.python}")
        flags = [str(folder), "--engine", given.engine, "--served-model-name", NAME]
        flags += [part for option in options for part in ("--engine-option", option)]
        flags += given.server_flag
        print(f"{workload}, KV cache {cache:,} tokens", flush=True)
        rows = []
        for mode in given.modes or default_modes(workload.clients, given.oversubscription):
            row = measure(mode, flags, workload, (given.warm_up, given.window)).row()
            rows.append(row)
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            if given.out:
                result = {"workload": vars(workload), "cache_tokens": cache, "rows": rows}
                given.out.write_text(json.dumps(result, indent=2), "utf-8")


def engine_options(engine: str, cache_tokens: int, *, on_cpu: bool) -> list[str]:
    """Return the options of an engine with a KV cache of so many tokens."""
    if engine == "transformers":
        options = [f"cache_tokens={cache_tokens}"]
        return [*options, "device_map=cpu", "load_format=dummy"] if on_cpu else options
    blocks = cache_tokens // VLLM_BLOCK_TOKENS
    options = [f"num_gpu_blocks_override={blocks}", f"block_size={VLLM_BLOCK_TOKENS}"]
    options.append(f"max_model_len={cache_tokens // 2}")
    cpu_options = ("dtype=float32", "enforce_eager=true", "load_format=dummy")
    return [*options, *cpu_options] if on_cpu else options


def plot(result: dict[str, Any]) -> str:
    """Return an SVG with a bar per mode. Of several runs of a mode, the last one counts."""
    rows = {row["mode"]: row for row in result["rows"]}
    columns = (
        ("sessions per hour", "sessions_per_hour", "{:.0f}"),
        ("re-prefilled tokens per turn", "re_prefilled_per_turn", "{:,.0f}"),
        ("turn p95 (s)", "turn_p95", "{:.1f}"),
    )
    panels = [(title, [row[name] for row in rows.values()], form) for title, name, form in columns]
    return draw_bars(list(rows), panels, "Session scheduling, real engine")


def default_modes(clients: int, oversubscription: float) -> list[str]:
    """Return the modes: caps around the number of sessions whose average contexts fit."""
    fitting = clients / oversubscription
    caps = sorted({max(1, int(fitting * part)) for part in (0.75, 1.0, 1.25)})
    return ["off", *(f"cap:{cap}" for cap in caps), "auto"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, help="folder of the model")
    add("--engine", choices=("transformers", "vllm"), default="transformers")
    add("--cpu", action="store_true", help="run a small model with random weights on the CPU")
    add("--shape", nargs="+", default=(), help="of that model, as hidden_size=512")
    add("--python", help="interpreter with the engine")
    add("--modes", nargs="+", help="off, cap:N, auto (default: off, three caps, auto)")
    add("--clients", type=int, default=32)
    add("--turns", type=int, nargs=2, default=(12, 32))
    add("--head-tokens", type=int, default=2_048)
    add("--first-tokens", type=int, nargs=2, default=(2_000, 8_000))
    add("--result-tokens", type=int, nargs=2, default=(100, 900))
    add("--call-words", type=int, default=50)
    add("--oversubscription", type=float, default=2.0)
    add("--gap-scale", type=float, default=1.0)
    add("--warm-up", type=float, default=60.0, help="seconds before the window")
    add("--window", type=float, default=150.0, help="seconds of the window")
    add("--seed", type=int, default=5)
    add("--engine-option", action="append", default=[])
    add("--server-flag", action="append", default=[], help="as =--trace-file=FILE")
    add("--out", type=Path, help="write the results to this JSON file")
    add("--plot", type=Path, help="only draw the results in --out, to this SVG file")
    given = parser.parse_args()
    if given.plot and not given.out:
        parser.error("--plot requires --out with results")
    if given.model is None and not given.cpu and not given.plot:
        parser.error("set --model or --cpu")
    return given


if __name__ == "__main__":
    main()
