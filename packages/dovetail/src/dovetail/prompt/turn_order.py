"""An exchange: what the model said, and what came back before it spoke again, in canonical order.

Behind the assistant turn stands one tool turn that holds the results in the order of the calls.
Where there are results, all that came beside them is steering inside a tool loop: its text is
appended to the last result behind a blank line, its images and documents go there too.
"""

from collections.abc import Iterable, Sequence
from operator import is_

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)


class ToolExchange:
    """Collects the parts of an exchange. `at` is the place of its first turn in the history."""

    __slots__ = ("_calls", "_parts", "_assistant_turns", "_sources", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._assistant_turns: list[Turn] = []
        self._calls: list[ToolCallBlock] = []
        self._parts: list[ToolResultBlock | Turn] = []  # results and steering as they came
        self._sources: list[Turn] = []  # the turns that brought the results

    @property
    def has_reply(self) -> bool:
        """Whether anything came behind what the model said."""
        return bool(self._parts)

    def add_assistant(self, turn: Turn) -> list[ToolCallBlock]:
        """More of what the model said. Gives the calls in it."""
        calls = [block for block in turn.blocks if isinstance(block, ToolCallBlock)]
        self._assistant_turns.append(turn)
        self._calls += calls
        return calls

    def add_result(self, block: ToolResultBlock, source: Turn) -> None:
        self._parts.append(block)
        self._sources.append(source)

    def add_message(self, turn: Turn) -> None:
        self._parts.append(turn)

    def turns(self) -> list[Turn]:
        """The exchange in canonical order. Turns that are so already are the same objects."""
        said = _merge_turns(self._assistant_turns)
        first = self._first_result()
        if first is None:
            return [*said, *(part for part in self._parts if isinstance(part, Turn))]
        before = [part for part in self._parts[:first] if isinstance(part, Turn)]
        results = [part for part in self._parts if isinstance(part, ToolResultBlock)]
        steering = [part for part in self._parts[first:] if isinstance(part, Turn)]
        results = sort_results(self._calls, results)
        residue = _attach_messages(results, steering)
        if steering:
            results = sort_results(self._calls, results)  # it may now equal another
        return [*said, *before, _reuse_turn(self._sources, "tool", tuple(results)), *residue]

    def _first_result(self) -> int | None:
        """Where the tool loop begins: with the calls, or where there are none with a result."""
        kinds = (at for at, part in enumerate(self._parts) if isinstance(part, ToolResultBlock))
        first = next(kinds, None)
        return 0 if first is not None and self._calls else first


def normalize_call_id(call_id: str) -> str:
    """An id as it is compared: OpenClaw sends `call1` for `call_1`."""
    return "".join(filter(str.isalnum, call_id)) or call_id


def sort_results(
    calls: Sequence[ToolCallBlock], results: Iterable[ToolResultBlock]
) -> list[ToolResultBlock]:
    """Results as their calls stand, then those that answer no call here, as they came.

    A further result for a call that has one is kept behind it, unless it says the same.
    """
    exact: dict[str, list[int]] = {}
    plain: dict[str, list[int]] = {}
    for at, call in enumerate(calls):
        exact.setdefault(call.id, []).append(at)
        plain.setdefault(normalize_call_id(call.id), []).append(at)
    slots: list[list[ToolResultBlock]] = [[] for _ in calls]
    strays: list[ToolResultBlock] = []
    for result in results:
        places = exact.get(result.call_id) or plain.get(normalize_call_id(result.call_id))
        if places is None:
            strays.append(result)
            continue
        free = next((at for at in places if not slots[at]), None)
        if free is not None:
            slots[free].append(result)
        elif not any(result == other for at in places for other in slots[at]):
            slots[places[-1]].append(result)
    return [*(result for slot in slots for result in slot), *strays]


def _merge_turns(turns: list[Turn]) -> list[Turn]:
    if len(turns) < 2:
        return turns
    return [Turn("assistant", tuple(block for turn in turns for block in turn.blocks))]


def _attach_messages(results: list[ToolResultBlock], steering: Iterable[Turn]) -> list[Turn]:
    """Puts steering into the last result. Gives what no result can hold, as turns."""
    last = results[-1]
    inside = list(last.blocks)
    residue: list[Turn] = []
    for turn in steering:
        odd: list[Block] = []
        for block in turn.blocks:
            if isinstance(block, TextBlock | ImageBlock | DocumentBlock):
                _append_block(inside, block)
            else:
                odd.append(block)
        if odd:
            residue.append(_reuse_turn([turn], turn.role, tuple(odd)))
    if len(inside) != len(last.blocks) or not all(map(is_, inside, last.blocks)):
        results[-1] = ToolResultBlock(last.call_id, tuple(inside), last.is_error)
    return residue


def _append_block(
    blocks: list[TextBlock | ImageBlock | DocumentBlock],
    block: TextBlock | ImageBlock | DocumentBlock,
) -> None:
    last = blocks[-1] if blocks else None
    if isinstance(block, TextBlock) and isinstance(last, TextBlock):
        blocks[-1] = TextBlock(f"{last.text}\n\n{block.text}")
    else:
        blocks.append(block)


def _reuse_turn(sources: Sequence[Turn], role: Role, blocks: tuple[Block, ...]) -> Turn:
    """A turn of these blocks: the source itself where it is that turn."""
    source = sources[0]
    alike = source.role == role and len(source.blocks) == len(blocks)
    return source if alike and all(map(is_, source.blocks, blocks)) else Turn(role, blocks)
