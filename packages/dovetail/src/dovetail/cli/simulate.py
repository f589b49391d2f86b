"""`dovetail simulate`: compare routing policies on a trace, without engines."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dovetail.cli.errors import fail
from dovetail.routing.policy import POLICIES, PolicyName
from dovetail.routing.session_turns import SchedulingLimits
from dovetail.simulate.agent_sessions import (
    GAP_KINDS,
    GapKind,
    SessionWorkload,
    generate_sessions,
    read_sessions,
)
from dovetail.simulate.generator import AgentWorkload, generate_trace
from dovetail.simulate.report import (
    build_plot,
    build_session_plot,
    build_session_table,
    build_table,
)
from dovetail.simulate.session_engine import EngineModel
from dovetail.simulate.session_policies import create_policy
from dovetail.simulate.session_simulation import SessionSimulation, measure_demand
from dovetail.simulate.simulation import ReplicaModel, Simulation, ideal_hit_rate
from dovetail.simulate.trace import RequestTrace, TraceFormatError, read_trace

_ONLY_WITH_SCHEDULING = ("oversubscription", "gaps")
_ONLY_WITHOUT_SCHEDULING = ("replicas", "blocks", "policy", "cache_output")
_ONLY_WITH_TRACE = ("block_size",)
_ONLY_WITHOUT_TRACE = ("sessions", "seed", "gaps")


def simulate(  # noqa: PLR0913 - each is a flag
    context: typer.Context,
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="Trace of `dovetail serve --trace-file`, or in Mooncake's format, plain or "
            "compressed (.gz). Without it, agent sessions are generated."
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Number of replicas.")] = 4,
    blocks: Annotated[
        int, typer.Option(min=1, help="Blocks of each KV cache, of the size that the trace has.")
    ] = 16_384,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Routing policy ({', '.join(POLICIES)}); repeat it to compare several. "
            "Default: all."
        ),
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens per block. Default: derived from the trace.")
    ] = None,
    prefill_rate: Annotated[
        float, typer.Option(min=1.0, help="Prompt tokens per second that a replica prefills.")
    ] = 10_000.0,
    decode_ms: Annotated[
        float,
        typer.Option(min=0.0, max=60_000.0, help="Milliseconds per output token of a response."),
    ] = 20.0,
    cache_output: Annotated[
        bool,
        typer.Option(
            "--cache-output",
            help="Output is cached for the session's next prompt, as with exact turns.",
        ),
    ] = False,
    sessions: Annotated[
        int, typer.Option(min=1, help="Number of generated sessions, if there is no trace.")
    ] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the generated sessions.")] = 7,
    scheduling: Annotated[
        str | None,
        typer.Option(
            help="Compare session scheduling on one replica instead of routing: a list of fcfs, "
            "cap:N, thunder, auto and oracle, separated by commas."
        ),
    ] = None,
    oversubscription: Annotated[
        float, typer.Option(min=0.01, help="With --scheduling: demand relative to the KV cache.")
    ] = 2.0,
    gaps: Annotated[
        str,
        typer.Option(
            help="With --scheduling: the tool runs of generated sessions. short: 95 % end within "
            "10 s; long: a fifth takes one to five minutes."
        ),
    ] = "short",
    plot: Annotated[Path | None, typer.Option(help="Write a chart to this SVG file.")] = None,
) -> None:
    """Replay a trace on simulated replicas and print hit rate, TTFT and balance per policy.

    Balance is the number of prefilled tokens of the busiest replica, relative to the mean.
    """
    if scheduling is None:
        _reject(context, _ONLY_WITH_SCHEDULING, "requires --scheduling")
    else:
        _reject(context, _ONLY_WITHOUT_SCHEDULING, "cannot be used with --scheduling")
    if trace is None:
        _reject(context, _ONLY_WITH_TRACE, "requires a trace")
    else:
        _reject(context, _ONLY_WITHOUT_TRACE, "cannot be used with a trace")
    if scheduling is not None:
        kind = _select_gaps(gaps)
        workload = SessionWorkload(sessions, max(1, sessions // 4), kind, seed=seed)
        loaded = None if trace is None else _load_trace(trace, block_size, AgentWorkload(sessions))
        engine = EngineModel(blocks, 64, prefill_rate, decode_ms / 1000)
        _compare_scheduling(loaded, workload, engine, (oversubscription, scheduling, plot))
        return
    requests = _load_trace(trace, block_size, AgentWorkload(sessions, 120 / sessions, seed=seed))
    model = ReplicaModel(blocks, prefill_rate, decode_ms / 1000, cache_output)
    names = _select_policies(policy or list(POLICIES))
    results = [Simulation(requests, replicas, model, name).run() for name in names]
    summary = (
        f"{len(requests.requests)} requests, {requests.prompt_tokens:,} prompt tokens, "
        f"{replicas} replicas with {blocks} blocks of {requests.block_tokens} tokens"
    )
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(f"{summary}; ideal hit rate {ideal_hit_rate(requests):.3f}")
    console.print(build_table(results))
    if plot is not None:
        _write_plot(plot, build_plot(results, summary))


def _compare_scheduling(
    trace: RequestTrace | None,
    workload: SessionWorkload,
    engine: EngineModel,
    options: tuple[float, str, Path | None],
) -> None:
    oversubscription, names, plot = options
    found = generate_sessions(workload) if trace is None else read_sessions(trace)
    size = workload.block_tokens if trace is None else trace.block_tokens
    engine = replace(engine, block_tokens=size)
    demand = measure_demand(found, engine)
    engine = replace(engine, blocks=max(1, int(demand / oversubscription / size)))
    policies = {}
    for name in map(str.strip, names.split(",")):
        try:
            policies[name] = create_policy(name, engine, SchedulingLimits())
        except ValueError as error:
            fail("simulate", f"--scheduling {error}", 2)
    results = [SessionSimulation(found, engine, one).run(name) for name, one in policies.items()]
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    summary = f"{len(found)} sessions, demand {demand:,}, KV cache {engine.tokens:,} tokens"
    console.print(summary)
    console.print(build_session_table(results, engine))
    if plot is not None:
        _write_plot(plot, build_session_plot(results, summary))


def _write_plot(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail("simulate", f"cannot write {path}: {error.strerror}")


def _reject(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Reject options that were given but would have no effect."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            fail("simulate", f"--{name.replace('_', '-')} {reason}", 2)


def _select_gaps(name: str) -> GapKind:
    known = {str(kind): kind for kind in GAP_KINDS}
    if name not in known:
        fail("simulate", f"--gaps must be one of {', '.join(GAP_KINDS)}, got {name}", 2)
    return known[name]


def _select_policies(names: list[str]) -> list[PolicyName]:
    known = {str(name): name for name in POLICIES}
    for name in names:
        if name not in known:
            fail("simulate", f"--policy must be one of {', '.join(POLICIES)}, got {name}", 2)
    return [known[name] for name in names]


def _load_trace(path: Path | None, block_size: int | None, workload: AgentWorkload) -> RequestTrace:
    if path is None:
        return generate_trace(workload)
    try:
        return read_trace(path, block_size)
    except TraceFormatError as error:
        fail("simulate", str(error))
