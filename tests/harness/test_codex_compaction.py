"""The real Codex makes room: before the window is full, and after it was.

The window that `dovetail launch` tells it is the served model's own: that is what makes it compact.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from codex_runs import codex, codex_again
from exactness import Row, was_exact
from sandbox import Sandbox
from server_process import Running
from stage import QWEN3_CODER, call, say, stage, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

Tell = Callable[[Sequence[Row]], None]
WINDOW = 18_000  # Codex's own prompt is a third of it
SMALLER = 16_384
ASKED = "CONTEXT CHECKPOINT COMPACTION"
SUMMARY = "Steps 0 to 2 are taken, für alle. One is missing."
STEPS = 4
DONE = "All steps are taken ✅."


def _script() -> dict[str, Any]:
    """Steps that each bring thousands of tokens, and a summary when one is asked for."""
    steps: list[list[OutputBlock]] = [
        [think(f"Step {at}."), call("exec_command", cmd=f"echo {at} >> steps.txt; seq 1 950")]
        for at in range(STEPS)
    ]
    main = turns(QWEN3_CODER, *steps, [think("Done."), say(DONE)])
    (summary,) = turns(QWEN3_CODER, [say(SUMMARY)])
    return {"rules": [{"when": {"text": ASKED, "tail": 3000}, **summary}], "turns": main}


def test_codex_compacts_before_the_window_is_full(
    place: Sandbox, tmp_path: Path, tell: Tell
) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER, window=WINDOW)
    with scene.server(_script()) as server:
        told = codex(place, server.url, "Take all steps.")
        assert told.result == DONE
        assert told.errors == []
        assert "context_overflow" not in server.log.read_text()
    _all_steps(place)
    heard = scene.heard
    compacted = [at for at, one in enumerate(heard) if ASKED in one.text]
    assert compacted == [3]
    assert SUMMARY in heard[4].text
    # Three begin anew: the task, the compaction, which Codex asks for without any tools, and the
    # history that it makes of the summary.
    tell(was_exact(heard, new=3))


def test_codex_compacts_after_an_overflow(place: Sandbox, tmp_path: Path, tell: Tell) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER, window=SMALLER)
    with scene.server(_script()) as server:
        wrong = _catalog_with_a_larger_window(server, tmp_path / "catalog.json")
        failed = codex(place, server.url, "Take all steps.", *wrong)
        assert failed.status == 1
        assert failed.events[-1]["type"] == "turn.failed"
        assert ["context window" in error for error in failed.errors] == [True]  # it asked once
        assert server.log.read_text().count("context_overflow") == 1
        told = codex_again(place, server.url, "Go on.")
        assert told.result == DONE
        assert told.errors == []
    _all_steps(place)
    heard = scene.heard
    assert [at for at, one in enumerate(heard) if ASKED in one.text] == [3]
    assert SUMMARY in heard[4].text
    tell(was_exact(heard, new=3))  # as above


def _all_steps(place: Sandbox) -> None:
    taken = (place.work / "steps.txt").read_text()
    assert taken == "".join(f"{at}\n" for at in range(STEPS))


def _catalog_with_a_larger_window(server: Running, path: Path) -> tuple[str, ...]:
    """Settings with which Codex believes in a window that the model does not have."""
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
