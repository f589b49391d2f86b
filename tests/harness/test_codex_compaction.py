"""The real Codex compacts before the window is full, and after an overflow.

`dovetail launch` reports the served model's own window to it, on which it bases the compaction.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox
from codex_runs import codex, codex_resume
from prefix_exactness import ReportRun, assert_exact
from server_process import Running
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

WINDOW = 18_000  # Codex's own prompt takes a third of it
SMALLER = 16_384
COMPACTION_PROMPT = "CONTEXT CHECKPOINT COMPACTION"
SUMMARY = "Steps 0 to 2 are taken, für alle. One is missing."
STEPS = 4
DONE = "All steps are taken ✅."


def _script() -> dict[str, Any]:
    """Return steps that each add thousands of tokens, and a summary on request."""
    steps: list[list[OutputBlock]] = [
        [think(f"Step {at}."), call("exec_command", cmd=f"echo {at} >> steps.txt; seq 1 950")]
        for at in range(STEPS)
    ]
    main = turns(QWEN3_CODER, *steps, [think("Done."), text(DONE)])
    (summary,) = turns(QWEN3_CODER, [text(SUMMARY)])
    return {
        "rules": [{"when": {"text": COMPACTION_PROMPT, "tail": 3000}, **summary}],
        "turns": main,
    }


def test_codex_compacts_before_the_window_is_full(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER, window=WINDOW)
    with setup.server(_script()) as server:
        run = codex(sandbox, server.url, "Take all steps.")
        assert run.result == DONE
        assert run.errors == []
        assert "context_overflow" not in server.log.read_text()
    _all_steps(sandbox)
    generations = setup.generations
    compacted = [at for at, one in enumerate(generations) if COMPACTION_PROMPT in one.text]
    assert compacted == [3]
    assert SUMMARY in generations[4].text
    # Two new prompts: the task, and the history that Codex builds from the summary. It requests the
    # compaction without any tools, which stay in the head nevertheless.
    report_run(assert_exact(generations, new=2))


def test_codex_compacts_after_an_overflow(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER, window=SMALLER)
    with setup.server(_script()) as server:
        wrong = _catalog_with_a_larger_window(server, tmp_path / "catalog.json")
        failed = codex(sandbox, server.url, "Take all steps.", *wrong)
        assert failed.status == 1
        assert failed.events[-1]["type"] == "turn.failed"
        assert ["context window" in error for error in failed.errors] == [True]  # one request
        assert server.log.read_text().count("context_overflow") == 1
        run = codex_resume(sandbox, server.url, "Go on.")
        assert run.result == DONE
        assert run.errors == []
    _all_steps(sandbox)
    generations = setup.generations
    assert [at for at, one in enumerate(generations) if COMPACTION_PROMPT in one.text] == [4]
    assert SUMMARY in generations[5].text
    # Codex drops the oldest messages from the request for a summary, which is then new, too.
    report_run(assert_exact(generations, new=3))


def _all_steps(sandbox: Sandbox) -> None:
    taken = (sandbox.work / "steps.txt").read_text()
    assert taken == "".join(f"{at}\n" for at in range(STEPS))


def _catalog_with_a_larger_window(server: Running, path: Path) -> tuple[str, ...]:
    """Return settings by which Codex assumes a larger window than the model has."""
    models = server.request("GET", "/v1/models?client_version=0").json["models"]
    window = {"context_window": 200_000, "max_context_window": 200_000}
    window["auto_compact_token_limit"] = 180_000
    path.write_text(json.dumps({"models": [{**model, **window} for model in models]}))
    settings = {
        "model_catalog_json": json.dumps(str(path)),
        "model_context_window": 200_000,
        "model_auto_compact_token_limit": 180_000,
    }
    return tuple(part for name, value in settings.items() for part in ("-c", f"{name}={value}"))
