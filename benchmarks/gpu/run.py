"""A complete run: the experiments with one server, then the engine alone with the same requests."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import rates, rounds, turns
from benchmarks.gpu.claude import make_offer
from benchmarks.gpu.figures import Alone, Measure, row
from benchmarks.gpu.machine import machine, page_of
from benchmarks.gpu.process_commands import Group, Replay, Serve
from benchmarks.gpu.processes import ServerProcess, play_alone, run_server_process
from benchmarks.gpu.rates import Load, Rates
from benchmarks.gpu.results import Results
from benchmarks.gpu.rounds import CASES, Client
from dovetail_tokenizers import load_tokenizer

TTFT = (
    "from writing the first byte of the request to reading the first content_block_delta, on a "
    "new connection that is already open; medians of the rounds"
)


@dataclass(frozen=True)
class Settings:
    """The experiments to run. `options` are the engine's own, `scratch` is for large files."""

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
    """The measurements that the engine alone replays."""

    measures: dict[str, list[Measure]] = field(default_factory=dict)
    rates: Rates | None = None


def run(settings: Settings, results: Results) -> None:
    """Run the selected experiments."""
    cases = [name for name in settings.chosen if name in CASES]
    folder = settings.scratch / "notes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = load_tokenizer(settings.model)
    count = lambda text: len(tokenizer.encode(text))  # noqa: E731
    sessions = rounds.session_names(cases or ["A"], settings.repeats)
    sessions += turns.session_names(settings.repeats)
    results.print_progress(f"loading {settings.described}")
    found = Run()
    with run_server_process(
        Serve(str(settings.model), str(folder), settings.options, sessions)
    ) as server:
        results.print_progress(f"ready, the model took {server.load_s:.1f} s: {server.facts}")
        _check_room(settings, server, results)
        client = Client(server, make_offer(settings.tokens, count), count)
        rounds.warm_up(client, cases or ["A"])
        _describe(settings, server, results)
        results.print_progress("warmed up")
        _play_cases(client, cases, settings.repeats, found, results)
        if "G" in settings.chosen:
            for experiment in turns.play(client, settings.repeats):
                results.put("G", experiment)
                results.print_progress(f"G saves {experiment['saved']}")
        if "I" in settings.chosen:
            found.rates = Rates(server, settings.load, count)
            for experiment in found.rates.play():
                results.put("I", experiment)
                results.print_progress(f"I {_rates(experiment)}")
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
        parts = [
            f"{name} {one.prefilled} tokens {one.client_ms:.1f} ms" for name, one in new.items()
        ]
        results.print_progress(f"round {number}: {', '.join(parts)}")
        seen = {name: len(held) for name, held in measures.items()}


def _play_alone(settings: Settings, found: Run, folder: Path, results: Results) -> None:
    """Replay the requests on the engine alone, and complete the rows when all are replayed."""
    alone: dict[int, Alone] = {}
    groups: list[Group] = found.rates.groups if found.rates is not None else []
    order = Replay(str(settings.model), str(folder), settings.options, groups)
    results.print_progress("the engine alone")
    for message in play_alone(order, settings.options.get("python")):
        if "note" in message:
            alone[message["note"]] = Alone(message["first_ms"], message["cached"])
        elif found.rates is not None:
            found.rates.add_alone(message["group"], message["tokens"], message["seconds"])
            results.put("I", found.rates.summary())
            rate = message["tokens"] / message["seconds"]
            results.print_progress(f"alone, {message['group']} (streams/run): {rate:.1f} tokens/s")
    _put_rows(found.measures, alone, results)
    for name, held in found.measures.items():
        message = row(name, CASES[name].title, held, alone)["median"]
        results.print_progress(f"{name}: {message}")
    if found.rates is not None:
        results.print_progress(f"I {_rates(found.rates.summary())}")


def _put_rows(
    measures: Mapping[str, list[Measure]], alone: Mapping[int, Alone], results: Results
) -> None:
    for name in (name for name in CASES if measures.get(name)):
        title = CASES[name].title
        figures = row(name, title, measures[name], alone)
        results.put(name, {"title": title, "rows": [figures]})


def _check_room(settings: Settings, server: ServerProcess, results: Results) -> None:
    """Warn if the cache is too small: a full cache evicts the prefix that is to be reused."""
    room, wanted = server.facts.get("cache_tokens"), settings.tokens * (settings.repeats + 4)
    if isinstance(room, int) and room < wanted:
        results.print_progress(f"warning: the cache has {room} tokens, B alone uses up to {wanted}")


def _describe(settings: Settings, server: ServerProcess, results: Results) -> None:
    page = page_of(note.cached for note in server.notes() if note.cached)
    facts = {"page": page, **server.facts}
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


def _rates(experiment: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{one['via']} x{one['streams']} {one['median']}" for one in experiment["rows"]
    )
