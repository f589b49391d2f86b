"""A whole run: the experiments behind one server, then the engine alone with the same requests."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import rates, rounds, turns
from benchmarks.gpu.claude import make_offer
from benchmarks.gpu.figures import Alone, Measure, row
from benchmarks.gpu.machine import machine, page_of
from benchmarks.gpu.orders import Group, Replay, Serve
from benchmarks.gpu.rates import Load, Rates
from benchmarks.gpu.results import Results
from benchmarks.gpu.rounds import CASES, Client
from benchmarks.gpu.stage import Stage, play_alone, stage
from dovetail_tokenizers import load_tokenizer

TTFT = (
    "from the first byte of the request written to the bytes of the first content_block_delta "
    "read, on a new connection that is already open; medians of the rounds"
)


@dataclass(frozen=True)
class Settings:
    """What is to be run, and how. `options` are the engine's own, `scratch` is for much data."""

    scratch: Path
    model: Path
    chosen: list[str]
    options: dict[str, str]
    tokens: int
    repeats: int
    load: Load = field(default_factory=Load)
    alone: bool = True
    commit: str | None = None
    described: str = ""


@dataclass
class Run:
    """What was measured, in as far as the engine alone needs it."""

    measures: dict[str, list[Measure]] = field(default_factory=dict)
    rates: Rates | None = None


def run(settings: Settings, results: Results) -> None:
    """All chosen experiments."""
    cases = [name for name in settings.chosen if name in CASES]
    folder = settings.scratch / "notes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = load_tokenizer(settings.model)
    count = lambda text: len(tokenizer.encode(text))  # noqa: E731
    sessions = rounds.session_names(cases or ["A"], settings.repeats)
    sessions += turns.session_names(settings.repeats)
    results.say(f"loading {settings.described}")
    found = Run()
    with stage(Serve(str(settings.model), str(folder), settings.options, sessions)) as staged:
        results.say(f"ready, the model took {staged.load_s:.1f} s: {staged.facts}")
        _check_room(settings, staged, results)
        client = Client(staged, make_offer(settings.tokens, count), count)
        rounds.warm_up(client, cases or ["A"])
        _describe(settings, staged, results)
        results.say("warmed up")
        _play_cases(client, cases, settings.repeats, found, results)
        if "G" in settings.chosen:
            for told in turns.play(client, settings.repeats):
                results.put("G", told)
                results.say(f"G saves {told['saved']}")
        if "I" in settings.chosen:
            found.rates = Rates(staged, settings.load, count)
            for told in found.rates.play():
                results.put("I", told)
                results.say(f"I {_rates(told)}")
    if settings.alone:
        _play_alone(settings, found, folder, results)


def _play_cases(
    client: Client, cases: list[str], repeats: int, found: Run, results: Results
) -> None:
    seen = dict.fromkeys(cases, 0)
    for number, measures in enumerate(rounds.play(client, cases, repeats) if cases else (), 1):
        found.measures = measures
        _put_rows(measures, {}, results)
        new = {name: held[-1] for name, held in measures.items() if len(held) > seen[name]}
        told = [
            f"{name} {one.prefilled} tokens {one.client_ms:.1f} ms" for name, one in new.items()
        ]
        results.say(f"round {number}: {', '.join(told)}")
        seen = {name: len(held) for name, held in measures.items()}


def _play_alone(settings: Settings, found: Run, folder: Path, results: Results) -> None:
    """The requests once more. Rows are completed as soon as all of them were played."""
    alone: dict[int, Alone] = {}
    groups: list[Group] = found.rates.groups if found.rates is not None else []
    order = Replay(str(settings.model), str(folder), settings.options, groups)
    results.say("the engine alone")
    for told in play_alone(order, settings.options.get("python")):
        if "note" in told:
            alone[told["note"]] = Alone(told["first_ms"], told["cached"])
        elif found.rates is not None:
            found.rates.add_alone(told["group"], told["tokens"], told["seconds"])
            results.put("I", found.rates.told())
            rate = told["tokens"] / told["seconds"]
            results.say(f"alone, {told['group']} (streams/run): {rate:.1f} tokens/s")
    _put_rows(found.measures, alone, results)
    for name, held in found.measures.items():
        told = row(name, CASES[name].title, held, alone)["median"]
        results.say(f"{name}: {told}")
    if found.rates is not None:
        results.say(f"I {_rates(found.rates.told())}")


def _put_rows(
    measures: Mapping[str, list[Measure]], alone: Mapping[int, Alone], results: Results
) -> None:
    for name in (name for name in CASES if measures.get(name)):
        title = CASES[name].title
        told = row(name, title, measures[name], alone)
        results.put(name, {"title": title, "rows": [told]})


def _check_room(settings: Settings, staged: Stage, results: Results) -> None:
    """A full cache gives up what it used last: the very prefix that is to be found there."""
    room, wanted = staged.facts.get("cache_tokens"), settings.tokens * (settings.repeats + 4)
    if isinstance(room, int) and room < wanted:
        results.say(f"beware: {room} tokens of cache, and B alone fills up to {wanted}")


def _describe(settings: Settings, staged: Stage, results: Results) -> None:
    page = page_of(note.cached for note in staged.notes() if note.cached)
    facts = {"page": page, **staged.facts}
    results.describe(
        machine(facts, settings.described, settings.commit),
        {
            "tokens": settings.tokens,
            "repeats": settings.repeats,
            "engine_options": {k: v for k, v in settings.options.items() if k != "python"},
            "ttft": TTFT,
            "throughput": rates.DEFINITION,
        },
    )


def _rates(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{one['via']} x{one['streams']} {one['median']}" for one in told["rows"])
