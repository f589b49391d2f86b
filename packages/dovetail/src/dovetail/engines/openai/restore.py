"""An upstream's calls as the client knows its tools: with namespaces, and free text as such."""

import json

import msgspec

from dovetail_model import CallArgs, CallClose, CallOpen, Diagnostic, Event
from dovetail_protocols import ToolNames


class ToolNameRestorer:
    """Gives calls their own names. A custom tool's text is told when its string is whole."""

    __slots__ = ("_pending_arguments", "_names")

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._pending_arguments: dict[
            int, list[str]
        ] = {}  # by the index of calls that were shown as functions

    def restore(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            match event:
                case CallOpen():
                    out += self._open_call(event)
                case CallArgs(index=index, text=text) if index in self._pending_arguments:
                    self._pending_arguments[index].append(text)
                case CallClose(index=index) if index in self._pending_arguments:
                    out += [
                        CallArgs(
                            index, _extract_input("".join(self._pending_arguments.pop(index)))
                        ),
                        event,
                    ]
                case _:
                    out.append(event)
        return out

    def _open_call(self, call: CallOpen) -> list[Event]:
        spec = self._names.spec(call.name)
        if spec is None:
            return [call] if call.namespace else [call, Diagnostic("unknown_tool")]
        if spec.custom and not call.custom:
            self._pending_arguments[call.index] = []
        return [
            msgspec.structs.replace(
                call, name=spec.name, namespace=spec.namespace, custom=spec.custom
            )
        ]


def _extract_input(arguments: str) -> str:
    """The string in `{"input": "..."}`; arguments of another shape pass as they are."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
