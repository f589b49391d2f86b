"""How many tokens are re-prefilled by processes that share only a port, and by our workers?

`python -m benchmarks.decisions.worker_sharing`. A session of tool calls, each request over a new
connection, so that any process may receive it. *Apart*: processes with one engine each and one
ledger file, as under a supervisor that only starts processes. *Workers*: `--workers`, with one
engine process for all. The benchmark counts the prompt tokens that an engine computed again, and
how many of the requests the counters of `/metrics` include.
"""

import json
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.decisions.serving import NAME, arguments, prepare_model

PROCESSES, TURNS = 2, 24
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
BLOCK = 16  # tokens of a block in the scripted engine's cache


@contextmanager
def served(command: Sequence[str]) -> Iterator[str]:
    """Host and port of a running server."""
    quiet = [*command, "--log-level", "error"]
    with subprocess.Popen(quiet, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = next(line for line in process.stdout if line.startswith("serving "))
            yield line.rpartition("//")[2].strip()
        finally:
            process.terminate()


def request(host: str, method: str, path: str, body: Any = None) -> bytes:
    connection = HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, json.dumps(body) if body else None)
        return connection.getresponse().read()
    finally:
        connection.close()


def run_session(hosts: Sequence[str]) -> tuple[int, int]:
    """Return the prompt tokens that could have been cached, and how many of them were not."""
    chosen = random.Random(19)
    history: list[dict[str, Any]] = [{"role": "user", "content": "Look around. " * 200}]
    before = known = again = 0
    for _ in range(TURNS):
        body = {"model": NAME, "max_tokens": 500, "messages": history, "tools": [TOOL]}
        reply = json.loads(request(chosen.choice(hosts), "POST", "/v1/messages", body))
        usage = reply["usage"]
        could = max(0, before - 1) // BLOCK * BLOCK
        known, again = known + could, again + could - usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        before = prompt + usage["output_tokens"]
        (call,) = (one for one in reply["content"] if one["type"] == "tool_use")
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "Nothing. " * 50}
        history += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": [result]},
        ]
    return known, again


def counted_requests(host: str) -> int:
    text = request(host, "GET", "/metrics").decode()
    lines = re.findall(r"^dovetail_requests_total(\{.*\}) (\S+)", text, re.M)
    return int(sum(float(count) for labels, count in lines if 'endpoint="messages"' in labels))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = arguments(folder, prepare_model(folder))
        with ExitStack() as stack:
            apart = [stack.enter_context(served(command)) for _ in range(PROCESSES)]
            report("apart", apart)
        with served([*command, "--workers", str(PROCESSES)]) as host:
            report("workers", [host])


def report(name: str, hosts: Sequence[str]) -> None:
    known, again = run_session(hosts)
    seen = counted_requests(hosts[0])
    print(
        f"{name:>8}: {again} of {known} cacheable prompt tokens re-prefilled "
        f"({again / known:.0%}); /metrics shows {seen} of {TURNS} requests"
    )


if __name__ == "__main__":
    main()
