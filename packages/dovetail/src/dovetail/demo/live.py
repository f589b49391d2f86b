"""Let the embedded model fix a function with tools, on a real server.

The system text, the tools and the kind of the task are those that its adapter was trained for.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.syntax import Syntax

from dovetail.demo.client import (
    DemoResponse,
    Json,
    print_ui_address,
    print_verdict,
    send,
    serve_demo,
)
from dovetail.demo.display import DemoDisplay
from dovetail.eval.tasks import SYSTEM_PROMPT
from dovetail.eval.tools import ToolError, Workspace, build_tool_specs, check_call
from dovetail.pipeline.registry import ModelRegistry

MODEL = "smollm2-agent"
CALL_NOTE = "[bold yellow]⚡ complete[/] [dim]- an agent can start it while the model continues[/]"
MAX_REQUESTS = 6
MAX_OUTPUT_TOKENS = 200
TASK = "The test test_area.py fails. Fix area.py."
FILES = {
    "area.py": (
        "def area(width, height):\n"
        '    """Return width times height."""\n'
        "    return width + height\n"
    ),
    "test_area.py": "from area import area\n\nassert area(3, 4) == 12\n",
}


async def run_live_demo(
    console: Console,
    registry: ModelRegistry,
    *,
    wait: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Run the session. Returns True if the model solved the task with exact turns.

    `wait`: awaited at the end, before the server and its page stop.
    """
    with TemporaryDirectory(prefix="dovetail-demo-") as scratch:
        workspace = Workspace(Path(scratch))
        for path, content in FILES.items():
            workspace.write(path, content)
        async with serve_demo(registry) as port:
            print_ui_address(console, port)
            exact = await _run_session(console, port, workspace)
            solved = _print_result(console, workspace)
            print_verdict(console, exact)
            if wait is not None:
                await wait()
    return solved and exact


async def _run_session(console: Console, port: int, workspace: Workspace) -> bool:
    """Run the task until the model makes no more calls. Returns True if all turns are exact."""
    console.print(f"[bold]Task:[/] {TASK}")
    history: list[Json] = [{"role": "user", "content": f"Task fix_bug.\n\n{TASK}"}]
    exact = True
    for number in range(MAX_REQUESTS):
        console.rule(f"request {number + 1}", style="dim")
        if number == 0:
            console.print("[dim]The model reads the task and its tools, which takes seconds.[/]")
        response = DemoResponse(DemoDisplay(console, CALL_NOTE))
        await send(port, _request_body(history), response)
        is_exact = "x-dovetail-prefix-reason" not in response.headers
        _print_turn_summary(console, response, is_exact if number else None)
        exact = exact and (is_exact or number == 0)
        turns = response.next_messages(lambda call: _run_tool(console, workspace, call))
        history += turns
        if len(turns) == 1:  # no calls
            break
    return exact


def _request_body(history: list[Json]) -> Json:
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        for tool in build_tool_specs()
    ]
    return {
        "model": MODEL,
        "max_tokens": MAX_OUTPUT_TOKENS,
        "system": f"Run 00000001.\n{SYSTEM_PROMPT}",
        "messages": history,
        "tools": tools,
    }


def _print_turn_summary(console: Console, response: DemoResponse, is_exact: bool | None) -> None:
    """Print the counts of a turn. `is_exact` is None for the first one."""
    cached = response.usage.get("cache_read_input_tokens", 0)
    console.print(
        f"[dim]{response.headers['x-dovetail-prefix-total']} prompt tokens, {cached} of them "
        f"cached by the engine, {response.usage['output_tokens']} output tokens[/]"
    )
    if is_exact is not None:
        verdict = "[green]exact[/]" if is_exact else "[red]not exact[/]"
        console.print(f"[dim]previous prompt and turn:[/] {verdict}")


def _run_tool(console: Console, workspace: Workspace, call: Json) -> str:
    checked = check_call(call["name"], json.dumps(call["input"]))
    result = checked.problem
    if checked.tool is not None:
        try:
            result = checked.tool.run(workspace)
        except ToolError as error:
            result = str(error)
    console.print(f"result of {call['name']}:", style="dim", markup=False)
    console.print(result.rstrip(), style="green", markup=False)
    return result


def _print_result(console: Console, workspace: Workspace) -> bool:
    """Print the file. Returns True if it is correct. Code of the model is not run."""
    fixed = workspace.read("area.py")
    console.print("\narea.py is now:")
    console.print(Syntax(fixed, "python", background_color="default"))
    solved = fixed == FILES["area.py"].replace("width + height", "width * height")
    console.print(f"The function is correct: [bold]{'yes' if solved else 'NO'}[/]")
    return solved
