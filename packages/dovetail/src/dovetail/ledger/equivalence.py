"""Whether a client's copy of a turn still means what the model said.

Clients rewrite what they replay: keys in another order, 5000.0 as 5000, defaults filled in, `cd`
into the working folder left out of a command. That is form. Anything else is an edit, and then the
client's copy is what counts: a wrong splice is worse than a missed one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.ledger.entry import EntrySpan, LedgerEntry, pack_ids, unpack_ids
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock, ToolSpec, Turn

_SPAN_KINDS = {"text": "text", "reasoning": "reasoning", "tool_call": "call"}  # of blocks, in spans
_CD_PREFIX = re.compile(r"cd\s+(\"[^\"]*\"|'[^']*'|\S+)\s*&&\s*")


def is_same_turn(entry: LedgerEntry, turn: Turn, tools: Sequence[ToolSpec] = ()) -> bool:
    """Whether the turn, as the client has it, is the entry's in all but form."""
    return (
        _is_same_text(entry, turn)
        and _is_same_calls(entry, turn, tools)
        and has_same_reasoning(entry.spans, turn)
    )


def truncate_to_copy(
    entry: LedgerEntry, turn: Turn, tools: Sequence[ToolSpec] = ()
) -> LedgerEntry | None:
    """The entry as far as the client has it, where its copy is the first blocks of the turn.

    A client whose stream broke keeps what was whole by then and asks for the rest. Thoughts and
    calls end where a token does, text may not: behind text nothing is cut.
    """
    spans = entry.spans[: len(turn.blocks)]
    if not spans or [span.kind for span in spans] != [_SPAN_KINDS.get(b.type) for b in turn.blocks]:
        return None
    if spans[-1].kind == "text" or not spans[-1].tokens or not spans[-1].complete:
        return None
    said = pack_ids(unpack_ids(entry.generated)[: spans[-1].tokens])
    begun = msgspec.structs.replace(entry, spans=spans, generated=said, stop=None)
    return begun if is_same_turn(begun, turn, tools) else None


def has_same_reasoning(spans: Sequence[EntrySpan], turn: Turn) -> bool:
    """Whether the thoughts that the client still has are among the recorded ones, in their order.

    Clients drop thoughts, so absence says nothing; a thought with other words is an edit.
    """
    recorded = iter([span.shown.strip() for span in spans if span.kind == "reasoning"])
    kept = [b.text.strip() for b in turn.blocks if isinstance(b, ReasoningBlock)]
    kept = [text for text in kept if text]
    if not kept:
        return True
    remembered = list(recorded)
    if "".join(kept) == "".join(remembered) or kept == ["\n".join(remembered)]:
        return True
    left = iter(remembered)
    return all(any(text == other for other in left) for text in kept)


def is_same_arguments(recorded: str, shown: str, schema: Mapping[str, Any]) -> bool:
    """Whether two spellings of arguments mean the same call."""
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
    recorded = "".join(span.shown for span in entry.spans if span.kind == "text")
    shown = "".join(block.text for block in turn.blocks if isinstance(block, TextBlock))
    return recorded.strip() == shown.strip()


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
    if span.custom or call.custom:
        return span.shown.rstrip() == call.arguments.rstrip()
    if not span.complete:  # partial arguments reach a client as whatever it could read of them
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
    """A value that a client may fill in without changing the call."""
    if isinstance(schema, Mapping) and "default" in schema:
        return bool(schema["default"] == value)
    return value is None or value is False or value in ("", [], {})


def _is_same_value(ours: Any, theirs: Any, *, command: bool = False) -> bool:
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return ours == theirs or _to_float(ours) == _to_float(
            theirs
        )  # big whole numbers lose digits
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
    """The lines without the white space at their ends, which an editing tool takes away."""
    return [line.rstrip() for line in text.rstrip().split("\n")]
