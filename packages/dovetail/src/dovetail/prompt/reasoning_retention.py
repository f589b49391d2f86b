"""Which turns of a history keep their reasoning in the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail_model import ReasoningRetention, Role, ToolCallBlock, Turn

LOOP_ROLES: frozenset[Role] = frozenset({"assistant", "tool"})
INLINE_ROLES: frozenset[Role] = LOOP_ROLES | {"system", "developer"}


@dataclass(frozen=True)
class ReasoningPolicy:
    """The effect of a retention setting on a history.

    `start`: the first turn whose tokens are preserved; the template renders earlier turns.
    `dropped`: the assistant turns whose reasoning is removed.
    `forced_until`: the turns from `start` to here keep their reasoning even if the template would
    drop it.
    """

    start: int
    dropped: frozenset[int] = frozenset()
    forced_until: int = 0


def apply_retention(
    turns: Sequence[Turn], retention: ReasoningRetention, template_start: int
) -> ReasoningPolicy:
    """Decide which turns keep their reasoning. `template_start` is the template's own choice.

    The running tool loop always keeps its reasoning, so that its turns extend each other.
    """
    if retention == "template":
        return ReasoningPolicy(template_start)
    loop_start = find_loop_start(turns, INLINE_ROLES)
    forced_until = loop_start if template_start else 0
    if retention == "all":
        return ReasoningPolicy(0, forced_until=forced_until)
    finished = [at for at in range(loop_start) if turns[at].role == "assistant"]
    if retention == "none":
        return ReasoningPolicy(loop_start, frozenset(finished))
    with_calls = {at for at in finished if has_calls(turns[at])}
    start = min(with_calls, default=loop_start)
    return ReasoningPolicy(start, frozenset(finished) - with_calls, forced_until)


def find_loop_start(turns: Sequence[Turn], loop_roles: frozenset[Role] = LOOP_ROLES) -> int:
    """Find the start of the running tool loop: the last turn with a role that is not part of it."""
    for at in range(len(turns) - 1, -1, -1):
        if turns[at].role not in loop_roles:
            return at
    return 0


def has_calls(turn: Turn) -> bool:
    """Return whether a turn contains a tool call."""
    return any(isinstance(block, ToolCallBlock) for block in turn.blocks)
