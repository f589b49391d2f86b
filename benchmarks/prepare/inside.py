"""The cost of preparing a turn, measured inside one process: from a body's bytes to token ids."""

import asyncio
import os
import time
from dataclasses import dataclass, field

import msgspec
from tokenizers import Tokenizer as BareTokenizer

from benchmarks.measure import quiet
from benchmarks.prepare.dialects import DIALECTS
from benchmarks.prepare.session import Session
from benchmarks.report import ROOT, Result, table
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.pipeline.preparation import ChatPreparer

INTRO = """\
Milliseconds of CPU time, the best of several turns, for sessions that grow step by step (reasoning
and seals are sent back, a user's question every 8 tool steps), with the template and
tokenizer of Qwen3. *Decode* is from bytes to a request, with a `DecodeCache`; *scan* is a bare scan
of the same JSON; *prepare* is normalize, recognize, render and tokenize. A tool step adds a result
of 36 lines of code; with a question, the template drops the reasoning of the last loop, which is
rendered again. Each turn is measured on first use, and the sizes alternate. *From seals*: a replica
that has only the seal key. *Cold*: all caches are empty, and the tokenizer was just loaded.
*tokenizers*: the bare library on the text of the complete prompt.
"""
SIZES = (10_000, 40_000, 80_000, 160_000)
TARGET = 80_000
LIMIT = 2.0  # milliseconds, the target; reported, not asserted
FLAT = 1.3
COLD_LIMIT = 1.1  # relative to the bare tokenizer
STEPS, QUESTIONS, COLD = 24, 6, 3
SEED_DISTANCE = 40  # files between the first ones of two sessions: more than a session reads
COLD_API = "messages"  # the other APIs differ only in decoding
TOKENIZER = ROOT / ".cache" / "tokenizers" / "qwen3"
TEMPLATES = os.environ.get("DOVETAIL_TEMPLATES") or ROOT.parent / "shared" / "data" / "templates"
TEMPLATE = "Qwen-Qwen3-0.6B.jinja"
COLUMNS = ("decode", "scan", "prepare", "question", "from seals", "cold", "tokenizers")


@dataclass
class Costs:
    """The best time of each step, in milliseconds."""

    api: str
    tokens: int = 0
    body: int = 0
    best: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, spent: int) -> None:
        milliseconds = spent / 1e6
        self.best[name] = min(milliseconds, self.best.get(name, milliseconds))

    @property
    def total(self) -> float:
        """Time of a tool step, from the body's bytes to the prompt."""
        return self.best["decode"] + self.best["prepare"]


def missing() -> str | None:
    """Return what is missing for the benchmark, or an empty string."""
    if not (TOKENIZER / "tokenizer.json").is_file():
        return "the tokenizer of Qwen3 is missing: run `make tokenizers`"
    if not (ROOT / TEMPLATES / TEMPLATE).is_file():
        return "the template of Qwen3 is missing: set DOVETAIL_TEMPLATES"
    return None


def run() -> Result | None:
    lack = missing()
    if lack is not None:
        print(f"  skipped: {lack}")
        return None
    with quiet():
        measured = {api: asyncio.run(_measure(api)) for api in DIALECTS}
    costs = [one for sizes in measured.values() for one in sizes]
    return Result(
        "prepare",
        "Preparing a turn",
        f"{INTRO}\n{_table(costs)}",
        _reading(measured[COLD_API]),
    )


def model() -> Model:
    """Load Qwen3."""
    return load_model(
        TOKENIZER,
        custom_template=ROOT / TEMPLATES / TEMPLATE,
        tool_parser="hermes",
        reasoning_parser="qwen3",
    )


def preparer(qwen3: Model, keyring: Keyring) -> ChatPreparer:
    """Return a preparer that has only the seal keys."""
    return ChatPreparer(qwen3, Ledger(MemoryLedgerStore()), keyring)


async def _measure(api: str) -> list[Costs]:
    qwen3, keyring = model(), Keyring([b"k" * 32])
    # Each session has texts of its own: the words of another session's texts would be cached.
    sessions = [_session(api, qwen3, keyring, 1 + at * SEED_DISTANCE) for at in range(len(SIZES))]
    measured = [Costs(api) for _ in SIZES]
    each = list(zip(sessions, measured, strict=True))
    for (session, costs), size in zip(each, SIZES, strict=True):
        while len((prepared := await session.prepare()).prompt.ids) < size:
            await session.grow()
        costs.tokens, costs.body = len(prepared.prompt.ids), len(session.body())
    for session, costs in each * STEPS:
        await session.step()
        await _grown(session, costs, "prepare")
    for session, costs in each * QUESTIONS:
        await session.respond()
        session.add_question()
        await _grown(session, costs, "question")
        await session.step()
    for session, costs in each * (COLD if api == COLD_API else 0):
        await _cold(session, keyring, costs)
    for costs in measured:
        rounded = {name: round(spent, 2) for name, spent in costs.best.items()}
        print(f"  {api:>9} {costs.tokens:>7}", rounded, flush=True)
    return measured


async def _grown(session: Session, costs: Costs, prepare: str) -> None:
    """Measure the next request of a session on first use."""
    body = session.body()
    begun = time.process_time_ns()
    request = session.decode(body, session.memory)
    decoded = time.process_time_ns()
    await session.preparer.prepare(request)
    done = time.process_time_ns()
    msgspec.json.decode(body, type=msgspec.Raw)
    costs.add("decode", decoded - begun)
    costs.add(prepare, done - decoded)
    costs.add("scan", time.process_time_ns() - done)


async def _cold(session: Session, keyring: Keyring, costs: Costs) -> None:
    """Measure the same request with empty caches, and with only the seal key."""
    body = session.body()
    known = (await session.prepare()).prompt.ids
    qwen3 = model()
    for name, keys in (("cold", Keyring([b"o" * 32])), ("from seals", keyring)):
        fresh = preparer(qwen3, keys)
        begun = time.process_time_ns()
        await fresh.prepare(session.decode(body, None))
        costs.add(name, time.process_time_ns() - begun)
    text = qwen3.tokenizer.decode(known)
    bare = BareTokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    begun = time.process_time_ns()
    bare.encode(text, add_special_tokens=False)
    costs.add("tokenizers", time.process_time_ns() - begun)


def _session(api: str, qwen3: Model, keyring: Keyring, seed: int) -> Session:
    return Session(DIALECTS[api], preparer(qwen3, keyring), qwen3.tokenizer, seed)


def _table(measured: list[Costs]) -> str:
    head = ["API", "tokens", "body, KB", "decode", "scan", "prepare, tool step"]
    head += ["prepare, question", "tool step in total", "from seals", "cold", "tokenizers"]
    head += ["cold / tokenizers"]
    rows = [
        [
            costs.api,
            f"{costs.tokens:,}",
            f"{costs.body / 1000:.0f}",
            *(f"{costs.best[name]:.2f}" for name in COLUMNS[:4]),
            f"{costs.total:.2f}",
            *_cold_cells(costs),
        ]
        for costs in measured
    ]
    return table(head, rows)


def _cold_cells(costs: Costs) -> list[str]:
    found = [costs.best[name] for name in COLUMNS[4:] if name in costs.best]
    if not found:
        return ["", "", "", ""]
    return [*(f"{spent:.1f}" for spent in found), f"{found[1] / found[2]:.2f}"]


def _reading(measured: list[Costs]) -> str:
    """Summarize the figures of the Messages API."""
    at_target = measured[SIZES.index(TARGET)]
    spent = [costs.best["prepare"] for costs in measured]
    growth = max(spent) / spent[0]
    cold = max(costs.best["cold"] / costs.best["tokenizers"] for costs in measured)
    return (
        f"Messages: a tool step at {TARGET // 1000}k tokens takes {at_target.total:.2f} ms in "
        f"total, {_within(at_target.total, LIMIT)} {LIMIT:.0f} ms. Without decoding the body, the "
        f"maximum is {growth:.2f} times the cost at {SIZES[0] // 1000}k tokens, "
        f"{_within(growth, FLAT)} {FLAT}. Cold, at most {cold:.2f} times the bare tokenizer, "
        f"{_within(cold, COLD_LIMIT)} {COLD_LIMIT}.\n"
    )


def _within(value: float, limit: float) -> str:
    return "within" if value <= limit else "over"
