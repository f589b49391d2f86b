"""Notices to a model that repeats itself: output that was ended, and calls without progress."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.ledger.entry import FINISH_REPEATED, LedgerEntry
from dovetail.ledger.history_match import HistoryMatch
from dovetail.prompt.appended_text import can_append
from dovetail.prompt.conversation_state import PromptAddition
from dovetail_model import ToolCallBlock, ToolResultBlock, Turn

_REPEATED_OUTPUT_TEXT = (
    "The server ended your previous output because it repeated itself. Do not repeat it: continue "
    "in another way, or report what you need."
)
_REPEATED_CALLS_TEXT = (
    "You made the same call {times} times, and its result was the same each time. Do not repeat "
    "it: take another approach, or report what you need."
)
MAX_PERIOD_CALLS = 4

_Step = tuple[object, ...]


@dataclass(frozen=True)
class RepeatedCalls:
    """Calls at the end of a tool loop that repeat with equal results.

    `steps`: the number of turns that repeat, including the first ones.
    `period`: the number of turns after which the calls repeat.
    """

    steps: int
    period: int

    @property
    def times(self) -> int:
        return self.steps // self.period


def find_notices(
    turns: Sequence[Turn],
    match: HistoryMatch,
    last: LedgerEntry | None,
    identical_calls: int | None,
) -> tuple[PromptAddition, ...]:
    """Return the notices for the end of a prompt.

    `last` is the last known turn. After each `identical_calls` repetitions, the model reads a
    notice; None means never.
    """
    if not turns or not can_append(turns[-1]):
        return ()
    if last is not None and last.finish == FINISH_REPEATED and _is_last(match, last):
        return (PromptAddition("notice", _REPEATED_OUTPUT_TEXT),)
    repeated = find_repeated_calls(turns) if identical_calls is not None else None
    if repeated is None or identical_calls is None:
        return ()
    if repeated.steps % (identical_calls * repeated.period):
        return ()
    return (PromptAddition("notice", _REPEATED_CALLS_TEXT.format(times=repeated.times)),)


def find_repeated_calls(turns: Sequence[Turn]) -> RepeatedCalls | None:
    """Find calls that repeat with equal results up to the end of the running tool loop.

    Text and reasoning next to the calls may differ. The work depends only on the repeated part.
    """
    steps: list[_Step] = []
    counts = dict.fromkeys(range(1, MAX_PERIOD_CALLS + 1), 0)
    active = set(counts)
    for step in _iter_steps(turns):
        at = len(steps)
        steps.append(step)
        for period in tuple(active):
            if at < period:
                continue
            if steps[at - period] == step:
                counts[period] += 1
            else:
                active.discard(period)
        if not active:
            break
    found = [RepeatedCalls(count + period, period) for period, count in counts.items() if count]
    return max(found, key=lambda one: (one.times, -one.period), default=None)


def _iter_steps(turns: Sequence[Turn]) -> Iterator[_Step]:
    """Yield the calls of each turn with their results, the last turn first.

    A turn without calls, or with a message of the user before it, ends the tool loop.
    """
    results: dict[str, ToolResultBlock] = {}
    for turn in reversed(turns):
        if turn.role == "assistant":
            calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
            if not calls or any(call.id not in results for call in calls):
                return
            yield tuple((call.name, call.arguments, _content(results[call.id])) for call in calls)
            results = {}
            continue
        found = {b.call_id: b for b in turn.blocks if isinstance(b, ToolResultBlock)}
        if not found and turn.role not in ("system", "developer"):
            return
        results |= found


def _content(result: ToolResultBlock) -> object:
    return result.blocks, result.is_error


def _is_last(match: HistoryMatch, entry: LedgerEntry) -> bool:
    """Return whether an entry is the last assistant turn of a history."""
    at = match.assistant_indexes[-1] if match.assistant_indexes else None
    return at is not None and match.steps[at].match.entry_id == entry.id
