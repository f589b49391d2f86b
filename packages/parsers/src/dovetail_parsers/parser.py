"""The public parser, and `parse`, which folds its events into a message."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from dovetail_model import Event, Message, ToolSpec, fold
from dovetail_parsers.machine import StateMachine
from dovetail_parsers.plugin import find_plugin
from dovetail_parsers.registry import load_grammar

Tool = ToolSpec | Mapping[str, Any]


class FeedFunction(Protocol):
    """Returns the events that a piece of output completes."""

    def __call__(self, text: str, special: bool | None = None) -> list[Event]: ...


class StreamParser(Protocol):
    """The interface of a parser of one output, including third-party parsers."""

    def feed(self, text: str, special: bool | None = None) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class Parser:
    """Parses one model output, fed in pieces of any size, into one ordered stream of events.

    `feed(text, special=None)` returns the events that a piece of output completes. `special`
    states whether the piece came from special tokens, if the caller knows: in families whose
    markers are special tokens, a marker spelled out in plain text is prose.

    `tools` provide the types of values in untyped formats (OpenAI-style tools or `ToolSpec`s).
    `in_reasoning` states whether the prompt ended inside an open reasoning span; None means the
    default of the reasoning parser. `special` are the markers that are special tokens in this
    vocabulary, if the caller knows: others may be spelled out.
    """

    __slots__ = ("_stream", "feed")

    def __init__(
        self,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
        *,
        tools: Iterable[Tool] = (),
        in_reasoning: bool | None = None,
        special: frozenset[str] | None = None,
    ) -> None:
        specs = tuple(map(to_tool_spec, tools))
        factory = find_plugin(tool_parser) or find_plugin(reasoning_parser)
        self._stream: StreamParser
        if factory is not None:
            self._stream = factory(tools=specs, in_reasoning=in_reasoning)
        else:
            named = {spec.model_name: spec for spec in specs}
            table = load_grammar(tool_parser, reasoning_parser)
            self._stream = StateMachine(table, named, in_reasoning, special)
        self.feed: FeedFunction = (
            self._stream.feed
        )  # called for every token: bound once, without a wrapper

    @property
    def thinking(self) -> bool:
        """Whether the next text belongs to a reasoning span."""
        return bool(getattr(self._stream, "thinking", False))

    def finish(self) -> list[Event]:
        """Return the events that the end of the output completes."""
        return self._stream.finish()


def parse(
    output: str | Iterable[str],
    *,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
    tools: Iterable[Tool] = (),
    in_reasoning: bool | None = None,
) -> Message:
    """Parse a complete output into a message: feed, finish and fold."""
    parser = Parser(tool_parser, reasoning_parser, tools=tools, in_reasoning=in_reasoning)
    events: list[Event] = []
    for piece in (output,) if isinstance(output, str) else output:
        events += parser.feed(piece)
    return fold(events + parser.finish())


def markers(tool_parser: str | None, reasoning_parser: str | None) -> frozenset[str]:
    """Return every marker of this pair of parsers, as spelled in the output."""
    if find_plugin(tool_parser) or find_plugin(reasoning_parser):
        return frozenset()
    states = load_grammar(tool_parser, reasoning_parser).states.values()
    return frozenset(marker for state in states for marker in state.edges)


def opens_reasoning(
    prompt_end: str, tool_parser: str | None = None, reasoning_parser: str | None = None
) -> bool:
    """Return whether output after this end of a prompt starts inside an open reasoning span."""
    if find_plugin(tool_parser) or find_plugin(reasoning_parser):
        return False
    machine = StateMachine(load_grammar(tool_parser, reasoning_parser), {}, in_reasoning=False)
    machine.feed(prompt_end)
    return machine.thinking


def to_tool_spec(tool: Tool) -> ToolSpec:
    """Convert a tool from any of the forms that APIs use."""
    if isinstance(tool, ToolSpec):
        return tool
    inner = tool.get("function") or tool.get("custom")
    body: Mapping[str, Any] = inner if isinstance(inner, Mapping) else tool
    schema = body.get("parameters") or body.get("input_schema")
    return ToolSpec(
        name=str(body.get("name", "")),
        description=str(body.get("description") or ""),
        parameters=schema if isinstance(schema, Mapping) else {},
        custom=tool.get("type") == "custom",
        strict=bool(body.get("strict")),
    )
