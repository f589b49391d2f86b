"""`dovetail compare` with the real Codex and Claude Code: a known effect is found, and no other.

The model is a stand-in that makes more tool calls if its prompt lacks something.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.compare.__main__ import (
    EXPERIMENTS,
    TOKENIZER,
    measure_exact_effect,
    run_experiment,
)
from client_sandbox import PROGRAMS

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]
TASKS = ("fix-[a-r]*",)  # nine tasks: with five, no p-value can be below 0.05
KNOWN = {one.name: one for one in EXPERIMENTS}


def run(name: str, folder: Path) -> dict[str, Any]:
    experiment = replace(KNOWN[name], only=TASKS)
    if not (PROGRAMS / experiment.harness).exists() or not TOKENIZER.is_dir():
        pytest.skip("the real client or the tokenizer is not at hand: make harnesses tokenizers")
    assert run_experiment(experiment, folder) == 0
    found: dict[str, Any] = json.loads((folder / name / "report.json").read_text())
    assert found["complete_pairs"] == found["expected_pairs"] >= 8
    assert {one["solved_a"] for one in found["tasks"]} == {1}
    return found


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("codex-instructions", "input[0].content"),
        ("claude-instructions", "system["),
    ],
)
def test_known_effect_is_found(name: str, path: str, tmp_path: Path) -> None:
    report = run(name, tmp_path)
    calls = report["measures"][0]
    assert (calls["name"], calls["verdict"]) == ("tool calls", "higher")
    low, high = calls["effect"]["interval"]
    assert low <= 2 <= high
    assert measure_exact_effect(KNOWN[name], tmp_path / name) == 2
    assert report["differences"]
    assert all(one["path"].startswith(path) for one in report["differences"])


@pytest.mark.parametrize(
    "name",
    ["codex-interleaving", "claude-interleaving", "ledger-interleaving-codex"],
)
def test_reasoning_between_calls_has_the_known_effect(name: str, tmp_path: Path) -> None:
    """One more call if the reasoning of earlier turns is not shown: too few tasks for a test."""
    report = run(name, tmp_path)
    assert measure_exact_effect(KNOWN[name], tmp_path / name) == 1
    assert report["differences"] == []  # the client sends the same


@pytest.mark.parametrize("name", ["codex-null", "claude-null"])
def test_equal_profiles_show_no_difference(name: str, tmp_path: Path) -> None:
    report = run(name, tmp_path)
    calls = report["measures"][0]
    assert (calls["name"], calls["verdict"]) == ("tool calls", "no difference shown")
    assert measure_exact_effect(KNOWN[name], tmp_path / name) == 0
    assert report["differences"] == []  # the requests are equal while the outputs are
