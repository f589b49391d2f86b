"""The tool call that is being parsed: its events, its tool and its parameters."""

from collections.abc import Mapping
from typing import Any

from dovetail_model import CallArgs, CallClose, CallOpen, Diagnostic, ToolSpec
from dovetail_parsers.arguments import schema as schemas
from dovetail_parsers.arguments.freeform import FreeformDecoder
from dovetail_parsers.arguments.json_validator import escape_json
from dovetail_parsers.arguments.value import RawValueDecoder
from dovetail_parsers.spans import SpanBuilder


class CallBuilder:
    """Converts what the machine and its decoders read into the events of successive calls."""

    __slots__ = (
        "_family",
        "_keys",
        "_reported",
        "_schema",
        "_spans",
        "_tools",
        "_value",
        "awaits_value",
        "freeform",
        "index",
        "is_open",
    )

    def __init__(self, spans: SpanBuilder, tools: Mapping[str, ToolSpec], family: str) -> None:
        self._spans = spans
        self._tools = tools
        self._family = family
        self._reported: set[str] = set()  # diagnostics are reported once per call
        self._schema: Mapping[str, Any] = {}
        self.freeform: FreeformDecoder | None = None
        self._keys = 0
        self._value = RawValueDecoder(schemas.ANY)
        self.index = -1
        self.is_open = False
        self.awaits_value = False

    def diagnose(self, code: str) -> None:
        if code not in self._reported:
            self._reported.add(code)
            self._spans.events.append(Diagnostic(code, self._family))

    def has_tool(self, name: str) -> bool:
        """Return whether a tool of this name was offered, or no tools were offered."""
        return not self._tools or name in self._tools

    def schema(self) -> Mapping[str, Any]:
        return self._schema

    def skip(self, raw: str) -> None:
        self._spans.raw.append(raw)

    def open_call(self, name: str, own_id: str | None) -> None:
        self._reported.clear()
        if self._spans.in_reasoning:
            self.diagnose("call_inside_reasoning")
        self._spans.end()
        spec = self._tools.get(name)
        custom = spec is not None and spec.custom
        self.index += 1
        self.is_open = True
        self.awaits_value = False
        self._keys = 0
        self.freeform = FreeformDecoder() if custom else None
        self._schema = spec.model_parameters if spec else {}
        self._spans.events.append(
            CallOpen(
                index=self.index,
                name=spec.name if spec else name,
                id=own_id,
                namespace=spec.namespace if spec else None,
                custom=custom,
                raw=self._spans.take_raw(),
            )
        )
        if spec is None and self._tools:
            self.diagnose("unknown_tool")

    def add_arguments(self, text: str, raw: str) -> None:
        spans = self._spans
        if self.freeform is not None:
            text = self.freeform.feed(text)
        if not text:
            if raw:
                spans.raw.append(raw)
            return
        if spans.raw:
            spans.raw.append(raw)
            raw = spans.take_raw()
        spans.events.append(CallArgs(self.index, text, raw))

    @property
    def is_custom(self) -> bool:
        """Whether the open call is of a custom tool, whose input is free text."""
        return self.freeform is not None

    def begin_free_text(self) -> None:
        """Start the free text of a custom tool that has no notation around it."""
        self.diagnose("raw_custom_input")
        if self.freeform is not None:
            self.freeform.pass_through()

    def close_call(self) -> None:
        if self.freeform is not None:
            rest, self.freeform = self.freeform.finish(), None
            self.add_arguments(rest, "")
        self.is_open = False
        self._spans.events.append(CallClose(self.index, self._spans.take_raw()))

    # Calls with parameters in tags

    def begin_value(self, key: str, allowed: frozenset[str] | None) -> None:
        """Start the value of a parameter. `allowed` restricts the types allowed by its schema."""
        lead = ", " if self._keys else "{"
        self._keys += 1
        self.awaits_value = True
        found = schemas.property_schema(self._schema, key, self._schema)
        types = schemas.allowed_types(found, self._schema)
        self._value = RawValueDecoder(types if allowed is None else (types & allowed or allowed))
        self.add_arguments(f'{lead}"{escape_json(key)}": ', "")

    def add_value(self, text: str) -> None:
        if text:
            self.add_arguments(self._value.feed(text), text)

    def continue_value(self, text: str) -> CallArgs | None:
        """Return the event of a string's continuation; None if it needs the slow path."""
        if self.freeform is None and self._value.is_string:
            return CallArgs(self.index, escape_json(text), text)
        return None

    def end_value(self) -> bool:
        """End a value at its closer. Return False if the text before it is not a valid value."""
        self.add_arguments(self._value.end(), "")
        self.awaits_value = False
        for code in self._value.diagnostics:
            self.diagnose(code)
        return not self._value.failed

    def close_tagged(self) -> None:
        self.add_arguments("}" if self._keys else "{}", "")
        self.close_call()
