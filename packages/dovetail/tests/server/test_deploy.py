"""The files for operators: each is checked against the server itself."""

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml
from http_fixture import NAME, run, serving

from dovetail.access.key_file import read_keys
from dovetail.settings.sources import load_config

ROOT = Path(__file__).parents[4]
DEPLOY = ROOT / "deploy"
#: Labels that Prometheus or the merging of worker metrics adds.
ADDED = {"instance", "job", "worker", "le"}
_METRIC = re.compile(r"\bdovetail_[a-z_]+")
_BY = re.compile(r"\bby \(([^)]*)\)")
_MATCHER = re.compile(r"(\w+)\s*=~?")


def _expressions() -> list[str]:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    drawn = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return drawn + [rule["expr"] for rule in _rules()]


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_panel_and_alert_queries_existing_metrics() -> None:
    async def scene() -> None:
        async with serving() as stage:
            message: Any = [{"role": "user", "content": "Hi"}]
            await stage.openai().chat.completions.create(model=NAME, messages=message)
            stage.app.metrics.track_certificate_expiry(time.time)  # only if HTTPS is served
            text = (await stage.request("GET", "/metrics")).body.decode()
            # Alerts check for an increase, which a counter without initial 0 would not have.
            assert 'dovetail_refused_connections_total{reason="connections"} 0.0' in text
            shapes = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
            registry = stage.app.metrics.registry
            labels = {
                label
                for collector in registry._collector_to_names
                for label in getattr(collector, "_labels", ("model", "store"))
            }
        queried = [name for one in _expressions() for name in _METRIC.findall(one)]
        assert len(set(queried)) > 25
        for name in queried:
            assert {name, re.sub("_(bucket|sum|count)$", "", name)} & shapes, name
        for expression in _expressions():
            by = [label.strip() for group in _BY.findall(expression) for label in group.split(",")]
            braces = re.findall(r"\{([^}]*)\}", expression)
            matched = [one for part in braces for one in part.split(",")]
            named = {found[1] for one in matched if (found := _MATCHER.match(one.strip()))}
            assert {*by, *named} - {""} <= labels | ADDED, expression

    run(scene)


def test_dashboard_is_current() -> None:
    script = ROOT / "tools" / "render_dashboard.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(across for across, _ in cells) < 24
        taken |= cells


def test_every_alert_has_a_description() -> None:
    names = [rule["alert"] for rule in _rules()]
    assert len(set(names)) == len(names) > 5
    for rule in _rules():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_example_settings_are_valid() -> None:
    config = load_config({}, {}, DEPLOY / "dovetail.toml").config
    assert config.workers > 1
    assert config.api_key_file == Path("/run/credentials/dovetail.service/keys")


def test_example_keys_are_valid() -> None:
    keys = read_keys(DEPLOY / "keys.example")
    assert [key.tenant for key in keys] == ["team-red", "team-red", "operators"]
    assert [key.admin for key in keys] == [False, False, True]
    assert keys[0].limits.concurrent == 16


def test_unit_matches_the_settings() -> None:
    unit = (DEPLOY / "dovetail.service").read_text()
    settings = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    config = load_config({}, {}, DEPLOY / "dovetail.toml").config
    assert float(settings["TimeoutStopSec"]) > config.drain_timeout
    assert settings["LoadCredential"].startswith("keys:")
    assert config.trace_file is not None
    assert config.trace_file.parent == Path("/var/log") / settings["LogsDirectory"]
    assert settings["Type"] == "notify"  # what `dovetail.server.process` sends
    assert settings["NoNewPrivileges"] == "yes"
    assert settings["ProtectSystem"] == "strict"
    assert settings["DynamicUser"] == "yes"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    unit = (DEPLOY / "dovetail.service").read_text()
    there = unit.replace("/opt/dovetail/bin/dovetail", "/bin/true")
    (tmp_path / "dovetail.service").write_text(there)
    done = subprocess.run(
        [analyze, "verify", tmp_path / "dovetail.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_the_image_copies_exist() -> None:
    lines = _instructions()
    ours = [line.split()[:-1] for line in lines["COPY"] if "--from" not in line]
    copied = [source for sources in ours for source in sources]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
    assert lines["USER"] == ["10001"]
    known = {one.replace("_", "-") for one in load_config({}, {}).config.__dataclass_fields__} | {
        "config"
    }
    flags = re.findall(r'"--([a-z-]+)"', lines["CMD"][-1])
    assert flags
    assert set(flags) <= known


def test_health_check_of_the_image_detects_a_server() -> None:
    """The exact command, with the port of a running server and a port without one."""
    (check,) = _instructions()["HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])

    async def scene() -> None:
        async with serving() as stage:
            there = [part.replace("8001", str(stage.port)) for part in command[1:]]
            assert await _status(there) == 0
        assert await _status(there) != 0

    run(scene)


async def _status(arguments: list[str]) -> int:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=quiet)
    return await process.wait()


def _instructions() -> dict[str, list[str]]:
    """Return the instructions of the Containerfile by name."""
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            found.setdefault(name, []).append(rest.strip())
    return found
