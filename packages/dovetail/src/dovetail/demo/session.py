"""The demo itself: an agent, the scripted engine and the whole way between them."""

import json
import secrets
from importlib.resources import as_file, files

from rich.console import Console

from dovetail.demo.model import build_demo_model
from dovetail.demo.screen import DemoDisplay
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, load_script
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.execution import RequestObserver, run_request
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.sinks import CallbackSink
from dovetail.routing.pool import ReplicaPool
from dovetail_model import Message, ReasoningBlock, TextBlock, ToolCallBlock
from dovetail_protocols import MESSAGES

TURNS = 3
TOKENS_PER_SECOND = 320.0  # of bytes: some ten seconds in all
TOOL_RESULTS = {
    "read_file": "1  def total(self):\n2      return max(prices)",
    "write_file": "written",
    "edit_file": "edited",
}
TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


async def run_demo(console: Console, *, fast: bool = False) -> bool:
    """Plays the session. True if every turn stood in the next prompt token for token."""
    served = _build_token_model(0.0 if fast else TOKENS_PER_SECOND)
    await served.engine.start()
    history: list[dict[str, object]] = [{"role": "user", "content": "Fix the empty basket."}]
    spoken: list[int] = []
    exact = True
    for number in range(TURNS):
        console.rule(f"request {number + 1}", style="dim")
        prepared, message = await _run_turn(served, history, DemoDisplay(console))
        ids = prepared.prompt.ids.tolist()
        exact = exact and ids[: len(spoken)] == spoken
        _print_turn_summary(console, prepared, message, ids[: len(spoken)] == spoken, len(spoken))
        spoken = ids + served.model.tokenizer.encode(message.raw)
        history += _to_history(message)
    await served.engine.stop()
    verdict = "yes" if exact else "NO"
    console.print(f"\nEvery turn, token for token, in the next prompt: [bold]{verdict}[/]")
    return exact


def _build_token_model(rate: float) -> TokenModel:
    model = build_demo_model()
    with as_file(files("dovetail.demo")) as folder:
        script = load_script(folder / "session.yaml")
    engine = ScriptedEngine(model.tokenizer, script, options=ScriptedOptions(decode_rate=rate))
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([secrets.token_bytes(32)]))
    return TokenModel(("demo",), model, preparer, ReplicaPool([engine]))


async def _run_turn(
    served: TokenModel, history: list[dict[str, object]], screen: DemoDisplay
) -> tuple[PreparedRequest, Message]:
    """One request as a client of the Messages API sends it, and its answer as it comes."""
    tools = [{"name": name, "input_schema": TOOL_SCHEMA} for name in TOOL_RESULTS]
    body = {"model": "demo", "max_tokens": 4096, "messages": history, "tools": tools}
    headers = {"x-claude-code-session-id": "demo"}
    request = MESSAGES.decode(json.dumps(body).encode(), headers)
    seen: list[PreparedRequest] = []
    viewer = CallbackSink(screen.show)
    watch = RequestObserver(on_prepared=seen.append)
    await run_request(served, request, lambda: f"toolu_{secrets.token_hex(12)}", viewer, watch)
    screen.close()
    return seen[0], viewer.message()


def _print_turn_summary(
    console: Console, prepared: PreparedRequest, message: Message, exact: bool, before: int
) -> None:
    prompt, used = prepared.prompt, message.usage
    console.print(
        f"[dim]prompt of {used.input_tokens} tokens, {used.cached_tokens} in the engine's cache, "
        f"{used.output_tokens} generated[/]"
    )
    if before:
        kept = "[green]exact[/]" if exact else "[red]not exact[/]"
        console.print(
            f"[dim]the last turn and its prompt, {before} tokens:[/] {kept} ({prompt.origin})"
        )


def _to_history(message: Message) -> list[dict[str, object]]:
    """What a client sends back: the blocks in their order, and the results of the calls."""
    said: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for block in message.blocks:
        match block:
            case ReasoningBlock(text=text, seal=seal):
                said.append({"type": "thinking", "thinking": text, "signature": seal or ""})
            case TextBlock(text=text):
                said.append({"type": "text", "text": text})
            case ToolCallBlock(id=id, name=name, arguments=arguments):
                given = json.loads(arguments)
                said.append({"type": "tool_use", "id": id, "name": name, "input": given})
                results.append(
                    {"type": "tool_result", "tool_use_id": id, "content": TOOL_RESULTS[name]}
                )
    turns: list[dict[str, object]] = [{"role": "assistant", "content": said}]
    return [*turns, {"role": "user", "content": results}] if results else turns
