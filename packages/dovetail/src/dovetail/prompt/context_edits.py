"""Context edits: remove old reasoning, tool results and turns from the model's view of a history.

The client sends its whole history each time. An edit changes the prompt from the first removed part
on, so it costs one prefix break; therefore the edits in force are recorded with the generated turn
and applied in the same way to all later requests of the conversation. A further edit is made only
if it removes enough.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import is_not

import msgspec

from dovetail.prompt.appended_text import append_text
from dovetail.prompt.turn_order import normalize_call_id
from dovetail_model import (
    AppliedEdit,
    Block,
    ClearThinking,
    ClearToolUses,
    ContextManagement,
    DocumentBlock,
    EditTrigger,
    ReasoningBlock,
    ReasoningRetention,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

CLEARED_RESULT = "[The result of this tool call was removed to save space.]"
DEFAULT_TOOL_USES_TRIGGER = EditTrigger("input_tokens", 100_000)
MIN_REPEATED_SHARE = 10  # a repeated edit must remove at least a tenth of the conversation


class ClearedReasoning(msgspec.Struct, frozen=True, array_like=True):
    """One removal of reasoning from all turns before `until`.

    `turns`, `tokens`: the number of turns with reasoning, and of the removed tokens.
    `requested`: whether the client requested it; otherwise the session rested for long.
    """

    until: int
    turns: int
    tokens: int = 0
    requested: bool = True


class ClearedToolUses(msgspec.Struct, frozen=True, array_like=True):
    """The first `until` tool calls of a history without their results.

    `excluded`: the tools whose calls stay.
    `inputs`: whether the arguments are removed, too, of all tools or of the named ones.
    `uses`, `tokens`: the number of cleared calls and of the removed tokens.
    """

    until: int
    excluded: tuple[str, ...] = ()
    inputs: bool | tuple[str, ...] = False
    uses: int = 0
    tokens: int = 0


class DroppedTurns(msgspec.Struct, frozen=True, array_like=True):
    """A history without the turns before `until`.

    `retained`: the turn before `until` that stays, because it was the newest user turn.
    `notice`: what the model still has to know of the dropped turns, such as the definitions of
    tools that they loaded. It is appended to the first of the other turns.
    """

    until: int
    retained: int | None = None
    notice: str = ""

    def effect(self) -> tuple[object, ...]:
        """Return all that determines the prompt, in the form of older entries if possible."""
        effect = (self.until, self.retained)
        return (*effect, self.notice) if self.notice else effect


class ContextEdits(msgspec.Struct, frozen=True, array_like=True):
    """The context edits in force. Indexes count the turns and calls that the client sends.

    `retention`: the turns that keep their reasoning, a setting of the model or the request.
    """

    reasoning: tuple[ClearedReasoning, ...] = ()
    tool_uses: ClearedToolUses | None = None
    dropped: DroppedTurns | None = None
    retention: ReasoningRetention = "template"

    @property
    def reasoning_until(self) -> int:
        """The turns before this index have no reasoning."""
        return self.reasoning[-1].until if self.reasoning else 0

    @property
    def rested_until(self) -> int:
        """The turns before this index have no reasoning because the session rested."""
        return max((batch.until for batch in self.reasoning if not batch.requested), default=0)

    def is_different(self, other: "ContextEdits") -> bool:
        """Return whether other edits are in force, except for the retention of reasoning."""
        return self != other and self.effect()[:-1] != other.effect()[:-1]

    def applied(self, visible_from: int = 0) -> tuple[AppliedEdit, ...]:
        """Return the effect of the edits that the client requested.

        `visible_from`: the first turn whose reasoning would be in the prompt without edits.
        """
        edits: list[AppliedEdit] = []
        batches = [b for b in self.reasoning if b.requested and b.until > visible_from]
        if batches:
            turns, tokens = sum(b.turns for b in batches), sum(b.tokens for b in batches)
            edits.append(AppliedEdit("clear_thinking_20251015", turns, tokens))
        if self.tool_uses is not None:
            cleared = self.tool_uses
            edits.append(AppliedEdit("clear_tool_uses_20250919", cleared.uses, cleared.tokens))
        return tuple(edits)

    def effect(self) -> list[object]:
        """Return all that determines the prompt: not the token counts."""
        uses, dropped = self.tool_uses, self.dropped
        return [
            self.reasoning_until,
            None if uses is None else (uses.until, uses.excluded, uses.inputs),
            None if dropped is None else dropped.effect(),
            self.retention,
        ]

    def restricted_to(self, requested: ContextManagement) -> "ContextEdits":
        """Return the edits that remain in force for a request.

        A request without context management continues with the edits of the conversation. One that
        has it, but without an edit of a kind, ends the edits of this kind.
        """
        reasoning, uses = self.reasoning, self.tool_uses
        if requested.edits is not None:
            kinds = {type(edit) for edit in requested.edits}
            if ClearThinking not in kinds:
                reasoning = tuple(batch for batch in reasoning if not batch.requested)
            uses = uses if ClearToolUses in kinds else None
        dropped = self.dropped if requested.truncate else None
        return ContextEdits(reasoning, uses, dropped, self.retention)


NO_EDITS = ContextEdits()


@dataclass(frozen=True)
class EditedTurns:
    """The turns as the model reads them.

    `indexes`: the index of each turn in the client's history, None if no turn was dropped.
    `without_reasoning`: the indexes, in the client's history, of the assistant turns whose
    reasoning was removed. What the model generated there can be used only if it has no reasoning.
    `without_arguments`: the same for the arguments of calls.
    """

    turns: tuple[Turn, ...]
    indexes: tuple[int, ...] | None = None
    without_reasoning: frozenset[int] = frozenset()
    without_arguments: frozenset[int] = frozenset()


def apply_edits(
    turns: tuple[Turn, ...], state: ContextEdits, dropped_reasoning: Collection[int] = ()
) -> EditedTurns:
    """Apply the edits in force.

    `dropped_reasoning`: further assistant turns whose reasoning is removed.
    """
    if not state.is_different(NO_EDITS) and not dropped_reasoning:
        return EditedTurns(turns)
    until = min(state.reasoning_until, len(turns))
    reasonless = {at for at in range(until) if turns[at].role == "assistant"}
    reasonless.update(dropped_reasoning)
    edited = [
        _without_reasoning(turn) if at in reasonless else turn for at, turn in enumerate(turns)
    ]
    changed: list[int] = []
    if state.tool_uses is not None:
        changed = _clear_calls(edited, state.tool_uses)
    visible = tuple(at for at in range(len(turns)) if not _is_dropped(turns, at, state.dropped))
    if state.dropped is not None and state.dropped.notice:
        _append_notice(edited, visible, state.dropped.notice)
    return EditedTurns(
        tuple(edited[at] for at in visible),
        visible if len(visible) < len(turns) else None,
        frozenset(reasonless),
        frozenset(changed),
    )


def clear_thinking(
    turns: tuple[Turn, ...],
    state: ContextEdits,
    edit: ClearThinking,
    reasoning_turns: Sequence[int],
) -> ContextEdits | None:
    """Plan a removal of reasoning, None if there is nothing to remove or too little.

    `reasoning_turns`: the indexes of the turns that have reasoning in the prompt, in order.
    """
    clearable = reasoning_turns[: max(0, len(reasoning_turns) - edit.keep)]
    if not clearable:
        return None
    chars = sum(_reasoning_chars(turns[at]) for at in clearable)
    if state.reasoning_until and not _is_worthwhile(chars, turns, state):
        return None
    return clear_reasoning_before(state, clearable[-1] + 1, len(clearable))


def clear_reasoning_before(
    state: ContextEdits, until: int, turns: int, *, requested: bool = True
) -> ContextEdits:
    """Remove the reasoning of all turns before `until`."""
    if until <= state.reasoning_until:
        return state
    reasoning = (*state.reasoning, ClearedReasoning(until, turns, requested=requested))
    return msgspec.structs.replace(state, reasoning=reasoning)


def clear_tool_uses(
    turns: tuple[Turn, ...],
    state: ContextEdits,
    edit: ClearToolUses,
    trigger: EditTrigger,
    prompt_tokens: int,
) -> ContextEdits | None:
    """Plan a removal of tool results, None if it is not triggered or removes too little."""
    uses = _ToolUses(turns)
    calls = uses.calls
    before = state.tool_uses or ClearedToolUses(0)
    until = len(calls) - edit.keep
    size = prompt_tokens if trigger.kind == "input_tokens" else len(calls) - before.uses
    if until <= before.until or size <= trigger.value:
        return None
    count = sum(call.name not in edit.exclude_tools for call in calls[:until])
    if count <= before.uses:
        return None
    planned = ClearedToolUses(until, edit.exclude_tools, edit.clear_inputs, count, before.tokens)
    found = uses.find_cleared(planned, before.until)
    chars = sum(count_block_chars(turns[at].blocks[place]) for at, place in found)
    if before.until and not _is_worthwhile(chars, turns, state):
        return None
    return msgspec.structs.replace(state, tool_uses=planned)


def _is_worthwhile(chars: int, turns: tuple[Turn, ...], state: ContextEdits) -> bool:
    """Return whether a repeated edit removes enough of the conversation to break its prefix."""
    visible = apply_edits(turns, state).turns
    total = sum(count_block_chars(block) for turn in visible for block in turn.blocks)
    return chars * MIN_REPEATED_SHARE >= total


def add_removed_tokens(state: ContextEdits, before: ContextEdits, tokens: int) -> ContextEdits:
    """Record the tokens that the step from `before` to `state` removed from the prompt."""
    if state.reasoning != before.reasoning:
        *earlier, last = state.reasoning
        last = msgspec.structs.replace(last, tokens=tokens)
        return msgspec.structs.replace(state, reasoning=(*earlier, last))
    assert state.tool_uses is not None
    uses = msgspec.structs.replace(state.tool_uses, tokens=state.tool_uses.tokens + tokens)
    return msgspec.structs.replace(state, tool_uses=uses)


def drop_oldest_turns(
    turns: Sequence[Turn], state: ContextEdits, min_chars: int
) -> ContextEdits | None:
    """Drop the oldest turns with at least so many characters, None if no turn can be dropped.

    System turns and the newest user turn stay. The history is split before a user turn or, inside
    the running tool loop, before an assistant turn, so that calls stay with their results.
    """
    newest = max((at for at, turn in enumerate(turns) if turn.role == "user"), default=None)
    first = state.dropped.until if state.dropped is not None else 0
    chars, best = 0, None
    for at in range(first, len(turns)):
        if at > first and _can_split(turns, at, newest):
            best = DroppedTurns(at, newest if newest is not None and newest < at else None)
            if chars >= min_chars:
                break
        if at != newest:
            chars += sum(map(count_block_chars, turns[at].blocks))
    if best is None:
        return None
    return msgspec.structs.replace(state, dropped=best)


def add_notice(state: ContextEdits, notice: str) -> ContextEdits:
    """Add a notice about the dropped turns."""
    assert state.dropped is not None
    dropped = msgspec.structs.replace(state.dropped, notice=notice)
    return msgspec.structs.replace(state, dropped=dropped)


def count_block_chars(block: Block) -> int:
    """Count the characters of a block that a template may show: ids and names, too."""
    match block:
        case TextBlock(text=text) | ReasoningBlock(text=text):
            return len(text)
        case ToolCallBlock(id=id, name=name, arguments=text):
            return len(id) + len(name) + len(text)
        case DocumentBlock(text=str(text)):
            return len(text)
        case ToolResultBlock(call_id=id, blocks=blocks):
            return len(id) + sum(map(count_block_chars, blocks))
    return 0


def _can_split(turns: Sequence[Turn], at: int, newest_user: int | None) -> bool:
    if newest_user is None or at <= newest_user:
        return turns[at].role == "user"
    return turns[at].role == "assistant" and at < len(turns) - 1


def _is_dropped(turns: Sequence[Turn], at: int, dropped: DroppedTurns | None) -> bool:
    if dropped is None or at >= dropped.until or at == dropped.retained:
        return False
    return turns[at].role not in ("system", "developer")


def _append_notice(turns: list[Turn], visible: Sequence[int], notice: str) -> None:
    """Append a notice in place to the first visible turn of a user or a tool."""
    first = next((at for at in visible if turns[at].role in ("user", "tool")), None)
    if first is not None:
        turns[first] = append_text(turns[first], notice)


class _ToolUses:
    """The calls and results of a history, by position, with the number of their call."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.calls: list[ToolCallBlock] = []
        self.blocks: list[tuple[int, int, int]] = []  # index of the turn, of the block; call
        numbers: dict[str, int] = {}  # clients may reuse an id: the last call counts
        for at, turn in enumerate(turns):
            for place, block in enumerate(turn.blocks):
                if isinstance(block, ToolCallBlock):
                    numbers[normalize_call_id(block.id)] = len(self.calls)
                    self.blocks.append((at, place, len(self.calls)))
                    self.calls.append(block)
                elif isinstance(block, ToolResultBlock):
                    number = numbers.get(normalize_call_id(block.call_id))
                    if number is not None:
                        self.blocks.append((at, place, number))

    def find_cleared(self, cleared: ClearedToolUses, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the positions of the cleared calls and results, from call `start` on."""
        for at, place, number in self.blocks:
            name = self.calls[number].name
            if start <= number < cleared.until and name not in cleared.excluded:
                yield at, place


def _clear_calls(turns: list[Turn], cleared: ClearedToolUses) -> list[int]:
    """Clear calls in place. Returns the indexes of turns whose arguments were removed."""
    places: dict[int, set[int]] = {}
    for at, place in _ToolUses(turns).find_cleared(cleared):
        places.setdefault(at, set()).add(place)
    changed: list[int] = []
    for at, inside in places.items():
        blocks = [
            _clear_block(block, cleared.inputs) if place in inside else block
            for place, block in enumerate(turns[at].blocks)
        ]
        if any(map(is_not, blocks, turns[at].blocks)):
            turns[at] = Turn(turns[at].role, tuple(blocks))
            changed += [at] if turns[at].role == "assistant" else []
    return changed


def _clear_block(block: Block, inputs: bool | tuple[str, ...]) -> Block:
    """Clear a result or arguments, but not the messages of the client behind a result."""
    match block:
        case ToolResultBlock(appended=appended):
            text = f"{CLEARED_RESULT}\n\n{appended}" if appended else CLEARED_RESULT
            return msgspec.structs.replace(block, blocks=(TextBlock(text),))
        case ToolCallBlock(name=name) if inputs is True or (inputs and name in inputs):
            return msgspec.structs.replace(block, arguments="" if block.custom else "{}", raw="")
    return block


def _without_reasoning(turn: Turn) -> Turn:
    blocks = tuple(block for block in turn.blocks if not isinstance(block, ReasoningBlock))
    return turn if len(blocks) == len(turn.blocks) else Turn(turn.role, blocks)


def _reasoning_chars(turn: Turn) -> int:
    return sum(len(block.text) for block in turn.blocks if isinstance(block, ReasoningBlock))
