"""Write deploy/grafana.json from the table below; with --check, fail if it is not current.

A dashboard by hand is thousands of lines that nobody reads: what is shown is decided here.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WHERE = 'instance=~"$instance"'
OF_MODEL = f'{WHERE},model=~"$model"'
RATE = "[$__rate_interval]"
WIDTH, HEIGHT = 8, 8  # three panels in a row of 24


@dataclass(frozen=True)
class Panel:
    """A graph: its queries by the name of their lines, and what its numbers are."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    note: str = ""


def rate(name: str, *by: str, where: str = OF_MODEL) -> str:
    """Return how fast a counter grows, of all workers together."""
    return f"sum by ({', '.join(by)}) (rate(dovetail_{name}_total{{{where}}}{RATE}))"


def share(kind: str, name: str, label: str) -> str:
    """What part of a counter has this label."""
    part = rate(name, "model", where=f'{OF_MODEL},{label}="{kind}"')
    return f"{part} / {rate(name, 'model')}"


def quantiles(name: str, where: str = OF_MODEL) -> dict[str, str]:
    """Return the middle and the slow end of a histogram."""
    bucket = f"sum by (le) (rate(dovetail_{name}_bucket{{{where}}}{RATE}))"
    return {f"p{at}": f"histogram_quantile(0.{at}, {bucket})" for at in (50, 95, 99)}


def gauge(name: str, *by: str, where: str = WHERE) -> str:
    return f"sum by ({', '.join(by)}) (dovetail_{name}{{{where}}})"


ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Requests", {"{{endpoint}} {{status}}": rate("requests", "endpoint", "status")}, "reqps"
        ),
        Panel(
            "Running, waiting",
            {
                "{{endpoint}}": gauge("inflight_requests", "endpoint"),
                "before the first token": gauge("queued_requests"),
                "in the background": gauge("background_responses"),
                "WebSockets": gauge("websocket_connections"),
            },
        ),
        Panel(
            "Turned away, hung up",
            {
                "limit: {{reason}}": rate("rate_limited_requests", "reason", where=WHERE),
                "hung up": rate("disconnected_clients", "model"),
            },
            "reqps",
        ),
    ),
    "Times": (
        Panel("First token", quantiles("time_to_first_token_seconds"), "s"),
        Panel("Between tokens", quantiles("inter_token_latency_seconds"), "s"),
        Panel("Whole request", quantiles("request_duration_seconds"), "s"),
        Panel("Waiting for room", quantiles("queue_wait_seconds"), "s"),
        Panel("Making the prompt", quantiles("prepare_seconds"), "s"),
        Panel(
            "Lead of tool calls",
            quantiles("dispatch_lead_seconds"),
            "s",
            "From the moment a call could be run to the end of its turn.",
        ),
    ),
    "Tokens": (
        Panel(
            "Tokens",
            {
                "read": f"sum(rate(dovetail_input_sequence_tokens_sum{{{OF_MODEL}}}{RATE}))",
                "of them cached": f"sum(rate(dovetail_cached_tokens_sum{{{OF_MODEL}}}{RATE}))",
                "written": f"sum(rate(dovetail_output_sequence_tokens_sum{{{OF_MODEL}}}{RATE}))",
            },
            "short",
            "A second.",
        ),
        Panel("Prompt", quantiles("input_sequence_tokens")),
        Panel("Answer", quantiles("output_sequence_tokens")),
    ),
    "Exactness": (
        Panel(
            "Prompt tokens beside the last prompt",
            {"{{kind}}": rate("prefix_tokens", "kind")},
            note="`lost` were there before, and are not where they were.",
        ),
        Panel("Turns as they stand in prompts", {"{{kind}}": rate("replayed_turns", "kind")}),
        Panel(
            "Exact turns", {"{{model}}": share("exact", "replayed_turns", "kind")}, "percentunit"
        ),
        Panel("Why prompts left the last one", {"{{reason}}": rate("prefix_reasons", "reason")}),
        Panel("Read a second time", {"{{model}}": rate("reprefilled_tokens", "model")}),
        Panel(
            "Not exact",
            {
                "ids lost": rate("inexact_turns", "model"),
                "splice failed": rate("splice_failures", "model"),
                "parser: {{code}}": rate("parser_diagnostics", "code"),
            },
        ),
    ),
    "Engines": (
        Panel("Replicas up", {"{{model}}": f"max by (model) (dovetail_replicas_up{{{OF_MODEL}}})"}),
        Panel(
            "Moved, restarted, warmed",
            {
                "answers that went on elsewhere": rate("migrations", "model"),
                "tokens carried over": rate("migrated_tokens", "model"),
                "engines started again": rate("replica_restarts", "model"),
                "prompts read ahead": rate("warmed_prompts", "model"),
            },
        ),
        Panel(
            "Draining, missing in the trace",
            {
                "draining": f"max by (instance) (dovetail_draining{{{WHERE}}})",
                "not traced": rate("trace_dropped", "instance", where=WHERE),
            },
        ),
        Panel(
            "Connections refused, workers that fell",
            {
                "refused: {{reason}}": rate("refused_connections", "reason", where=WHERE),
                "TLS: {{reason}}": rate("tls_failures", "reason", where=WHERE),
                "workers started again": rate("worker_restarts", "instance", where=WHERE),
            },
        ),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail if out of date")
    check: bool = parser.parse_args().check
    made = json.dumps(dashboard(), indent=1) + "\n"
    if check and made != FILE.read_text(encoding="utf-8"):
        print(f"deploy/{FILE.name} is not current: run `make docs`", file=sys.stderr)
        return 1
    FILE.write_text(made, encoding="utf-8")
    return 0


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        number = len(panels) + 1
        panels.append({"id": number, "type": "row", "title": title, "gridPos": place, "panels": []})
        top += 1
        for at, panel in enumerate(row):
            across, down = at % 3, at // 3
            place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * across, "y": top + HEIGHT * down}
            panels.append(_panel(panel, len(panels) + 1, place))
        top += HEIGHT * -(-len(row) // 3)
    return {
        "uid": "dovetail",
        "title": "Dovetail",
        "tags": ["dovetail"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.note,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": expr, "legendFormat": line, "datasource": SOURCE}
            for at, (line, expr) in enumerate(panel.queries.items())
        ],
    }


def _variables() -> list[dict[str, Any]]:
    several = {
        "type": "query",
        "datasource": SOURCE,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }
    return [
        {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
        {**several, "name": "instance", "query": "label_values(dovetail_draining, instance)"},
        {**several, "name": "model", "query": "label_values(dovetail_replicas_up, model)"},
    ]


if __name__ == "__main__":
    sys.exit(main())
