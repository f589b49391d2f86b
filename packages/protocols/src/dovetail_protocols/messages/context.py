"""Context management of the Messages API: edits of the history, and compaction.

A compaction block replaces all that precedes it by a summary, so the decoder drops the rest. The
model reads the summary as a user turn.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from dovetail_model import (
    AppliedEdit,
    ClearThinking,
    ClearToolUses,
    Compact,
    ContextEdit,
    ContextManagement,
    EditTrigger,
    InvalidRequest,
    TextBlock,
    ToolCallBlock,
    Turn,
)
from dovetail_protocols.messages import wire
from dovetail_protocols.request_body import convert
from dovetail_protocols.summary_text import SUMMARY_PREFACE

_PATH = "context_management.edits"


class CompactedText(TextBlock, frozen=True, tag="text"):
    """The summary in a compaction block of a history."""


def decode_context(
    body: wire.Request,
) -> tuple[ContextManagement, Literal["all"] | None, list[str]]:
    """Decode the context management of a request.

    Returns also whether all reasoning is to be kept, which is up to the chat template, and the
    paths of unknown edits and fields.
    """
    edits: list[ContextEdit] = []
    keep: Literal["all"] | None = None
    unknown: list[str] = []
    requested = body.context_management.edits if body.context_management is not None else None
    for at, value in enumerate(requested or ()):
        path = f"{_PATH}[{at}]"
        kind = value.get("type")
        if not isinstance(kind, str):
            raise InvalidRequest(f"{path}.type: Field required", param=f"{path}.type")
        if kind.startswith("clear_thinking"):
            edit = convert(value, wire.ClearThinkingIn, path)
            turns = _thinking_turns(edit.keep, f"{path}.keep")
            if turns is None:
                keep = "all"
            else:
                edits.append(ClearThinking(turns))
            unknown += _unknown_fields(value, wire.ClearThinkingIn, path)
        elif kind.startswith("clear_tool_uses"):
            edits.append(_clear_tool_uses(value, path))
            unknown += _unknown_fields(value, wire.ClearToolUsesIn, path)
        elif kind.startswith("compact_"):
            edits.append(_compact(value, path))
            unknown += _unknown_fields(value, wire.CompactIn, path)
        else:
            unknown.append(path)
    context = ContextManagement(
        edits=None if requested is None else tuple(edits), summarize=_summarize(body)
    )
    return context, keep, unknown


def _unknown_fields(edit: dict[str, Any], kind: type[msgspec.Struct], path: str) -> list[str]:
    known = kind.__struct_fields__
    return [f"{path}.{name}" for name, value in edit.items() if name not in known and value]


def _thinking_turns(keep: object, path: str) -> int | None:
    """Return for how many turns reasoning is kept, None for all. The API's default is one turn."""
    if keep is None:
        return 1
    if keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all"):
        return None
    value = keep.get("value") if isinstance(keep, dict) else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise InvalidRequest(f"{path}: must be `all` or a number of turns >= 0", param=path)


def _clear_tool_uses(value: dict[str, Any], path: str) -> ClearToolUses:
    edit = convert(value, wire.ClearToolUsesIn, path)
    inputs = edit.clear_tool_inputs
    return ClearToolUses(
        trigger=_trigger(edit.trigger, f"{path}.trigger", ("input_tokens", "tool_uses")),
        keep=3 if edit.keep is None else edit.keep.value,
        clear_at_least=0 if edit.clear_at_least is None else edit.clear_at_least.value,
        exclude_tools=tuple(edit.exclude_tools or ()),
        clear_inputs=tuple(inputs) if isinstance(inputs, list) else bool(inputs),
    )


def _compact(value: dict[str, Any], path: str) -> Compact:
    edit = convert(value, wire.CompactIn, path)
    trigger = _trigger(edit.trigger, f"{path}.trigger", ("input_tokens",))
    return Compact(
        trigger_tokens=None if trigger is None else trigger.value,
        instructions=(edit.instructions or "").strip(),
        pause=bool(edit.pause_after_compaction),
    )


def _trigger(amount: wire.Amount | None, path: str, kinds: tuple[str, ...]) -> EditTrigger | None:
    if amount is None:
        return None
    if amount.type not in kinds:
        names = " or ".join(kinds)
        message = f"{path}.type: must be {names}, got {amount.type!r}"
        raise InvalidRequest(message, param=f"{path}.type")
    return EditTrigger(
        "input_tokens" if amount.type == "input_tokens" else "tool_uses", amount.value
    )


def _summarize(body: wire.Request) -> str | None:
    """Return the instructions of a request for a summary, or None for another request."""
    config = body.compaction
    if config is None:
        return None
    if body.context_management is not None:
        message = "compaction: cannot be combined with `context_management`"
        raise InvalidRequest(message, param="compaction")
    return (config.instructions or "").strip()


def check_summarizable(turns: Sequence[Turn]) -> None:
    """Reject a request for a summary whose last turn waits for the results of its calls."""
    if not turns:
        raise InvalidRequest("compaction: there is nothing to summarize", param="compaction")
    last = turns[-1]
    if last.role == "assistant" and any(isinstance(b, ToolCallBlock) for b in last.blocks):
        message = "compaction: the last turn has tool calls without results"
        raise InvalidRequest(message, param="compaction")


def apply_compaction(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Replace all that precedes the last compaction block by its summary."""
    # This runs for every block of every request: without a call for blocks of other types.
    for at in range(len(turns) - 1, -1, -1):
        blocks = turns[at].blocks
        if CompactedText not in [type(block) for block in blocks]:
            continue
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            if isinstance(block, CompactedText):
                summary = Turn("user", (TextBlock(SUMMARY_PREFACE + block.text),))
                rest = Turn(turns[at].role, blocks[place + 1 :])
                return (summary, *((rest,) if rest.blocks else ()), *turns[at + 1 :])
    return turns


def to_context_out(edits: Sequence[AppliedEdit]) -> wire.ContextManagementOut:
    """Encode the edits in force in a prompt."""
    return wire.ContextManagementOut([_applied_edit(edit) for edit in edits])


def _applied_edit(edit: AppliedEdit) -> wire.ClearedToolUsesOut | wire.ClearedThinkingOut:
    if edit.type == "clear_tool_uses_20250919":
        return wire.ClearedToolUsesOut(edit.count, edit.tokens)
    return wire.ClearedThinkingOut(edit.count, edit.tokens)
