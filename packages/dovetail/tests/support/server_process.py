"""The server as users run it: `python -m dovetail serve ...`, a process on a free port."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from importlib.metadata import distribution
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import IO, Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

TOKENIZERS = Path(__file__).parents[4] / ".cache" / "tokenizers"
SOURCES = Path(__file__).parents[3]
WEIGHTS = TOKENIZERS / "smollm2" / "smollm2.gguf"
NAME = "some-org/some-model"
TIMEOUT_SECONDS = 60.0  # seconds, so that a broken server fails a test instead of blocking it
_CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "max_position_embeddings": 40960,
    "eos_token_id": 151645,
}
_GENERATION = {
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}


def qwen_folder(folder: Path) -> Path:
    """A Hugging Face folder with the four files that a server needs, without weights."""
    source = TOKENIZERS / "qwen3"
    if not source.is_dir():
        pytest.skip("the qwen3 tokenizer is not available: run make tokenizers")
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(source / name, folder)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "generation_config.json").write_text(json.dumps(_GENERATION))
    return folder


@dataclass(frozen=True)
class Reply:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """A running server. `greeting` is its first line, `log` its log file."""

    process: "subprocess.Popen[str]"
    greeting: str
    log: Path
    clients: list[Anthropic | OpenAI] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.greeting.rpartition(" at ")[2].strip()

    def anthropic(self, key: str = "none", **more: Any) -> Anthropic:
        client = Anthropic(
            base_url=self.url, api_key=key, max_retries=0, timeout=TIMEOUT_SECONDS, **more
        )
        self.clients.append(client)
        return client

    def openai(self, key: str = "none", **more: Any) -> OpenAI:
        url = f"{self.url}/v1"
        client = OpenAI(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT_SECONDS, **more)
        self.clients.append(client)
        return client

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send one request and read its response. In header names, _ stands for -."""
        with self.open(method, path, body, **headers) as response:
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())

    def post(self, path: str, body: Any, **headers: str) -> Any:
        """Return the JSON of a response, which must have status 200."""
        reply = self.request("POST", path, body, **headers)
        assert reply.status == 200, reply.body
        return reply.json

    @contextmanager
    def open(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Iterator[HTTPResponse]:
        """Send a request whose response the caller reads; leaving the block disconnects."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        host = self.url.removeprefix("http://")
        connection = HTTPConnection(host, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, sent, {"content-type": "application/json", **named})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def stop(self) -> int:
        """Stop the server as an operator does, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_SECONDS)


def free_port() -> int:
    """Return a free port, for servers that cannot choose one themselves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def source_paths(folder: Path) -> str:
    """Return a path with which another interpreter imports Dovetail from its sources.

    The metadata of our distributions are linked in the folder, which must not exist.
    """
    folder.mkdir()
    installed = Path(str(distribution("dovetail").locate_file("")))
    for found in installed.glob("dovetail*.dist-info"):
        (folder / found.name).symlink_to(found)
    return os.pathsep.join(map(str, [folder, *sorted(SOURCES.glob("*/src"))]))


def clean_environment(home: Path) -> dict[str, str]:
    """Return the environment of a user's shell without settings of Dovetail."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DOVETAIL_", "XDG_"))}
    return {**inherited, "DOVETAIL_HOME": str(home)}


@contextmanager
def served(
    *arguments: str | Path,
    home: Path | None = None,
    environment: Mapping[str, str] | None = None,
    program: tuple[str, ...] = ("-m", "dovetail"),
    python: str = sys.executable,
) -> Iterator[Running]:
    """Run `dovetail serve` with these arguments during the block."""
    with TemporaryDirectory(prefix="dovetail-served-") as scratch:
        place = Path(scratch)
        with (place / "log").open("w") as log:
            process = _start(
                (python, *program, "serve", *arguments),
                place,
                log,
                {**clean_environment(home or place), **(environment or {})},
            )
        with process:
            running = Running(process, _greeting(process, place / "log"), place / "log")
            try:
                yield running
            finally:
                for client in running.clients:
                    client.close()
                if process.poll() is None:
                    running.stop()


def _start(
    command: tuple[str | Path, ...], place: Path, log: IO[str], environment: Mapping[str, str]
) -> "subprocess.Popen[str]":
    port = () if "--http-port" in command else ("--http-port", "0")
    return subprocess.Popen(
        [*map(str, command), *port],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def _greeting(process: "subprocess.Popen[str]", log: Path) -> str:
    """Wait for the line with the server's address."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            return line
    status = process.wait(TIMEOUT_SECONDS)
    raise AssertionError(f"the server ended with {status}: {log.read_text()}")


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    status: int
    out: str
    err: str


def dovetail(
    *arguments: str | Path,
    home: Path,
    given: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run `dovetail` with these arguments to its end, in the folder `home`."""
    ended = subprocess.run(
        [sys.executable, "-m", "dovetail", *map(str, arguments)],
        cwd=home,
        env={**clean_environment(home), **(environment or {})},
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)
