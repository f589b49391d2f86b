"""File tasks that the embedded model solves with its adapter, for the agent of `dovetail eval`."""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from server_process import WEIGHTS, Running

from dovetail.eval.agent import TaskAgent, TaskRun
from dovetail.eval.client import APIS, ApiClient
from dovetail.eval.tasks import SYSTEM_PROMPT, EvalTask
from dovetail.eval.tools import Workspace, build_tool_specs
from dovetail.net.http_client import Endpoint
from dovetail_model import Sampling

MODEL = "smollm2-agent"
HEADERS = {"x-dovetail-debug": "prefix", "x-dovetail-dispatch": "tools"}
_ROOT = Path(__file__).parents[4]
_TOOL = _ROOT / "tools" / "agent_model" / "write_folder.py"
_AREA = '''\
def area(width, height):
    """Return width times height."""
    return width + height
'''


def _differs(workspace: Workspace, path: str, expected: str) -> str | None:
    if path not in workspace.list_files():
        return f"{path} does not exist"
    return None if workspace.read(path).strip() == expected.strip() else f"{path} is wrong"


CREATE = EvalTask(
    "create",
    "write a file",
    "Write the file notes/plan.txt with exactly this text:\n\nbuy 12 apples\n",
    lambda workspace: _differs(workspace, "notes/plan.txt", "buy 12 apples"),
)
JOIN_WORDS = EvalTask(
    "join_words",
    "read two files in one turn",
    "Join the words of words/first.txt and words/second.txt with hyphens and write them to "
    "joined.txt.",
    lambda workspace: _differs(workspace, "joined.txt", "garden-river"),
    {"words/first.txt": "garden\n", "words/second.txt": "river\n"},
)
FIX_BUG = EvalTask(
    "fix_bug",
    "fix a function",
    "The test test_area.py fails. Fix area.py.",
    lambda workspace: _differs(workspace, "area.py", _AREA.replace("width + h", "width * h")),
    {"area.py": _AREA, "test_area.py": "from area import area\n\nassert area(3, 4) == 12\n"},
)


def run_tasks(url: str, *tasks: EvalTask, max_requests: int = 6) -> Sequence[TaskRun]:
    """Run tasks on a server that has the model, over the Messages API."""

    async def run() -> list[TaskRun]:
        client = ApiClient(Endpoint.parse(url), APIS["messages"], "dovetail", HEADERS)
        sampling = Sampling(temperature=0.0, max_tokens=200)
        system = f"Run 00000001.\n{SYSTEM_PROMPT}"
        agent = TaskAgent(client, MODEL, system, sampling, max_requests)
        return [await agent.run(task, f"s-{task.id}") for task in tasks]

    return asyncio.run(run())


def request_calls(server: Running, model: str = MODEL) -> list[tuple[str, object]]:
    """Send the task `CREATE` with one tool, which makes the prompt short, and return the calls."""
    [tool] = [spec for spec in build_tool_specs() if spec.name == "write_file"]
    message = server.anthropic().messages.create(
        model=model,
        max_tokens=100,
        messages=[{"role": "user", "content": CREATE.prompt}],
        tools=[
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": dict(tool.parameters),
            }
        ],
    )
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


EXPECTED_CALLS = [("write_file", {"path": "notes/plan.txt", "content": "buy 12 apples\n"})]


def write_agent_folder(python: str, target: Path) -> None:
    """Write the weights and the adapter as folders, with an interpreter that has numpy."""
    if not WEIGHTS.is_file():
        pytest.skip("no weights: run tools/fetch_tokenizers.py smollm2")
    command = [python, str(_TOOL), "--model", str(WEIGHTS), "--out", str(target)]
    sources = {"PYTHONPATH": str(_ROOT / "packages" / "tokenizers" / "src")}
    subprocess.run(command, env={**os.environ, **sources}, check=True, timeout=300)
