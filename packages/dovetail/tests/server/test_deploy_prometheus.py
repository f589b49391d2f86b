"""The alert rules and dashboard queries, parsed and evaluated by Prometheus's own promtool."""

import json
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[4] / "deploy"
ALERTS = DEPLOY / "alerts.yml"
#: Values that Grafana substitutes in queries.
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$model": ".*"}
#: Series as scraped each minute for two hours, and the alerts after them.
SCENES: dict[str, tuple[dict[str, str], set[str]]] = {
    "all is well": (
        {
            'up{job="dovetail",instance="a"}': "1x120",
            'dovetail_replicas_up{instance="a",model="m"}': "1x120",
            'dovetail_requests_total{instance="a",status="200"}': "0+60x120",
            'dovetail_prefix_tokens_total{instance="a",model="m",kind="kept"}': "0+900x120",
            'dovetail_prefix_tokens_total{instance="a",model="m",kind="lost"}': "0+9x120",
            'dovetail_draining{instance="a"}': "0x120",
        },
        set(),
    ),
    "it is gone": ({'up{job="dovetail",instance="a"}': "0x120"}, {"DovetailDown"}),
    "one of two workers has no engine": (
        {
            'dovetail_replicas_up{instance="a",model="m",worker="0"}': "0x120",
            'dovetail_replicas_up{instance="a",model="m",worker="1"}': "1x120",
        },
        set(),
    ),
    "no engine": (
        {'dovetail_replicas_up{instance="a",model="m"}': "0x120"},
        {"DovetailNoReplica"},
    ),
    "one in ten fails": (
        {
            'dovetail_requests_total{instance="a",status="200"}': "0+90x120",
            'dovetail_requests_total{instance="a",status="503"}': "0+10x120",
        },
        {"DovetailErrors"},
    ),
    "all are slow": (
        {
            f'dovetail_time_to_first_token_seconds_bucket{{instance="a",model="m",le="{le}"}}': rate
            for le, rate in (("30", "0x120"), ("60", "0+9x120"), ("+Inf", "0+9x120"))
        },
        {"DovetailSlowFirstToken"},
    ),
    "turns are not exact, and no splice ever failed": (
        {'dovetail_inexact_turns_total{instance="a",model="m"}': "0+1x120"},
        {"DovetailInexactTurns"},
    ),
    "splices fail": (
        {'dovetail_splice_failures_total{instance="a",model="m"}': "0+1x120"},
        {"DovetailSpliceFailures"},
    ),
    "no room for connections": (
        {'dovetail_refused_connections_total{instance="a",reason="connections"}': "0x119 1"},
        {"DovetailConnectionsRefused"},
    ),
    "its Redis is gone, as one worker sees it": (
        {
            'dovetail_store_away{instance="a",worker="0",store="ledger"}': "1x120",
            'dovetail_store_away{instance="a",worker="1",store="ledger"}': "0x120",
        },
        {"DovetailStoreAway"},
    ),
    "its disk is full": (
        {'dovetail_store_lost_total{instance="a",store="responses"}': "0x119 1"},
        {"DovetailStoreLost"},
    ),
    "its certificate is good for a week from now on": (
        {'dovetail_certificate_expiry_timestamp_seconds{instance="a"}': "612100x120"},
        set(),
    ),
    "its certificate ends in less than a week": (
        {'dovetail_certificate_expiry_timestamp_seconds{instance="a"}': "611900x120"},
        {"DovetailCertificateEnds"},
    ),
    "it stops, and does not end": (
        {'dovetail_draining{instance="a",worker="1"}': "1x120"},
        {"DovetailDraining"},
    ),
}


def _promtool(*arguments: str | Path, place: Path) -> str:
    program = which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: it is part of Prometheus")
    done = subprocess.run(
        [program, *arguments], cwd=place, capture_output=True, text=True, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    written = ALERTS.read_text().count("- alert:")
    assert f"SUCCESS: {written} rules found" in _promtool("check", "rules", ALERTS, place=tmp_path)


def test_prometheus_accepts_the_dashboard_queries(tmp_path: Path) -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for name, value in VARIABLES.items():
        queries = [one.replace(name, value) for one in queries]
    assert not [one for one in queries if "$" in one]
    rules = [{"record": f"panel:{at}", "expr": one} for at, one in enumerate(queries)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    output = _promtool("check", "rules", file, place=tmp_path)
    assert f"SUCCESS: {len(queries)} rules found" in output


@pytest.mark.parametrize("name", SCENES)
def test_alerts_fire_as_expected(name: str, tmp_path: Path) -> None:
    series, woken = SCENES[name]
    input_series: list[dict[str, Any]] = [
        {"series": one, "values": values} for one, values in series.items()
    ]
    alerts = [
        {
            "expr": f'sum by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0',
            "eval_time": "2h",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}],
        }
        for alert in sorted(woken)
    ]
    count = {
        "expr": 'count(ALERTS{alertstate="firing"}) or vector(0)',
        "eval_time": "2h",
        "exp_samples": [{"labels": "{}", "value": len(woken)}],
    }
    scene = {"interval": "1m", "input_series": input_series, "promql_expr_test": [count, *alerts]}
    file = tmp_path / "scene.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [scene]})
    )
    assert "SUCCESS" in _promtool("test", "rules", file, place=tmp_path)
