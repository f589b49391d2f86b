"""Tables of the results: first the prefilled tokens, then their cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.gpu.findings import CASES, Run, percentile, ratio
from benchmarks.gpu.published import ALONE, DECODE, TIMELINE, TTFT
from benchmarks.gpu.targets import targets
from benchmarks.report import table

FACTS = {
    "gpu": "GPU",
    "driver": "driver",
    "cpu": "processor",
    "cores": "cores",
    "python": "Python",
    "torch": "torch",
    "transformers": "transformers",
    "model": "model",
    "dtype": "dtype",
    "page": "tokens per page",
    "cache_tokens": "cache size, tokens",
    "commit": "commit",
    "date": "date",
}
PREFIX, NEXT_TURN = CASES[:3], CASES[3:]


def tables(runs: Sequence[Run]) -> dict[str, str]:
    """Build all tables by name. A table without measurements is empty."""
    return {
        "machine": machine(runs),
        "prefix": first_tokens(runs, PREFIX, "A"),
        "thinking": first_tokens(runs, NEXT_TURN, "D"),
        "parts": parts(runs),
        "turns": _each(runs, "G", turns, on_model=True),
        "throughput": throughput(runs),
        "timeline": _each(runs, "T", timeline, on_model=False),
        "dispatch": _each(runs, "H", dispatch, on_model=False),
        "targets": wanted(runs),
    }


def machine(runs: Sequence[Run]) -> str:
    """Build the table of the machines of the runs."""
    rows = []
    for key, title in FACTS.items():
        facts = [run.machine.get(key) for run in runs]
        if any(fact is not None for fact in facts):
            rows.append([title, *("" if fact is None else str(fact) for fact in facts)])
    return _table(["attention", *(run.name for run in runs)], rows)


def first_tokens(runs: Sequence[Run], cases: Sequence[str], reference: str) -> str:
    """Build the table of times to first token, each relative to the reference of its run."""
    head = ["case", "attention", "tokens prefilled", "prompt tokens", "TTFT, ms", "min to max"]
    head += ["n", f"relative to {reference}", "relative to A", "engine alone, ms"]
    head += ["server adds, ms"]
    head += ["published, B200", "earlier engine alone, sdpa"]
    if reference == "A":
        head.remove("relative to A")
    made = [(run, case) for case in cases for run in runs if run.values(case, "client_ms")]
    return _table(head, [_first_token(run, case, reference) for run, case in made])


def parts(runs: Sequence[Run]) -> str:
    """Build the table of the parts of the time to first token, by the server's clock."""
    keys = ("before_ms", "seam_ms", "after_ms", "client_ms")
    head = ["case", "attention", "until the engine request, ms", "until its first token, ms"]
    head += ["from there to the client, ms", "total, ms"]
    rows = []
    for case in CASES:
        for run in runs:
            middles = [run.middle(case, key) for key in keys]
            if None not in middles:
                rows.append([case, run.name, *map(_ms, middles)])
    return _table(head, rows)


def turns(run: Run) -> str:
    """Build the table of the prefill of each turn, ledger on and off."""
    sides = {row["ledger"]: row for row in run.rows("G")}
    on, off = sides.get("on"), sides.get("off")
    if on is None or off is None:
        return ""
    head = ["turn", "tokens prefilled, ledger on", "ledger off", "TTFT on, ms", "min to max"]
    head += ["TTFT off, ms", "min to max", "n", "TTFT, off / on"]
    rows = []
    for ours, theirs in zip(on["turns"], off["turns"], strict=True):
        took = [turn["all"]["client_ms"] for turn in (ours, theirs)]
        cells = [str(ours["turn"]), _count(ours["prefilled_tokens"])]
        cells += [_count(theirs["prefilled_tokens"])]
        cells += [_ms(median(took[0])), _span(took[0]), _ms(median(took[1])), _span(took[1])]
        rows.append([*cells, str(len(took[0])), _x(median(took[1]) / median(took[0]))])
    totals = [side["total"] for side in (on, off)]
    prefilled = [_count(total["prefilled_tokens"]) for total in totals]
    took = [total["client_ms"] for total in totals]
    all_turns = ["all", *prefilled, _ms(took[0]), "", _ms(took[1]), "", ""]
    rows.append([*all_turns, _x(took[1] / took[0])])
    return _table(head, rows) + _saved(run)


def throughput(runs: Sequence[Run]) -> str:
    """Build the table of tokens per second of all streams."""
    head = ["streams", "attention", "through", "tokens/s", "min to max", "n"]
    head += ["relative to the engine alone", "earlier engine alone, sdpa", "relative to that"]
    rows = []
    for run in runs:
        alone = {row["streams"]: row["median"] for row in run.rows("I") if row["via"] == "alone"}
        for row in sorted(run.rows("I"), key=lambda one: one["streams"]):
            streams, rate, each = row["streams"], row["median"], row["tokens_per_second"]
            known = DECODE.get(streams)
            cells = [str(streams), run.name, row["via"], f"{rate:,.1f}", _span(each)]
            cells += [str(len(each)), _x(ratio(rate, alone.get(streams)), 3)]
            cells += ["" if known is None else f"{known:g}", _x(ratio(rate, known), 1)]
            rows.append(cells)
    return _table(head, rows)


def timeline(run: Run) -> str:
    """Build the table of arrival times of events, and their delay after the token."""
    head = ["event", "ms after the request", "min to max", "n", "token left the engine, ms"]
    head += ["delay after it, ms", "published"]
    rows = []
    for row in run.rows("T"):
        known = TIMELINE.get(row["event"])
        cells = [row["event"], _ms(median(row["ms"])), _span(row["ms"]), str(len(row["ms"]))]
        cells += [_ms(median(row["engine_ms"])), f"{median(row['behind_ms']):.2f}"]
        rows.append([*cells, "" if known is None else f"{known:g}"])
    return _table(head, rows)


def dispatch(run: Run) -> str:
    """Build the table of dispatch: from a call's last token to its frame, and to the turn's end."""
    head = ["API", "streams", "calls", "median, ms", "p90", "max"]
    head += ["first call before the end of the turn, ms", "min to max"]
    rows = []
    for row in run.rows("H"):
        late, leads = row["dispatch_ms"], row["lead_ms"]
        cells = [row["api"], str(row["streams"]), str(len(late)), f"{median(late):.2f}"]
        cells += [f"{percentile(late, 0.9):.2f}", f"{max(late):.2f}", _ms(median(leads))]
        rows.append([*cells, _span(leads)])
    return _table(head, rows)


def wanted(runs: Sequence[Run]) -> str:
    """Build the table of targets of the first run; the others are for comparison."""
    words = {True: "yes", False: "**no**", None: "not measured"}
    found = list(targets(runs[0])) if runs else []
    if all(one.holds is None for one in found):
        return ""
    rows = [[one.wanted, one.measured, words[one.holds]] for one in found]
    return _table(["target", f"measured, attention {runs[0].name}", "met"], rows)


def _first_token(run: Run, case: str, reference: str) -> list[str]:
    took = run.values(case, "client_ms")
    title = (run.experiment(case) or {}).get("title", "")
    cells = [f"{case} {title}".strip(), run.name, _count(run.middle(case, "prefilled_tokens"))]
    cells += [_count(run.middle(case, "prompt_tokens")), _ms(median(took)), _span(took)]
    cells += [str(len(took)), _x(ratio(median(took), run.middle(reference, "client_ms")))]
    if reference != "A":
        cells.append(_x(ratio(median(took), run.middle("A", "client_ms"))))
    cells += [_ms(run.middle(case, "alone_ms")), _ms(run.added(case))]
    return [*cells, _known(TTFT, case, reference), _known(ALONE, case, reference)]


def _known(figures: Mapping[str, float], case: str, reference: str) -> str:
    """Format an earlier figure, with its ratio to the same reference."""
    value = figures.get(case)
    if value is None:
        return ""
    return f"{value:,g} ms ({value / figures[reference]:.2f}x)"


def _saved(run: Run) -> str:
    saved = (run.experiment("G") or {}).get("saved")
    if not saved:
        return ""
    tokens, took = _count(saved["prefilled_tokens"]), _ms(saved["client_ms"])
    return f"\nThe ledger saves {tokens} tokens of prefill and {took} ms of TTFT.\n"


def _each(runs: Sequence[Run], name: str, make: Callable[[Run], str], on_model: bool) -> str:
    """Build the table of an experiment for each run that includes it.

    The attention is named where there is a model, and where several runs are shown.
    """
    made = [(run.name, made) for run in runs if run.rows(name) and (made := make(run))]
    with_name = on_model or len(made) > 1
    return "\n".join(f"Attention: {run}.\n\n{one}" if with_name else one for run, one in made)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; return an empty string if it has no rows."""
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return table(escaped[0], escaped[1:]) if escaped[1:] else ""


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _span(values: Sequence[Any]) -> str:
    return f"{min(values):,.1f} to {max(values):,.1f}"


def _x(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}x"
