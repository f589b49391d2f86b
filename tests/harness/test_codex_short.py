"""The real Codex in a whole tool loop, short enough to run with all other tests."""

from collections.abc import Callable, Sequence
from pathlib import Path

from codex_greeting import DONE, FILE, TASK, TEXT, greeting
from codex_runs import codex
from exactness import Row, was_exact
from sandbox import Sandbox
from stage import QWEN3_CODER, stage


def test_codex_writes_a_file_on_exact_turns(
    place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER)
    with scene.server({"turns": greeting(QWEN3_CODER)}) as server:
        told = codex(place, server.url, TASK)
    assert told.result == DONE
    assert (told.errors, told.failed) == ([], [])
    assert [kind for kind in told.kinds if kind != "reasoning"] == [
        *("command_execution", "command_execution"),
        *("file_change", "file_change"),
        *("command_execution", "command_execution"),
    ]
    assert (place.work / FILE).read_bytes() == TEXT.encode()
    tell(was_exact(scene.heard, new=1))
