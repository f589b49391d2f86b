"""Show the events of a response in the terminal, each block in a frame."""

from rich.console import Console
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
)

CALL_NOTE = "[bold yellow]⚡ dispatched[/] [dim]- runs while the model continues[/]"


class DemoDisplay:
    """Show events as they are emitted, and `call_note` below each complete call."""

    def __init__(self, console: Console, call_note: str = CALL_NOTE) -> None:
        self._console = console
        self._call_note = call_note
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
                self.close(self._call_note)
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
