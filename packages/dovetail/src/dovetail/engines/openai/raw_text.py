"""Parse and write messages for a server without parsers.

Assistant turns are sent to the server as text in the model's own syntax. This preserves the order
of interleaved reasoning and tool calls, which a chat message cannot express.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dovetail.engines.openai.options import OpenAIOptions
from dovetail.engines.openai.tool_calls import ToolNameRestorer
from dovetail.engines.registry import EngineSetupError
from dovetail_model import (
    CallArgs,
    CallClose,
    CallOpen,
    Event,
    Finish,
    OutputBlock,
    ReasoningBlock,
    ReasoningDelta,
    Request,
    SpanEnd,
    TextBlock,
    TextDelta,
    ToolCallBlock,
    Turn,
)
from dovetail_parsers import Parser, resolve_family, write_message
from dovetail_protocols import ToolNames


class ModelSyntax:
    """A model's syntax for reasoning and tool calls, by parser names or by the model's id."""

    __slots__ = ("_family", "_reasoning_parser", "_tool_parser")

    def __init__(self, options: OpenAIOptions, model: str) -> None:
        tool, reasoning = options.tool_parser, options.reasoning_parser
        family = resolve_family(tool or reasoning or model)
        if family is None:
            raise EngineSetupError(
                f"the syntax of tool calls and reasoning is not known for {model!r}: "
                "set --tool-call-parser and --reasoning-parser"
            )
        if tool is None and reasoning is None:
            tool, reasoning = family.tool_parser, family.reasoning_parser
        elif tool is not None and family.unified is None:
            family = replace(family, pairs_with=reasoning)
        self._tool_parser, self._reasoning_parser = tool, reasoning
        self._family = family
        self.create_parser(Request(model))

    def create_parser(self, request: Request, in_reasoning: bool | None = None) -> Parser:
        """Create a parser for one response. Raise if tool and reasoning parser are incompatible."""
        try:
            return Parser(
                self._tool_parser,
                self._reasoning_parser,
                tools=request.tools,
                in_reasoning=in_reasoning,
            )
        except ValueError as error:
            raise EngineSetupError(str(error)) from error

    def write(self, blocks: Sequence[OutputBlock]) -> str:
        """Write the blocks in the model's syntax. Raise `ValueError` if it cannot express them."""
        return write_message(blocks, self._family)


class AssistantTurnWriter:
    """Writes the assistant turns of one request as text.

    `not_carried`: codes of the content that could not be written.
    """

    __slots__ = ("_names", "_syntax", "not_carried")

    def __init__(self, syntax: ModelSyntax, names: ToolNames) -> None:
        self._syntax = syntax
        self._names = names
        self.not_carried: dict[str, None] = {}

    def __call__(self, turn: Turn) -> str:
        blocks = [
            converted for block in turn.blocks if (converted := self._block(block)) is not None
        ]
        try:
            return self._syntax.write(blocks)
        except ValueError:
            self.not_carried["reasoning_not_carried"] = None
        without_reasoning = [block for block in blocks if not isinstance(block, ReasoningBlock)]
        try:
            return self._syntax.write(without_reasoning)
        except ValueError:
            self.not_carried["calls_not_carried"] = None
        return "".join(block.text for block in without_reasoning if isinstance(block, TextBlock))

    def _block(self, block: object) -> OutputBlock | None:
        match block:
            case TextBlock():
                return block
            case ReasoningBlock(text=text) if text:
                return block
            case ToolCallBlock():
                return msgspec.structs.replace(block, name=self._names.upstream_name(block))
            case _:
                return None


class RawTextReader:
    """Parses the text of a response.

    Events that the server has already parsed are passed through.
    """

    __slots__ = (
        "_call_indexes",
        "_calls",
        "_closed",
        "_parser",
        "_parser_is_new",
        "_request",
        "_restorer",
        "_syntax",
    )

    def __init__(self, syntax: ModelSyntax, request: Request) -> None:
        self._syntax = syntax
        self._request = request
        self._parser = syntax.create_parser(request)
        self._restorer = ToolNameRestorer(ToolNames(request.tools))
        self._parser_is_new = False  # whether finishing it would emit no events
        self._call_indexes: dict[tuple[str, int], int] = {}
        self._calls = self._closed = 0

    def restore(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            match event:
                case TextDelta(text=text):
                    self._parser_is_new = False
                    out += self._renumber("text", self._parser.feed(text))
                case SpanEnd(kind="text"):
                    pass  # the parser emits its own
                case CallOpen() | ReasoningDelta():
                    out += self._flush()
                    out += self._renumber("server", self._restorer.restore([event]))
                case CallArgs() | CallClose():
                    out += self._renumber("server", self._restorer.restore([event]))
                case Finish():
                    out += [*self._flush(), self._finish(event)]
                case _:
                    out.append(event)
        return out

    def _flush(self) -> list[Event]:
        """Return the parser's pending events.

        The next text goes to a new parser, outside of reasoning.
        """
        if self._parser_is_new:
            return []
        self._parser_is_new = True
        events = self._renumber("text", self._parser.finish())
        self._parser = self._syntax.create_parser(self._request, in_reasoning=False)
        self._call_indexes = {key: at for key, at in self._call_indexes.items() if key[0] != "text"}
        return events

    def _renumber(self, source: str, events: list[Event]) -> list[Event]:
        """Number the calls consecutively, no matter whether the server or our parser found them."""
        out: list[Event] = []
        for event in events:
            if isinstance(event, CallOpen):
                self._call_indexes[source, event.index] = self._calls
                self._calls += 1
            self._closed += isinstance(event, CallClose)
            if isinstance(event, CallOpen | CallArgs | CallClose):
                event = msgspec.structs.replace(
                    event, index=self._call_indexes[source, event.index]
                )
            out.append(event)
        return out

    def _finish(self, finish: Finish) -> Finish:
        """Correct the finish reason for calls that the server did not detect."""
        if finish.reason not in ("stop", "tool_calls") or not self._calls:
            return finish
        return Finish("tool_calls" if self._closed == self._calls else "length")
