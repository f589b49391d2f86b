"""Two real frontends that share a Redis and an engine, and clients that retry on the other one.

The engine is scripted, in a process of its own with vLLM's protocol: it records every prompt. Its
outputs are tokens that the tokenizer would split differently, so a turn that is not found changes
the prompt.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from generation_log import read_generation_log
from server_process import NAME, Running, free_port, qwen_folder, served
from workers_fixture import PIECES

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")
MAX_ATTEMPTS = 600  # of one turn
RETRY_SECONDS = 0.1
_ENDS = {"message_stop", "response.completed"}


@contextmanager
def recording_engine(folder: Path, decode_rate: int) -> Iterator[str]:
    """Run an engine and return its URL. It writes `record` in the folder."""
    script = folder / "script.yaml"
    script.write_text(json.dumps({"rules": [{"chunks": list(PIECES)}]}))
    model = qwen_folder(folder / "model")
    command = [sys.executable, "-m", "dovetail.engines.scripted", "--script", script]
    options = ["--model", model, "--served-model-name", NAME, "--port", "0"]
    paced = ["--decode-rate", decode_rate, "--record", folder / "record"]
    process = subprocess.Popen(
        list(map(str, [*command, *options, *paced])), stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


class Frontend:
    """A frontend that can be restarted at the same address."""

    def __init__(self, folder: Path, name: str, engine: str, store: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._home = folder / name
        self._arguments = (
            *("--engine", "vllm", "--engine-url", engine, "--tokenizer", folder / "model"),
            *("--store", store, "--seal-key-file", folder / "seal.key"),
            *("--http-host", "127.0.0.1", "--http-port", str(self._port)),
        )
        self._server: Any = None
        self.running: Running | None = None

    def start(self) -> None:
        self._server = served(*self._arguments, home=self._home)
        self.running = self._server.__enter__()

    def drain(self) -> None:
        """Stop it as an operator does: it completes its streams."""
        self._server.__exit__(None, None, None)

    def kill(self) -> None:
        assert self.running is not None
        self.running.process.kill()
        self._server.__exit__(None, None, None)


@contextmanager
def frontends(folder: Path, engine: str, store: str) -> Iterator[list[Frontend]]:
    (folder / "seal.key").write_text("00" * 32 + "\n")
    (folder / "seal.key").chmod(0o600)
    made = [Frontend(folder, name, engine, store) for name in "ab"]
    for one in made:
        one.start()
    try:
        yield made
    finally:
        for one in made:
            assert one.running is not None
            if one.running.process.poll() is None:
                one.drain()


@dataclass
class Counts:
    """What the clients saw: turns, attempts without a response, and streams that broke.

    `not_found`: responses that could not be continued by their id. A frontend that waits for Redis
    longer than its limit ends the response before it is stored, and may be killed then.
    """

    turns: int = 0
    not_found: int = 0
    refused: int = 0
    broken: int = 0
    used: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class BrokenStream(Exception):
    """A stream that ended before its last event."""


@dataclass
class Session:
    """A conversation over one API. Each turn begins at the next frontend."""

    number: int
    urls: list[str]
    counts: Counts

    def __post_init__(self) -> None:
        self.path = PATHS[self.number % len(PATHS)]
        self.messages: list[dict[str, Any]] = []
        self.previous: str | None = None
        self.turns = 0

    async def turn(self) -> None:
        """Send a turn until it has a complete response."""
        text = f"This is session {self.number:04} and turn {self.turns:04}."
        reasons: dict[str, str] = {}
        for attempt in range(MAX_ATTEMPTS):
            url = self.urls[(self.number + self.turns + attempt) % len(self.urls)]
            seen = 0
            try:
                output, id = "", ""
                async with aclosing(_events(url, self.path, self._body(text))) as events:
                    async for event in events:
                        seen += 1
                        output += _text(event)
                        id = id or event.get("response", {}).get("id", "")
            except (OSError, BrokenStream) as error:
                reasons[url] = str(error)
                if "previous_response_not_found" in reasons[url]:
                    self.previous = None  # as Codex does: send the complete history
                    self.counts.not_found += 1
                self.counts.refused += seen == 0
                self.counts.broken += seen > 0
                await asyncio.sleep(RETRY_SECONDS)
                continue
            assert output == "".join(PIECES), output
            self._finish(text, output, id, url)
            return
        raise AssertionError(f"session {self.number} had no response: {reasons}")

    def _body(self, text: str) -> dict[str, Any]:
        own = {"role": "user", "content": text}
        if self.path == "/v1/responses":
            if self.previous is None:
                return {"model": NAME, "input": [*self.messages, own], "stream": True}
            more = {"previous_response_id": self.previous}
            return {"model": NAME, "input": [own], "stream": True, **more}
        limits = {"max_tokens": 2000} if self.path == "/v1/messages" else {}
        return {"model": NAME, "messages": [*self.messages, own], "stream": True, **limits}

    def _finish(self, text: str, output: str, id: str, url: str) -> None:
        self.messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": output},
        ]
        self.previous = id or None
        self.turns += 1
        self.counts.turns += 1
        self.counts.used[url] += 1


async def _events(url: str, path: str, body: Any) -> AsyncGenerator[dict[str, Any]]:
    """Yield the events of a stream. Raises `BrokenStream` if it is refused or incomplete."""
    async for line in _lines(url, path, json.dumps(body).encode()):
        if line == b"data: [DONE]":
            return
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if event.get("type") in ("error", "response.failed") or "error" in event:
                raise BrokenStream(line)
            yield event
            if event.get("type") in _ENDS:
                return
    raise BrokenStream("no last event")


async def _lines(url: str, path: str, body: bytes) -> AsyncGenerator[bytes]:
    """Yield the lines of a response, which is sent in chunks."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
    try:
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        status = await reader.readline()
        while (await reader.readline()).strip():
            pass
        if b" 200 " not in status:
            raise BrokenStream(status + await reader.read(500))
        rest = b""
        while size := int((await reader.readline()).strip() or b"0", 16):
            *lines, rest = (rest + (await reader.readexactly(size + 2))[:-2]).split(b"\n")
            for line in lines:
                yield line
    except asyncio.IncompleteReadError as error:
        raise BrokenStream("the connection was closed") from error
    finally:
        writer.close()


def _text(event: dict[str, Any]) -> str:
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


async def play(sessions: list[Session], is_over: Callable[[], bool], min_turns: int) -> None:
    """Run all sessions at once until `is_over`, and for some turns at least."""

    async def run(session: Session) -> None:
        while session.turns < min_turns or not is_over():
            await session.turn()
        await session.turn()  # continues what was generated before the end

    await asyncio.gather(*map(run, sessions))


@dataclass(frozen=True)
class Prefixes:
    """The prompts of continued turns, and the tokens of their prefix that were not kept."""

    continued: int
    lost_tokens: int


def check_prefixes(record: Path) -> Prefixes:
    """Compare each prompt with the prompt and the output of the turn before it, id for id."""
    generated: dict[tuple[str, int], list[tuple[int, ...]]] = defaultdict(list)
    prompts: list[tuple[str, int, tuple[int, ...]]] = []
    for one in read_generation_log(record):
        names = re.findall(r"session (\d+) and turn (\d+)\.", one.text)
        if not names:  # a request with which a frontend examines the engine
            continue
        session, turn = names[-1]
        prompts.append((session, int(turn), one.prompt))
        if one.output_text.startswith("".join(PIECES)):  # otherwise its stream was broken
            generated[session, int(turn)].append((*one.prompt, *one.output))
    continued = lost = 0
    for session, turn, prompt in prompts:
        if turn:
            before = generated[session, turn - 1]
            continued += 1
            lost += min(len(own) - _common(own, prompt) for own in before)
    return Prefixes(continued, lost)


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
