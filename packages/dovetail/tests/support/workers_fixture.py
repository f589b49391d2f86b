"""A server of several processes, and what its tests ask of it."""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server_process import NAME, Running, qwen_folder, served

BLOCK = 16  # tokens of a block in the scripted engine's cache
#: Pieces that the tokenizer would not cut so: whoever does not know the turn writes it otherwise.
PIECES = ("Th", "e an", "swe", "r is", " for", "ty t", "wo, and", " that ", "is al", "l of i", "t.")
PATHS = ("/v1/messages", "/v1/chat/completions", "/v1/responses")


def arguments(
    folder: Path, *more: str | Path, workers: int = 2, decode_rate: float = 0.0
) -> list[str | Path]:
    """A scripted model that says the same odd tokens to everybody."""
    script, model = folder / "script.yaml", folder / "model"
    script.write_text(json.dumps({"rules": [{"chunks": list(PIECES)}]}))
    return [
        *(model if model.is_dir() else qwen_folder(model), "--engine", "scripted"),
        *("--script", script, "--served-model-name", NAME, "--http-host", "127.0.0.1"),
        *("--tool-call-parser", "hermes", "--engine-option", f"decode_rate={decode_rate}"),
        *("--workers", str(workers), *more),
    ]


@contextmanager
def crew(folder: Path, *more: str | Path, **options: Any) -> Iterator[Running]:
    home = options.pop("home", folder / "home")
    with served(*arguments(folder, *more, **options), home=home) as running:
        yield running


def body(path: str, text: str, *, stream: bool = False) -> dict[str, Any]:
    if path == "/v1/responses":
        return {"model": NAME, "input": text, "stream": stream}
    messages = [{"role": "user", "content": text}]
    return {"model": NAME, "messages": messages, "max_tokens": 200, "stream": stream}


def numbers(running: Running, name: str) -> dict[str, float]:
    """A number of each worker."""
    text = running.ask("GET", "/metrics").body.decode()
    found: dict[str, float] = {}
    for labels, value in re.findall(rf"^{name}{{([^}}]*)}} (\S+)$", text, re.M):
        worker = re.search(r'worker="(\d+)"', labels)
        assert worker is not None, labels
        found[worker[1]] = found.get(worker[1], 0.0) + float(value)
    return found


def count(running: Running) -> int:
    """How many workers tell their numbers."""
    text = running.ask("GET", "/metrics").body.decode()
    found = re.search(r"^dovetail_workers (\d+)", text, re.M)
    return int(found[1]) if found else 0


def children(running: Running, module: str = "dovetail.cli.worker") -> list[int]:
    """The processes that a server has started."""
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


def until(is_so: Callable[[], bool], patience: float = 60.0) -> None:
    """Waits for what comes in a while."""
    end = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.05)


@dataclass
class Chat:
    """A conversation whose every turn may reach another process."""

    running: Running
    session: str
    kept: int = 0  # tokens that the engine has of it, in whole blocks

    def __post_init__(self) -> None:
        system = {"role": "system", "content": f"You are of the session {self.session}."}
        self.messages: list[dict[str, Any]] = [system]

    def turn(self, at: int) -> bool:
        """One more. Whether the engine found in its cache all that came before."""
        self.messages.append({"role": "user", "content": f"{self.session}: and number {at}?"})
        told = self.running.post("/v1/chat/completions", {"model": NAME, "messages": self.messages})
        message, usage = told["choices"][0]["message"], told["usage"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        cached: int = usage["prompt_tokens_details"]["cached_tokens"]
        exact = cached >= self.kept
        self.kept = (usage["prompt_tokens"] + usage["completion_tokens"] - 1) // BLOCK * BLOCK
        return exact

    def turns(self, count: int) -> Sequence[bool]:
        return [self.turn(at) for at in range(count)]
