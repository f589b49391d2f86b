"""A server with scripted output at the pace of a model, and streams through it.

The output is composed of tokens, so that it has the required number of them and the last token of
each part is known.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.frontend import client
from benchmarks.frontend.client import Plan, Seen
from benchmarks.frontend.requests import PATHS
from benchmarks.gpu.timed_engine import ENGINE, Note, read_notes
from benchmarks.report import ROOT
from dovetail_tokenizers import Tokenizer, load_tokenizer

PARSERS = ("--reasoning-parser", "nemotron_deci", "--tool-call-parser", "qwen3_coder")
NAME = "paced"
TOOL = "write_file"
_GRACE = 30.0  # seconds to exit before it is killed
QWEN3 = ROOT / ".cache" / "tokenizers" / "qwen3"
_CONFIG = {"model_type": "qwen3", "max_position_embeddings": 40_960, "eos_token_id": 151_645}
#: No trailing white space, which parsers hold back, and no possible beginning of a marker.
_WORDS = " The loop reads each row once, so its cost grows with the table and not with the page."
_OPENED = f"\n\n<tool_call>\n<function={TOOL}>\n<parameter=content>\n"
_CLOSED = "\n</parameter>\n</function>\n"  # the line break shares a token with the closing marker
_WRAPPED = "</tool_call>"
_SCHEMA = {
    "type": "object",
    "properties": {"content": {"type": "string"}},
    "required": ["content"],
}
_ABOUT = {"name": TOOL, "description": "Writes a file."}


class ScriptedOutput:
    """Tokens, and the indexes of tokens that trigger events."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = tokenizer.encode(_WORDS)
        self.ids: list[int] = []
        self.marks: dict[str, int] = {}

    def think(self, tokens: int) -> None:
        """Add reasoning with this many tokens from its first word to its closing marker."""
        self._add("<think>\n")
        self.marks["reasoning"] = len(self.ids)
        closing = self._tokenizer.encode("\n</think>")
        self._fill(tokens - len(closing) + 1)
        self.marks["reasoning ended"] = len(self.ids) - 1
        self.ids += closing
        self.marks["reasoning closed"] = len(self.ids) - 1

    def call(self, name: str, tokens: int) -> None:
        """Add a call with this many tokens, including leading space; the last completes it."""
        closing = self._tokenizer.encode(_CLOSED)
        filling = tokens - len(self._tokenizer.encode(_OPENED)) - len(closing)
        if filling < 1:
            raise ValueError(f"a call needs more than {tokens} tokens")
        self._add(_OPENED)
        self.marks[f"{name} opened"] = len(self.ids) - 1
        self._fill(filling)
        self.ids += closing
        self.marks[f"{name} complete"] = len(self.ids) - 1
        self._add(_WRAPPED)

    def text(self, tokens: int) -> None:
        self._add("\n\n")
        self._fill(tokens - 1)

    def end(self) -> None:
        self._add("<|im_end|>")
        self.marks["end"] = len(self.ids) - 1

    def _add(self, text: str) -> None:
        self.ids += self._tokenizer.encode(text)

    def _fill(self, tokens: int) -> None:
        self.ids += (self._words * (1 + tokens // len(self._words)))[:tokens]


@dataclass(frozen=True)
class Pace:
    """Seconds to the first token and between tokens. `in_step`: all streams in one batch."""

    first: float = 0.0
    between: float = 0.007
    in_step: bool = False


@dataclass(frozen=True)
class MeasuredStream:
    """A stream at the client, and when its tokens left the engine."""

    seen: Seen
    left: list[int]


@dataclass(frozen=True)
class PacedServer:
    """A running server, and the notes of its engine."""

    port: int
    notes: Path

    async def play(self, api: str, streams: int, times: int) -> list[MeasuredStream]:
        """Run `streams` concurrent streams, each repeated sequentially."""
        before = len(read_notes(self.notes))
        cues = [f"{api}, stream {number} of {streams}, please." for number in range(streams)]
        bodies = tuple(json.dumps(body(api, cue)) for cue in cues)
        plan = Plan(self.port, PATHS[api], bodies, streams, times, keep=True)
        seen = await asyncio.to_thread(client.run, plan)
        notes = read_notes(self.notes)[before:]
        rows = (_paired(seen, notes, number, cue) for number, cue in enumerate(cues))
        return [stream for row in rows for stream in row]


@asynccontextmanager
async def run_paced_server(
    ids: list[int], pace: Pace, tokenizer: Path = QWEN3
) -> AsyncIterator[PacedServer]:
    """Run a server that returns the same output for each request."""
    with TemporaryDirectory(prefix="dovetail-paced-") as scratch:
        place = Path(scratch)
        script, notes = place / "script.json", place / "notes.jsonl"
        delay = {"first": pace.first, "between": pace.between, "in_step": pace.in_step}
        script.write_text(json.dumps({"turns": [{"tokens": ids, "delay": delay}]}), "utf-8")
        flags = ["--engine", ENGINE, "--engine-option", f"script={script}"]
        flags += ["--engine-option", f"notes={notes}", "--served-model-name", NAME, *PARSERS]
        flags += ["--enable-streaming-tool-dispatch", "--data-dir", scratch, "--http-port", "0"]
        model = str(model_folder(place / "model", tokenizer))
        with _serving([model, *flags], place / "log") as port:
            yield PacedServer(port, notes)


def model_folder(folder: Path, tokenizer: Path) -> Path:
    """Create a model folder without weights."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps(_CONFIG), "utf-8")
    return folder


@contextmanager
def _serving(arguments: list[str], log: Path) -> Iterator[int]:
    """Run `dovetail serve` until the block exits or this process ends. Yields its port."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "dovetail.launch.server_main", "serve", *arguments]
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=found) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            greeting = next((line for line in server.stdout if line.startswith(b"serving ")), b"")
            if not greeting:
                raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")
            yield int(greeting.rpartition(b":")[2])
        finally:
            server.stdin.close()  # stops the server
            server.wait(_GRACE)


def author(tokenizer: Path = QWEN3) -> Tokenizer:
    return load_tokenizer(tokenizer)


def body(api: str, cue: str) -> Mapping[str, Any]:
    """Return a request for a stream, with the tool that will be called."""
    common = {"model": NAME, "stream": True}
    messages = [{"role": "user", "content": cue}]
    function = {**_ABOUT, "parameters": _SCHEMA}
    if api == "chat":
        tools: list[Any] = [{"type": "function", "function": function}]
        return {**common, "max_tokens": 4096, "messages": messages, "tools": tools}
    if api == "responses":
        tools = [{"type": "function", **function}]
        return {**common, "max_output_tokens": 4096, "input": messages, "tools": tools}
    tools = [{**_ABOUT, "input_schema": _SCHEMA}]
    return {**common, "max_tokens": 4096, "messages": messages, "tools": tools}


def _paired(seen: list[Seen], notes: list[Note], number: int, cue: str) -> list[MeasuredStream]:
    """Pair the streams of a body with their notes; both are in the order in which they ran."""
    ours = [one for one in seen if one.body == number]
    known = [note for note in notes if cue in note.prompt]
    return [MeasuredStream(one, note.left) for one, note in zip(ours, known, strict=True)]
