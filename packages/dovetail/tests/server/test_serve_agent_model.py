"""The built-in model with the adapter solves file tasks in the harness of `dovetail eval`."""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from server_process import WEIGHTS, Running, served

from dovetail.eval.agent import TaskAgent, TaskRun
from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.metrics import read_prompt_stats, sum_prefix_stats
from dovetail.eval.tasks import SYSTEM_PROMPT, EvalTask
from dovetail.eval.tools import Workspace
from dovetail.net.http_client import Endpoint
from dovetail_model import Sampling

NAME = "smollm2-agent"
HEADERS = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
AREA = '''\
def area(width, height):
    """Return width times height."""
    return width + height
'''
TASKS = (
    EvalTask(
        "create",
        "write a file",
        "Write the file notes/plan.txt with exactly this text:\n\nbuy 12 apples\n",
        lambda workspace: _differs(workspace, "notes/plan.txt", "buy 12 apples"),
    ),
    EvalTask(
        "join_words",
        "read two files in one turn",
        "Join the words of words/first.txt and words/second.txt with hyphens and write them to "
        "joined.txt.",
        lambda workspace: _differs(workspace, "joined.txt", "garden-river"),
        {"words/first.txt": "garden\n", "words/second.txt": "river\n"},
    ),
    EvalTask(
        "fix_bug",
        "fix a function",
        "The test test_area.py fails. Fix area.py.",
        lambda workspace: _differs(workspace, "area.py", AREA.replace("width + h", "width * h")),
        {"area.py": AREA, "test_area.py": "from area import area\n\nassert area(3, 4) == 12\n"},
    ),
)


def _differs(workspace: Workspace, path: str, expected: str) -> str | None:
    if path not in workspace.list_files():
        return f"{path} does not exist"
    return None if workspace.read(path).strip() == expected.strip() else f"{path} is wrong"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if not WEIGHTS.exists():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    home = tmp_path_factory.mktemp("home")
    (home / "models").mkdir()
    (home / "models" / "smollm2.gguf").symlink_to(WEIGHTS)
    with served(NAME, "--slots", "1", "--context-length", "4096", home=home) as running:
        yield running


@pytest.mark.long
@pytest.mark.timeout(300)
def test_three_tasks_are_solved_and_turns_are_exact(server: Running) -> None:
    async def run_tasks() -> list[TaskRun]:
        client = ApiClient(Endpoint.parse(server.url), APIS["messages"], "dovetail", HEADERS)
        sampling = Sampling(temperature=0.0, max_tokens=200)
        agent = TaskAgent(client, NAME, f"Run 00000001.\n{SYSTEM_PROMPT}", sampling, 6)
        return [await agent.run(task, f"s-{task.id}") for task in TASKS]

    runs = asyncio.run(run_tasks())
    assert [one.failure_reason for one in runs] == ["", "", ""]
    calls = [call for one in runs for step in one.steps for call in step.calls]
    assert all(call.matches_schema for call in calls)
    totals = sum_prefix_stats(read_prompt_stats(runs))
    assert totals.exact == totals.later > 0
    assert totals.again == 0
