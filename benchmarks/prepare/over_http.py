"""The same conversations over HTTP, to Dovetail and to Dynamo's frontend: CPU of each process.

The cost of a request includes more than its preparation: receiving the body, sending the prompt to
the engine (as JSON or over Dynamo's request plane), parsing and writing a response of a few dozen
tokens and, in Dovetail, recording it. None of this is subtracted, on either side.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.frontend.parts import Author, Part
from benchmarks.frontend.servers import CONTEXT, Frontend, dovetail_frontend, dynamo_frontend
from benchmarks.prepare.dialects import DIALECTS, Dialect, Json
from benchmarks.prepare.inside import SIZES, TARGET, TOKENIZER
from benchmarks.prepare.sample_texts import TOOL, SampleTexts
from benchmarks.report import Result, table

# After the import that adds the test modules to the path.
# isort: split
from server_process import qwen_folder

from dovetail_tokenizers import load_tokenizer

APIS = ("messages", "chat")
COLD, STEPS = 3, 24
TIMEOUT_SECONDS = 120.0
# Characters per token in these sessions; of system text and tools; of a step without its result.
CHARACTERS, HEAD, STEP = 3.4, 35_000, 450
SCRIPTED_STEP = Part(
    "step",
    "<think>\nThe file is not what it was.\n</think>\n\nI look at the next one.\n<tool_call>\n"
    f'{{"name": "{TOOL}", "arguments": {{"command": "read the next file of the list"}}}}'
    "\n</tool_call>",
)
INTRO = f"""\
Milliseconds of CPU time of the frontend's process per request and response, for the same
conversations over HTTP (the mean of {STEPS} tool steps, each with 36 new lines of code, or of
{COLD} new conversations). Included on both sides: receiving the body, sending the prompt to the
engine, and a non-streaming response of about 45 tokens with reasoning and a call.
"""


@dataclass
class Cost:
    """Milliseconds of CPU for a new conversation, and for one that continues."""

    api: str
    size: int
    cold: dict[str, float] = field(default_factory=dict)
    grown: dict[str, float] = field(default_factory=dict)


class Conversation:
    """A conversation with a server, which begins with an unknown history."""

    def __init__(self, frontend: Frontend, dialect: Dialect, tokens: int, seed: int) -> None:
        self._frontend = frontend
        self._dialect = dialect
        self._headers = {**dialect.headers, dialect.session: f"talk-{seed}-{tokens}"}
        self._headers["content-type"] = "application/json"
        self._texts, self._items = begun(dialect, tokens, seed)

    def step(self) -> None:
        """Send a request whose response calls a tool, and append the tool result."""
        response = self._post(written(self._dialect, self._texts, self._items))
        (id,) = self._dialect.call_ids(response)
        self._items += self._dialect.replay(response)
        self._items += self._dialect.result(id, self._texts.result())

    def _post(self, body: bytes) -> dict[str, Any]:
        connection = HTTPConnection("127.0.0.1", self._frontend.port, timeout=TIMEOUT_SECONDS)
        connection.request("POST", self._dialect.path, body, self._headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{self._frontend.name}: {response.status} {content[:300]!r}")
        return msgspec.json.decode(content)  # type: ignore[no-any-return]


def begun(dialect: Dialect, tokens: int, seed: int) -> tuple[SampleTexts, list[Json]]:
    """Build a history of about this many tokens that no server knows, and its further texts."""
    texts = SampleTexts(seed)
    items = dialect.question(SCRIPTED_STEP.cue)
    room = tokens * CHARACTERS - HEAD
    for number in count():
        if room <= 0:
            return texts, items
        id, result = f"call_{seed}_{number}", texts.result()
        items += dialect.called(texts.prose(), id, TOOL, dict(texts.command()))
        items += dialect.result(id, result)
        room -= len(result) + STEP
    raise AssertionError


def written(dialect: Dialect, texts: SampleTexts, items: list[Json]) -> bytes:
    return msgspec.json.encode(dialect.body(texts.offer, items))


def run(*, against_dynamo: bool) -> Result:
    costs = [Cost(api, size) for api in APIS for size in SIZES]
    with TemporaryDirectory() as folder:
        scratch = Path(folder)
        model = _wide(qwen_folder(scratch / "model"))
        with _dovetail(model, scratch) as frontend:
            _measure(frontend, costs)
        if against_dynamo:
            with _dynamo(scratch) as frontend:
                _measure(frontend, costs)
    return Result(
        "prepare_http", "A complete request", f"{INTRO}\n{_table(costs)}", _reading(costs)
    )


def _measure(frontend: Frontend, costs: list[Cost]) -> None:
    Conversation(
        frontend, DIALECTS["chat"], 1000, 0
    ).step()  # exclude one-time costs from the measurement
    for cost in costs:
        conversation, cost.cold[frontend.name] = _begin(frontend, cost.api, cost.size)
        conversation.step()
        cost.grown[frontend.name] = _milliseconds(frontend, conversation, STEPS)
        figures = f"cold {cost.cold[frontend.name]:.1f}, grown {cost.grown[frontend.name]:.2f}"
        print(f"  {frontend.name} {cost.api} {cost.size}: {figures}", flush=True)


def measure_cold(frontend: Frontend, api: str, size: int) -> float:
    """Return the milliseconds of new conversations, after one that excludes one-time costs."""
    Conversation(frontend, DIALECTS[api], 1000, 0).step()
    return _begin(frontend, api, size)[1]


def _begin(frontend: Frontend, api: str, size: int) -> tuple[Conversation, float]:
    """Begin several conversations. Return the last one, and the mean cost of the first request."""
    spent = []
    for seed in range(1, COLD + 1):
        conversation = Conversation(frontend, DIALECTS[api], size, seed + 10 * APIS.index(api))
        spent.append(_milliseconds(frontend, conversation, 1))
    return conversation, sum(spent) / COLD


def _milliseconds(frontend: Frontend, conversation: Conversation, steps: int) -> float:
    before = _used(frontend.pid)
    for _ in range(steps):
        conversation.step()
    time.sleep(0.1)  # include the recording after a response
    return (_used(frontend.pid) - before) / steps / 1e6


def _used(pid: int) -> int:
    """Return the CPU nanoseconds of a process's threads. A request is shorter than a tick."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text("ascii").split()[0]) for thread in threads)


def _wide(model: Path) -> Path:
    """Set a context length for the longest conversation, and return the folder."""
    path = model / "config.json"
    config = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**config, "max_position_embeddings": CONTEXT}))
    return model


@contextmanager
def _dovetail(model: Path, scratch: Path) -> Iterator[Frontend]:
    with dovetail_frontend([SCRIPTED_STEP], model, scratch) as frontend:
        yield frontend


@contextmanager
def _dynamo(scratch: Path) -> Iterator[Frontend]:
    with dynamo_frontend([SCRIPTED_STEP], Author(load_tokenizer(TOKENIZER)), scratch) as frontend:
        yield frontend


def _table(costs: list[Cost]) -> str:
    names = list(costs[0].cold)
    head = ["API", "tokens, about"]
    for what in ("grown", "cold"):
        head += [f"{what}, {name}" for name in names]
        head += [f"{what}, ratio"] if len(names) > 1 else []
    rows = []
    for cost in costs:
        row = [cost.api, f"{cost.size:,}"]
        for spent, digits in ((cost.grown, 2), (cost.cold, 1)):
            row += [f"{spent[name]:.{digits}f}" for name in names]
            row += [f"{spent[names[0]] / spent[names[1]]:.2f}"] if len(names) > 1 else []
        rows.append(row)
    return table(head, rows)


def _reading(costs: list[Cost]) -> str:
    cost = next(one for one in costs if (one.api, one.size) == (APIS[0], TARGET))
    figures = [
        f"{name} {cost.grown[name]:.2f} ms grown, {cost.cold[name]:.1f} ms cold"
        for name in cost.cold
    ]
    return f"Messages, {TARGET // 1000}k tokens: {'; '.join(figures)}.\n"
