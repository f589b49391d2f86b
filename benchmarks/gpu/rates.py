"""I: tokens per second through the server, compared with the engine alone.

All streams start together, with prompts that are already cached. The rate is all generated tokens
divided by the time from the first token of any stream to the last token of all.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from benchmarks.frontend.client import Plan, Seen, dechunked, run, status
from benchmarks.gpu.claude import MODEL
from benchmarks.gpu.client import payloads
from benchmarks.gpu.figures import rate_row, ratios
from benchmarks.gpu.process_commands import Group
from benchmarks.gpu.processes import ServerProcess
from benchmarks.gpu.sample_texts import Count, SampleTexts

TITLE = "decode throughput"
DEFINITION = (
    "all streams start together, prompts are cached; generated tokens of all streams divided by "
    "the time from the first token of any stream to the last of all"
)
PATHS = {"messages": "/v1/messages", "chat": "/v1/chat/completions"}
REPLAYED = "messages"  # one API is sufficient: for the engine alone they do not differ
#: The first delta of text or reasoning in a frame of either API.
_TOKEN = re.compile(rb'"(?:text|thinking|content|reasoning_content)":\s?"[^"]')


@dataclass(frozen=True)
class Load:
    """The amount of load."""

    streams: tuple[int, ...] = (1, 8, 64)
    prompt_tokens: int = 1000
    new_tokens: int = 256
    runs: int = 3


class Rates:
    """The experiment. `groups` are the server's requests by run, for the engine alone."""

    def __init__(self, server: ServerProcess, load: Load, count: Count) -> None:
        self._server = server
        self._load = load
        texts = SampleTexts(count, seed=64)
        self._prompts = [texts.text(load.prompt_tokens) for _ in range(max(load.streams))]
        self._runs: dict[tuple[str, int], list[tuple[int, float]]] = {}
        self.groups: list[Group] = []

    def play(self) -> Iterator[dict[str, Any]]:
        """Yield the results after each number of streams. The APIs alternate."""
        for streams in self._load.streams:
            for at in range(-1, self._load.runs):  # the first is not counted
                for via in PATHS:
                    self._run(via, streams, at)
            yield self.summary()

    def add_alone(self, label: str, tokens: int, seconds: float) -> None:
        """Add the result of a group that the engine alone replayed."""
        streams, at = label.split("/")
        if int(at) >= 0:
            self._runs.setdefault(("alone", int(streams)), []).append((tokens, seconds))

    def summary(self) -> dict[str, Any]:
        rows = [rate_row(via, streams, runs) for (via, streams), runs in self._runs.items()]
        return {"title": TITLE, "rows": rows, "ratios": ratios(rows)}

    def _run(self, via: str, streams: int, at: int) -> None:
        start = len(self._server.notes())
        bodies = tuple(self._body(via, text) for text in self._prompts[:streams])
        port = self._server.ports["default"]
        seen = run(Plan(port, PATHS[via], bodies, streams, keep=True), timeout=600.0)
        end, label = len(self._server.notes()), f"{streams}/{at}"
        self.groups.append(Group(label, start, end, replayed=via == REPLAYED))
        if at >= 0:
            self._runs.setdefault((via, streams), []).append(measured(seen))

    def _body(self, via: str, text: str) -> str:
        request: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": self._load.new_tokens,
            "temperature": 1,
            "stream": True,
            "messages": [{"role": "user", "content": text}],
        }
        if via == "chat":
            request["stream_options"] = {"include_usage": True}
        return json.dumps(request)


def measured(seen: list[Seen]) -> tuple[int, float]:
    """Return the tokens of all streams, and the seconds between their first and their last."""
    failed = [one for one in seen if status(one.raw) != 200]
    if failed:
        raise RuntimeError(f"the response is not a stream: {failed[0].raw[:2000]!r}")
    begun = min(first_token(one) for one in seen)
    ended = max(one.times[-1] for one in seen)
    return sum(generated(one) for one in seen), (ended - begun) / 1e9


def first_token(seen: Seen) -> int:
    """Return when the first delta of a response arrived."""
    found = _TOKEN.search(seen.raw)
    if found is None:
        raise RuntimeError(f"a stream has no output: {seen.raw[-2000:]!r}")
    ends = accumulate(seen.sizes)
    return next(time for time, end in zip(seen.times, ends, strict=True) if end >= found.end())


def generated(seen: Seen) -> int:
    """Return the tokens of a response, from its usage."""
    tokens = 0
    for frame in payloads(dechunked(seen.raw)):
        usage = frame.get("usage") or {}
        tokens = usage.get("output_tokens") or usage.get("completion_tokens") or tokens
    return tokens
