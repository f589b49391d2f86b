"""A recorded turn, streamed through the parser piece by piece, with its events as they come.

The turn (turn.txt, in Qwen3-Coder's format) thinks, calls, thinks, calls and then speaks. Each call
may run at its mark, while the model is still writing.
"""

import argparse
import re
import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Diagnostic,
    Event,
    ReasoningDelta,
    SpanEnd,
    TextDelta,
    fold,
)
from dovetail_parsers import Parser

TURN = Path(__file__).with_name("turn.txt")
SECONDS = 9.0
PIECE = re.compile(r"\s*\w{1,6}|\s*[^\w\s]{1,2}|\s+")  # about the size of a token; splits markers
STRING, NUMBERS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": ["path"]},
        },
    }
    for name, properties in {
        "read_file": {"path": STRING, "lines": NUMBERS},
        "write_file": {"path": STRING, "content": STRING, "overwrite": {"type": "boolean"}},
    }.items()
]


class Screen:
    """One panel for each block, growing while the block streams."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._live: Live | None = None
        self._panel = Panel("")
        self._body = Text()

    def show(self, event: Event, token: int) -> None:
        match event:
            case ReasoningDelta(text=text):
                self._grow("thinking", "dim", text, token)
            case TextDelta(text=text):
                self._grow("text", "default", text, token)
            case CallOpen(name=name):
                self.close()
                self._grow(f"call {name}", "cyan", "", token)
            case CallArgs(text=text):
                self._grow("", "cyan", text, token)
            case CallClose():
                left = self._total - token
                self.close(
                    f"[bold yellow]⚡ complete at token {token} of {self._total}[/]"
                    f" [dim]- it can run now, {left} tokens before the turn ends[/]"
                )
            case SpanEnd():
                self.close()
            case Diagnostic(code=code):
                self._console.print(f"diagnostic: {code}", style="red")
            case _:
                pass

    def close(self, mark: str = "") -> None:
        """End the block that is on the screen, with a line below it if there is one to say."""
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        self._body.rstrip()
        self._console.print(self._panel)
        if mark:
            self._console.print(mark)

    def _grow(self, title: str, style: str, text: str, token: int) -> None:
        if self._live is None:
            self._body = Text(style=style)
            self._panel = Panel(self._body, title=title, title_align="left", border_style=style)
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._body.append(text)
        status = Text(f"  token {token} of {self._total}", style="dim")
        self._live.update(Group(self._panel, status), refresh=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description="Stream a recorded turn through the parser.")
    arguments.add_argument("--fast", action="store_true", help="no delays")
    fast: bool = arguments.parse_args().fast

    turn = TURN.read_text(encoding="utf-8")
    pieces = PIECE.findall(turn)
    console = Console(highlight=False)
    screen = Screen(console, total=len(pieces))
    parser = Parser(tool_parser="qwen3_coder", reasoning_parser="qwen3", tools=TOOLS)
    events: list[Event] = []

    for token, piece in enumerate(pieces, start=1):
        time.sleep(0 if fast else SECONDS / len(pieces))
        new = parser.feed(piece)
        if token == len(pieces):
            new += parser.finish()
        for event in new:
            screen.show(event, token)
        events += new
    screen.close()

    message = fold(events)
    order = " → ".join(block.type for block in message.blocks)
    console.print(f"\n[bold]{len(pieces)} tokens, {len(events)} events:[/] {order}")
    kept = "yes" if message.raw == turn else "NO"
    console.print(f"The events' raw text, joined, is what the model wrote: [bold]{kept}[/]")


if __name__ == "__main__":
    main()
