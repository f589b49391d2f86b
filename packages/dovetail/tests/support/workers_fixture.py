"""A server with several worker processes, and helpers for its tests."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_process import NAME, Running, qwen_folder, served

BLOCK = 16  # tokens per block in the scripted engine's cache
#: The tokenizer would split the text differently: without the ledger, the turn gets other tokens.
PIECES = ("Th", "e an", "swe", "r is", " for", "ty t", "wo, and", " that ", "is al", "l of i", "t.")
PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses")


def arguments(
    folder: Path, *more: str | Path, workers: int = 2, decode_rate: float = 0.0
) -> list[str | Path]:
    """A scripted model that generates the same unusual tokens for every request."""
    script, model = folder / "script.yaml", folder / "model"
    script.write_text(json.dumps({"rules": [{"chunks": list(PIECES)}]}))
    return [
        *(model if model.is_dir() else qwen_folder(model), "--engine", "scripted"),
        *("--script", script, "--served-model-name", NAME, "--http-host", "127.0.0.1"),
        *("--tool-call-parser", "hermes", "--engine-option", f"decode_rate={decode_rate}"),
        *("--workers", str(workers), *more),
    ]


@contextmanager
def serve_with_workers(folder: Path, *more: str | Path, **options: Any) -> Iterator[Running]:
    home = options.pop("home", folder / "home")
    with served(*arguments(folder, *more, **options), home=home) as running:
        yield running


def body(path: str, text: str, *, stream: bool = False) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"model": NAME, "input": text, "stream": stream}
    messages = [{"role": "user", "content": text}]
    return {"model": NAME, "messages": messages, "max_tokens": 200, "stream": stream}


def numbers(running: Running, name: str) -> dict[str, float]:
    """Return the value of a metric per worker."""
    text = running.request("GET", "/metrics").body.decode()
    found: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", text, re.M):
        worker = re.search(r'worker="(\d+)"', labels)
        assert worker is not None, labels
        found[worker[1]] = found.get(worker[1], 0.0) + float(value)
    return found


def count(running: Running) -> int:
    """Return how many workers report metrics."""
    text = running.request("GET", "/metrics").body.decode()
    found = re.search(r"^dovetail_workers (\d+)", text, re.M)
    return int(found[1]) if found else 0


def children(running: Running, module: str = "dovetail.cli.worker") -> list[int]:
    """Return the child processes of a server."""
    parent = running.process.pid
    pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in pids if module in _command(int(pid))]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
    """Wait for a condition."""
    end = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.05)


@dataclass
class Chat:
    """A conversation whose turns may reach different workers."""

    running: Running
    session: str
    cached_tokens: int = 0  # cached by the engine, in complete blocks

    def __post_init__(self) -> None:
        system = {"role": "system", "content": f"You are of the session {self.session}."}
        self.messages: list[dict[str, Any]] = [system]

    def turn(self, at: int) -> bool:
        """Send another turn. Returns True if the engine had cached everything before it."""
        self.messages.append({"role": "user", "content": f"{self.session}: and number {at}?"})
        response = self.running.post(
            "/v1/chat/completions", {"model": NAME, "messages": self.messages}
        )
        message, usage = response["choices"][0]["message"], response["usage"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        exact = cached >= self.cached_tokens
        self.cached_tokens = (
            (usage["prompt_tokens"] + usage["completion_tokens"] - 1) // BLOCK * BLOCK
        )
        return exact

    def turns(self, count: int) -> Sequence[bool]:
        return [self.turn(at) for at in range(count)]
