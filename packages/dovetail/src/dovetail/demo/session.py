"""Replay a scripted agent session through the whole pipeline and show its events."""

import json
import secrets
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, load_script
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.files import TemplateSource
from dovetail.models.loader import Model, ModelParsers, ProbedTemplate
from dovetail.models.template_probe import probe_template
from dovetail.pipeline.execution import RequestObserver, run_request
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.sinks import CallbackSink
from dovetail.prompt.template import ChatTemplate
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    Message,
    ReasoningBlock,
    ReasoningDelta,
    Sampling,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
)
from dovetail_protocols import MESSAGES
from dovetail_tokenizers import ByteTokenizer


class DemoDisplay:
    """Show events as they are emitted."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._panel = Panel("")
        self._body = Text()

    def show(self, event: Event) -> None:
        match event:
            case ReasoningDelta(text=text):
                self._append("thinking", "dim", text)
            case TextDelta(text=text):
                self._append("text", "default", text)
            case CallOpen(name=name):
                self.close()
                self._append(f"call {name}", "cyan", "")
            case CallArgs(text=text):
                self._append("", "cyan", text)
            case CallClose():
                self.close("[bold yellow]⚡ dispatched[/] [dim]- runs while the model continues[/]")
            case SpanEnd():
                self.close()
            case Diagnostic(code=code):
                self._console.print(f"diagnostic: {code}", style="red")
            case _:
                pass

    def close(self, mark: str = "") -> None:
        """Finish the block on the screen, with an optional line below it."""
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        self._body.rstrip()
        self._console.print(self._panel)
        if mark:
            self._console.print(mark)

    def _append(self, title: str, style: str, text: str) -> None:
        if self._live is None:
            self._body = Text(style=style)
            self._panel = Panel(self._body, title=title, title_align="left", border_style=style)
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._body.append(text)
        self._live.update(self._panel, refresh=True)


CONTROL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>tool
{{ message.content }}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build_demo_model() -> Model:
    """Build a model whose template preserves reasoning, with tool calls as in Qwen3-Coder."""
    tokenizer = ByteTokenizer(CONTROL_TOKENS)
    template = ChatTemplate(CHAT_TEMPLATE)
    probed = ProbedTemplate(template, probe_template(template))
    return Model(
        name="demo",
        path=Path("demo"),
        tokenizer=tokenizer,
        template_source=TemplateSource({"default": CHAT_TEMPLATE}, {}, "demo"),
        chat_template=probed,
        tool_chat_template=probed,
        parsers=ModelParsers("qwen3_coder", "qwen3", "demo"),
        switches={},
        stop_ids=frozenset({tokenizer.controls["<|im_end|>"]}),
        stop_strings=("<|im_end|>",),
        context_length=32768,
        sampling=Sampling(),
    )


TURNS = 3
TOKENS_PER_SECOND = 320.0  # a token is a byte: the demo takes about ten seconds
TOOL_RESULTS = {
    "read_file": "1  def total(self):\n2      return max(prices)",
    "write_file": "written",
    "edit_file": "edited",
}
TOOL_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


async def run_demo(console: Console, *, fast: bool = False) -> bool:
    """Run the session. Returns True if each prompt contains the previous turn token for token."""
    model = _build_token_model(0.0 if fast else TOKENS_PER_SECOND)
    await model.engine.start()
    history: list[dict[str, object]] = [{"role": "user", "content": "Fix the empty basket."}]
    previous_ids: list[int] = []
    exact = True
    for number in range(TURNS):
        console.rule(f"request {number + 1}", style="dim")
        prepared, message = await _run_turn(model, history, DemoDisplay(console))
        ids = prepared.prompt.ids.tolist()
        exact = exact and ids[: len(previous_ids)] == previous_ids
        _print_turn_summary(
            console, prepared, message, ids[: len(previous_ids)] == previous_ids, len(previous_ids)
        )
        previous_ids = ids + model.model.tokenizer.encode(message.raw)
        history += _to_history(message)
    await model.engine.stop()
    verdict = "yes" if exact else "NO"
    console.print(f"\nEvery turn is in the next prompt, token for token: [bold]{verdict}[/]")
    return exact


def _build_token_model(rate: float) -> TokenModel:
    model = build_demo_model()
    with as_file(files("dovetail.demo")) as folder:
        script = load_script(folder / "session.yaml")
    engine = ScriptedEngine(model.tokenizer, script, options=ScriptedOptions(decode_rate=rate))
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([secrets.token_bytes(32)]))
    return TokenModel(("demo",), model, preparer, ReplicaPool([engine]))


async def _run_turn(
    model: TokenModel, history: list[dict[str, object]], display: DemoDisplay
) -> tuple[PreparedRequest, Message]:
    """Send one request as a client of the Messages API does, and stream its response."""
    tools = [{"name": name, "input_schema": TOOL_SCHEMA} for name in TOOL_RESULTS]
    body = {"model": "demo", "max_tokens": 4096, "messages": history, "tools": tools}
    headers = {"x-claude-code-session-id": "demo"}
    request = MESSAGES.decode(json.dumps(body).encode(), headers)
    prepared: list[PreparedRequest] = []
    sink = CallbackSink(display.show)
    observer = RequestObserver(on_prepared=prepared.append)
    await run_request(model, request, lambda: f"toolu_{secrets.token_hex(12)}", sink, observer)
    display.close()
    return prepared[0], sink.message()


def _print_turn_summary(
    console: Console, prepared: PreparedRequest, message: Message, exact: bool, previous: int
) -> None:
    prompt, usage = prepared.prompt, message.usage
    console.print(
        f"[dim]{usage.input_tokens} prompt tokens, {usage.cached_tokens} of them cached by the "
        f"engine, {usage.output_tokens} output tokens[/]"
    )
    if previous:
        verdict = "[green]exact[/]" if exact else "[red]not exact[/]"
        console.print(
            f"[dim]previous prompt and turn, {previous} tokens:[/] {verdict} ({prompt.origin})"
        )


def _to_history(message: Message) -> list[dict[str, object]]:
    """Return the turns that a client sends back: the blocks in order, and the tool results."""
    content: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for block in message.blocks:
        match block:
            case ReasoningBlock(text=text, seal=seal):
                content.append({"type": "thinking", "thinking": text, "signature": seal or ""})
            case TextBlock(text=text):
                content.append({"type": "text", "text": text})
            case ToolCallBlock(id=id, name=name, arguments=arguments):
                input = json.loads(arguments)
                content.append({"type": "tool_use", "id": id, "name": name, "input": input})
                results.append(
                    {"type": "tool_result", "tool_use_id": id, "content": TOOL_RESULTS[name]}
                )
    turns: list[dict[str, object]] = [{"role": "assistant", "content": content}]
    return [*turns, {"role": "user", "content": results}] if results else turns
