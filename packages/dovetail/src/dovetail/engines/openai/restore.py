"""An upstream's calls as the client knows its tools: with namespaces, and free text as such."""

import json

import msgspec

from dovetail_model import CallArgs, CallClose, CallOpen, Diagnostic, Event
from dovetail_protocols import ToolNames


class Restorer:
    """Gives calls their own names. A custom tool's text is told when its string is whole."""

    __slots__ = ("_held", "_names")

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._held: dict[int, list[str]] = {}  # by the index of calls that were shown as functions

    def restore(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            match event:
                case CallOpen():
                    out += self._open(event)
                case CallArgs(index=index, text=text) if index in self._held:
                    self._held[index].append(text)
                case CallClose(index=index) if index in self._held:
                    out += [CallArgs(index, _free_text("".join(self._held.pop(index)))), event]
                case _:
                    out.append(event)
        return out

    def _open(self, call: CallOpen) -> list[Event]:
        spec = self._names.spec(call.name)
        if spec is None:
            return [call] if call.namespace else [call, Diagnostic("unknown_tool")]
        if spec.custom and not call.custom:
            self._held[call.index] = []
        return [
            msgspec.structs.replace(
                call, name=spec.name, namespace=spec.namespace, custom=spec.custom
            )
        ]


def _free_text(arguments: str) -> str:
    """The string in `{"input": "..."}`; arguments of another shape pass as they are."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
