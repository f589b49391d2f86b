"""Decide whether a client's copy of a turn is equivalent to the turn that was generated.

Clients rewrite the turns that they replay. A copy that differs only in form is equivalent. Any
other difference is an edit, and the client's copy is used: a wrong splice is worse than a missed
one. Only assistant turns are compared this way: what users and tools sent is compared exactly.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids, unpack_ids
from dovetail_model import (
    OutputBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolSpec,
    Turn,
)

# Block type -> span kind.
_SPAN_KINDS = {"text": "text", "reasoning": "reasoning", "tool_call": "call"}
#: LiteLLM sends this in place of empty text to Anthropic's API, which rejects empty text.
EMPTY_TEXT_PLACEHOLDER = "[System: Empty message content sanitised to satisfy protocol]"
_CD_PREFIX = re.compile(r"cd\s+(\"[^\"]*\"|'[^']*'|\S+)\s*&&\s*")


class FormDifference(StrEnum):
    """The differences in form between an assistant turn and its copy. This list is complete."""

    REASONING = "reasoning that is missing, trimmed or joined"
    TEXT_SPACE = "white space before and after the text"
    TEXT_BLOCKS = "text that is split or joined"
    PLACEHOLDER = "LiteLLM's placeholder for empty text"
    ORDER = "order of text, tool calls and reasoning"
    CALL_IDS = "ids of tool calls"
    JSON_SPELLING = "order of keys, white space and escapes in JSON"
    NUMBERS = "spelling of whole numbers"
    LARGE_NUMBERS = "digits that a 64-bit float cannot hold"
    DEFAULTS = "default values that were added"
    NULLS = "nulls that were removed"
    LINE_ENDS = "white space at the ends of lines in arguments"
    CD_PREFIX = "a `cd … &&` that was removed from a command"
    INCOMPLETE_CALL = "arguments of a tool call that was truncated"


def is_same_turn(entry: LedgerEntry, turn: Turn, tools: Sequence[ToolSpec] = ()) -> bool:
    """Return whether the client's copy of a turn is equivalent to the recorded entry."""
    return (
        all(isinstance(block, OutputBlock) for block in turn.blocks)
        and _is_same_text(entry, turn)
        and _is_same_calls(entry, turn, tools)
        and has_same_reasoning(entry.spans, turn)
    )


def truncate_to_copy(
    entry: LedgerEntry, turn: Turn, tools: Sequence[ToolSpec] = ()
) -> LedgerEntry | None:
    """Truncate the entry to the client's copy, if that consists of the first blocks of the turn.

    A client whose stream was interrupted sends back the complete blocks and requests the rest.
    Reasoning and calls end at a token boundary, but text may not, so an entry is never truncated
    after text.
    """
    spans = entry.spans[: len(turn.blocks)]
    if not spans or [span.kind for span in spans] != [_SPAN_KINDS.get(b.type) for b in turn.blocks]:
        return None
    if spans[-1].kind == "text" or not spans[-1].tokens or not spans[-1].complete:
        return None
    generated = pack_ids(unpack_ids(entry.generated)[: spans[-1].tokens])
    truncated = msgspec.structs.replace(entry, spans=spans, generated=generated, stop=None)
    return truncated if is_same_turn(truncated, turn, tools) else None


def may_begin(entry: LedgerEntry, turn: Turn) -> bool:
    """Return whether a client that received only the beginning of a turn may send this copy.

    Calls are compared by name only: clients repair partial arguments in different ways.
    """
    calls = [(span.name, span.namespace) for span in entry.spans if span.kind == "call"]
    shown_calls = [(b.name, b.namespace) for b in turn.blocks if isinstance(b, ToolCallBlock)]
    text, shown_text = "".join(_recorded_texts(entry)), normalize_text(_shown_texts(turn))
    return calls[: len(shown_calls)] == shown_calls and (
        text.lstrip().startswith(shown_text) or normalize_text([text]).startswith(shown_text)
    )


def has_same_reasoning(spans: Sequence[EntrySpan], turn: Turn) -> bool:
    """Return whether all reasoning in the client's copy was recorded, in the same order.

    Clients drop reasoning, so missing reasoning is no edit; reasoning with other text is one.
    """
    recorded_texts = iter([span.shown.strip() for span in spans if span.kind == "reasoning"])
    shown = [b.text.strip() for b in turn.blocks if isinstance(b, ReasoningBlock)]
    shown = [text for text in shown if text]
    if not shown:
        return True
    remembered = list(recorded_texts)
    if "".join(shown) == "".join(remembered) or shown == ["\n".join(remembered)]:
        return True
    remaining = iter(remembered)
    return all(any(text == other for other in remaining) for text in shown)


def normalize_text(texts: Iterable[str]) -> str:
    """Join the texts of an assistant turn, without differences in form."""
    return "".join(texts).replace(EMPTY_TEXT_PLACEHOLDER, "").strip()


def is_same_arguments(recorded: str, shown: str, schema: Mapping[str, Any]) -> bool:
    """Return whether two JSON spellings of arguments are equivalent."""
    if recorded == shown:
        return True
    try:
        ours, theirs = json.loads(recorded or "{}"), json.loads(shown or "{}")
        if not isinstance(ours, dict) or not isinstance(theirs, dict):
            return _is_same_value(ours, theirs)
        properties = schema.get("properties")
        return _is_same_object(ours, theirs, properties if isinstance(properties, dict) else {})
    except (ValueError, RecursionError):
        return recorded.rstrip() == shown.rstrip()


def _is_same_text(entry: LedgerEntry, turn: Turn) -> bool:
    return normalize_text(_recorded_texts(entry)) == normalize_text(_shown_texts(turn))


def _recorded_texts(entry: LedgerEntry) -> list[str]:
    return [span.shown for span in entry.spans if span.kind == "text"]


def _shown_texts(turn: Turn) -> list[str]:
    return [block.text for block in turn.blocks if isinstance(block, TextBlock)]


def _is_same_calls(entry: LedgerEntry, turn: Turn, tools: Sequence[ToolSpec]) -> bool:
    recorded = [span for span in entry.spans if span.kind == "call"]
    shown = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
    if len(recorded) != len(shown):
        return False
    schemas = {(tool.namespace, tool.name): tool.parameters for tool in tools} if shown else {}
    return all(
        (span.name, span.namespace) == (call.name, call.namespace)
        and _is_same_call(span, call, schemas.get((call.namespace, call.name), {}))
        for span, call in zip(recorded, shown, strict=True)
    )


def _is_same_call(span: EntrySpan, call: ToolCallBlock, schema: Mapping[str, Any]) -> bool:
    if span.custom != call.custom:
        return False
    if span.custom:
        return span.shown.rstrip() == call.arguments.rstrip()
    if not span.complete:  # clients repair partial arguments in different ways
        return True
    return is_same_arguments(span.shown, call.arguments, schema)


def _is_same_object(
    ours: dict[str, Any], theirs: dict[str, Any], schema: Mapping[str, Any]
) -> bool:
    for key in ours.keys() | theirs.keys():
        if key not in theirs:
            if ours[key] is not None:
                return False
        elif key not in ours:
            if not _is_default(theirs[key], schema.get(key)):
                return False
        elif not _is_same_value(ours[key], theirs[key], command=key == "command"):
            return False
    return True


def _is_default(value: Any, schema: Any) -> bool:
    """Return whether a client may fill in this value without changing the call."""
    if isinstance(schema, Mapping) and "default" in schema:
        return bool(schema["default"] == value)
    return value is None or value is False or value in ("", [], {})


def _is_same_value(ours: Any, theirs: Any, *, command: bool = False) -> bool:
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        # Clients that parse numbers as floats lose the last digits of large integers.
        return ours == theirs or _to_float(ours) == _to_float(theirs)
    if isinstance(ours, str) and isinstance(theirs, str):
        return _is_same_string(ours, theirs, command)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return _is_same_object(ours, theirs, {})
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_is_same_value, ours, theirs))
    return bool(ours == theirs)


def _to_float(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


def _is_same_string(ours: str, theirs: str, command: bool) -> bool:
    if ours == theirs or ours.rstrip() == theirs.rstrip():
        return True
    if command and (found := _CD_PREFIX.match(ours)):
        return ours[found.end() :].strip() == theirs.strip()
    return _strip_line_ends(ours) == _strip_line_ends(theirs)


def _strip_line_ends(text: str) -> list[str]:
    """Split into lines without trailing whitespace, which editing tools remove."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
