"""Write deploy/grafana.json from the table below; with --check, fail if it is not current.

The dashboard has more than a thousand lines of JSON; this table defines what it shows.
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
    """A graph: its queries by legend, and the unit of its values."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    note: str = ""


def rate(name: str, *by: str, where: str = OF_MODEL) -> str:
    """Return a query for the rate of a counter, summed over workers."""
    return f"sum by ({', '.join(by)}) (rate(dovetail_{name}_total{{{where}}}{RATE}))"


def share(kind: str, name: str, label: str) -> str:
    """Return a query for the share of a counter that has this label."""
    part = rate(name, "model", where=f'{OF_MODEL},{label}="{kind}"')
    return f"{part} / {rate(name, 'model')}"


def quantiles(name: str, where: str = OF_MODEL) -> dict[str, str]:
    """Return queries for p50, p95 and p99 of a histogram."""
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
            "Running and queued requests",
            {
                "{{endpoint}}": gauge("inflight_requests", "endpoint"),
                "before the first token": gauge("queued_requests"),
                "background": gauge("background_responses"),
                "WebSockets": gauge("websocket_connections"),
            },
        ),
        Panel(
            "Rejected and disconnected",
            {
                "limit: {{reason}}": rate("rate_limited_requests", "reason", where=WHERE),
                "disconnected": rate("disconnected_clients", "model"),
            },
            "reqps",
        ),
    ),
    "Times": (
        Panel("Time to first token", quantiles("time_to_first_token_seconds"), "s"),
        Panel("Inter-token latency", quantiles("inter_token_latency_seconds"), "s"),
        Panel("Request duration", quantiles("request_duration_seconds"), "s"),
        Panel("Queue wait", quantiles("queue_wait_seconds"), "s"),
        Panel("Prompt preparation", quantiles("prepare_seconds"), "s"),
        Panel(
            "Tool call lead time",
            quantiles("dispatch_lead_seconds"),
            "s",
            "From the completion of a tool call to the end of its turn.",
        ),
    ),
    "Tokens": (
        Panel(
            "Tokens",
            {
                "read": f"sum(rate(dovetail_input_sequence_tokens_sum{{{OF_MODEL}}}{RATE}))",
                "cached": f"sum(rate(dovetail_cached_tokens_sum{{{OF_MODEL}}}{RATE}))",
                "written": f"sum(rate(dovetail_output_sequence_tokens_sum{{{OF_MODEL}}}{RATE}))",
            },
            "short",
            "Per second.",
        ),
        Panel("Prompt", quantiles("input_sequence_tokens")),
        Panel("Answer", quantiles("output_sequence_tokens")),
    ),
    "Exactness": (
        Panel(
            "Prompt tokens compared with the previous prompt",
            {"{{kind}}": rate("prefix_tokens", "kind")},
            note="`lost`: tokens of the previous prompt that are not in the same place.",
        ),
        Panel("Earlier turns in prompts", {"{{kind}}": rate("replayed_turns", "kind")}),
        Panel(
            "Exact turns", {"{{model}}": share("exact", "replayed_turns", "kind")}, "percentunit"
        ),
        Panel("Reasons of prefix breaks", {"{{reason}}": rate("prefix_reasons", "reason")}),
        Panel("Re-prefilled tokens", {"{{model}}": rate("reprefilled_tokens", "model")}),
        Panel(
            "Inexact turns",
            {
                "token ids missing": rate("inexact_turns", "model"),
                "splice failed": rate("splice_failures", "model"),
                "parser: {{code}}": rate("parser_diagnostics", "code"),
            },
        ),
    ),
    "Engines": (
        Panel("Replicas up", {"{{model}}": f"max by (model) (dovetail_replicas_up{{{OF_MODEL}}})"}),
        Panel(
            "Migrations, restarts, warming",
            {
                "migrated responses": rate("migrations", "model"),
                "migrated tokens": rate("migrated_tokens", "model"),
                "engine restarts": rate("replica_restarts", "model"),
                "warmed prompts": rate("warmed_prompts", "model"),
            },
        ),
        Panel(
            "Draining, dropped trace lines",
            {
                "draining": f"max by (instance) (dovetail_draining{{{WHERE}}})",
                "dropped": rate("trace_dropped", "instance", where=WHERE),
            },
        ),
        Panel(
            "Refused connections, worker restarts",
            {
                "refused: {{reason}}": rate("refused_connections", "reason", where=WHERE),
                "TLS: {{reason}}": rate("tls_failures", "reason", where=WHERE),
                "worker restarts": rate("worker_restarts", "instance", where=WHERE),
            },
        ),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="only check, and fail if the file is out of date"
    )
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
