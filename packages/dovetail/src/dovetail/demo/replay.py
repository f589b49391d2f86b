"""Replay a scripted agent session on a real server, as a client of its Messages API."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from dovetail.demo.client import (
    DemoResponse,
    Json,
    print_ui_address,
    print_verdict,
    send,
    serve_demo,
)
from dovetail.demo.display import DemoDisplay
from dovetail.demo.session import build_demo_entry
from dovetail.engines.scripted.engine import RecordedGeneration
from dovetail.pipeline.registry import ModelRegistry

TURNS = 3
TOKENS_PER_SECOND = 320.0  # a token is a byte: the demo takes about ten seconds
TOOL_RESULTS = {
    "read_file": "1  def total(self):\n2      return max(prices)",
    "write_file": "written",
    "edit_file": "edited",
}
TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


async def run_demo(
    console: Console,
    *,
    fast: bool = False,
    wait: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Run the session. Returns True if each prompt contains the previous turn token for token.

    `wait`: awaited at the end, before the server and its page stop.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder) / "generations.jsonl"
        entry = build_demo_entry(0.0 if fast else TOKENS_PER_SECOND, log)
        async with serve_demo(ModelRegistry([entry])) as port:
            print_ui_address(console, port)
            await _run_session(console, port, log)
            exact = all(map(_is_exact, *zip(*pairwise(_read_log(log)), strict=True)))
            print_verdict(console, exact)
            if wait is not None:
                await wait()
    return exact


async def _run_session(console: Console, port: int, log: Path) -> None:
    history: list[Json] = [{"role": "user", "content": "Fix the empty basket."}]
    for number in range(TURNS):
        console.rule(f"request {number + 1}", style="dim")
        response = DemoResponse(DemoDisplay(console))
        await send(port, _request_body(history), response)
        _print_turn_summary(console, response.usage, _read_log(log))
        history += response.next_messages(lambda call: TOOL_RESULTS[call["name"]])


def _request_body(history: list[Json]) -> Json:
    tools = [{"name": name, "input_schema": TOOL_SCHEMA} for name in TOOL_RESULTS]
    return {"model": "demo", "max_tokens": 4096, "messages": history, "tools": tools}


def _read_log(log: Path) -> list[RecordedGeneration]:
    """Return the prompts and outputs so far, as the engine had them."""
    lines = log.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=RecordedGeneration) for line in lines]


def _is_exact(before: RecordedGeneration, after: RecordedGeneration) -> bool:
    """Return whether a prompt continues with exactly the tokens of the turn before it."""
    previous = before.prompt + before.output
    return after.prompt[: len(previous)] == previous


def _print_turn_summary(console: Console, usage: Json, log: list[RecordedGeneration]) -> None:
    cached = usage.get("cache_read_input_tokens", 0)
    console.print(
        f"[dim]{len(log[-1].prompt)} prompt tokens, {cached} of them cached by the engine, "
        f"{usage['output_tokens']} output tokens[/]"
    )
    if len(log) > 1:
        previous = len(log[-2].prompt) + len(log[-2].output)
        verdict = "[green]exact[/]" if _is_exact(log[-2], log[-1]) else "[red]not exact[/]"
        console.print(f"[dim]previous prompt and turn, {previous} tokens:[/] {verdict}")
