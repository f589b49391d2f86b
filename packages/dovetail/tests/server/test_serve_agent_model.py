"""The built-in model with the adapter solves file tasks in the harness of `dovetail eval`."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from agent_tasks import CREATE, FIX_BUG, JOIN_WORDS, MODEL, run_tasks
from server_process import WEIGHTS, Running, served

from dovetail.eval.metrics import read_prompt_stats, sum_prefix_stats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if not WEIGHTS.exists():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / "smollm2.gguf").symlink_to(WEIGHTS)
    # One thread: with several, those that wait for another busy process use CPU time.
    flags = ("--slots", "1", "--threads", "1", "--context-length", "4096")
    with served(MODEL, *flags, home=home) as running:
        yield running


@pytest.mark.timeout(300)
def test_three_tasks_are_solved_and_turns_are_exact(server: Running) -> None:
    runs = run_tasks(server.url, CREATE, JOIN_WORDS, FIX_BUG)
    assert [one.failure_reason for one in runs] == ["", "", ""]
    calls = [call for one in runs for step in one.steps for call in step.calls]
    assert all(call.matches_schema for call in calls)
    totals = sum_prefix_stats(read_prompt_stats(runs))
    assert totals.exact == totals.later > 0
    assert totals.again == 0
