"""References to tools in a history: where the client makes a tool available, or withdraws it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from dovetail.prompt.tool_notation import ToolNotation
from dovetail_model import (
    Block,
    TextBlock,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
)

ToolKey = tuple[str | None, str]
_B = TypeVar("_B", bound=Block)


@dataclass(frozen=True)
class LoadedTools:
    """What the turns of a history state about tools.

    `turns`: the turns, with definitions in place of references.
    `tools`: the tools that are available because of a reference.
    `removed`: the names, as the model sees them, of tools that were withdrawn.
    """

    turns: tuple[Turn, ...]
    tools: dict[ToolKey, ToolSpec] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def is_changed(self) -> bool:
        """Whether the turns change the available tools at all."""
        return bool(self.tools or self.removed)


class ReferenceReader:
    """Reads the references of consecutive turns.

    `recorded` are the definitions that the model has read already: they win, so that a prompt does
    not change if the client defines a tool differently later.
    """

    def __init__(
        self, notation: ToolNotation, declared: Iterable[ToolSpec], recorded: Iterable[ToolSpec]
    ) -> None:
        self._notation = notation
        self._declared = {tool.key: tool for tool in declared}
        self._recorded = {tool.key: tool for tool in recorded}
        self._loaded: dict[ToolKey, ToolSpec] = {}
        self._removed: set[str] = set()
        # A definition is written once: a small request could otherwise give an endless prompt.
        self._shown: dict[int, ToolSpec] = {}
        self._notes: list[str] = []

    def read(self, turn: Turn) -> Turn:
        """Return a turn with definitions in place of references."""
        return Turn(turn.role, tuple(map(self._read_block, turn.blocks)))

    def result(self, turns: tuple[Turn, ...]) -> LoadedTools:
        """Return what was read. `turns` are the turns with definitions."""
        notes = tuple(dict.fromkeys(self._notes))
        return LoadedTools(turns, self._loaded, frozenset(self._removed), notes)

    def _read_block(self, block: Block) -> Block:
        if isinstance(block, ToolResultBlock):
            inner = tuple(map(self._read_content, block.blocks))
            pairs = zip(block.blocks, inner, strict=True)
            # A context edit that clears the result must not remove the definitions.
            loaded = [
                new.text for old, new in pairs if new is not old and isinstance(new, TextBlock)
            ]
            appended = "\n\n".join(filter(None, (*loaded, block.appended)))
            return msgspec.structs.replace(block, blocks=inner, appended=appended)
        return self._read_content(block)

    def _read_content(self, block: _B) -> _B | TextBlock:
        match block:
            case ToolReferenceBlock():
                return TextBlock(self._load(block))
            case ToolRemovalBlock():
                self._remove(block)
        return block

    def _load(self, reference: ToolReferenceBlock) -> str:
        """Make a tool available, and return its definition."""
        key = (reference.namespace, reference.name)
        tool = reference.definition or self._declared.get(key)
        shown = self._recorded.get(key) or tool
        if tool is None:
            self._notes.append("tool_undefined")
        else:
            is_in_head = reference.definition is None and not tool.deferred
            was_removed = tool.model_name in self._removed
            self._removed.discard(tool.model_name)
            self._loaded[key] = tool
            if is_in_head and not was_removed:
                return f"Tool available: {tool.model_name}"
        if shown is None or id(shown) in self._shown:
            return f"Tool available: {reference.name}"
        self._shown[id(shown)] = shown
        text, is_native = self._notation.write(shown)
        if not is_native:
            self._notes.append("tool_notation_json")
        return text

    def _remove(self, removal: ToolRemovalBlock) -> None:
        key = (removal.namespace, removal.name)
        tool = self._loaded.pop(key, None) or self._declared.get(key)
        self._removed.add(tool.model_name if tool is not None else removal.name)
