"""Count the tokens that an engine computes again inside a tool loop.

Within a loop, every prompt should start with the previous prompt and its output: the client has
only appended the results of the tools. The rest of these tokens is re-prefilled. Turns that were
interrupted do not count, and neither does a prompt that the client has compacted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prefix_exactness import count_common
from server_setup import Family

from dovetail.engines.scripted.engine import RecordedGeneration


@dataclass(frozen=True)
class LoopStep:
    """A request that returns the results of a turn: both numbers, and the re-prefilled tokens."""

    before: int
    after: int
    reprefilled: int


def find_loop_steps(generations: Sequence[RecordedGeneration], family: Family) -> list[LoopStep]:
    """Return each request that returns the results of the tool calls of an earlier turn."""
    steps = []
    for at, one in enumerate(generations):
        before = _find_caller(one, generations[:at], family)
        if before is not None:
            known = generations[before].prompt + generations[before].output
            # The token that ended the turn may be the template's.
            again = max(0, len(known) - 1 - count_common(one.prompt, known))
            steps.append(LoopStep(before, at, again))
    return steps


def _find_caller(
    one: RecordedGeneration, earlier: Sequence[RecordedGeneration], family: Family
) -> int | None:
    """Return the number of the generation whose calls this request returns the results of.

    It is the last turn of the prompt: only the start of the turn to be generated follows.
    """
    for at in reversed(range(len(earlier))):
        output = earlier[at].output_text
        is_complete = output.endswith(family.eos)
        is_compacted = len(one.prompt) < len(earlier[at].prompt)
        if family.call_marker not in output or not is_complete or is_compacted:
            continue
        output = _without_end(output, family)
        found = one.text.rfind(output)
        if found >= 0 and one.text.count(family.turn_start, found + len(output)) == 1:
            return at
    return None


def _without_end(output: str, family: Family) -> str:
    for end in family.eos:
        output = output.removesuffix(end)
    return output.rstrip()
