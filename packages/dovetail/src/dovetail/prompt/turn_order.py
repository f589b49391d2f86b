"""An exchange: what the model said, and what came back before it spoke again, in canonical order.

Behind the assistant turn stands one tool turn that holds the results in the order of the calls.
Where there are results, all that came beside them is steering inside a tool loop: its text is
appended to the last result behind a blank line, its images and documents go there too.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_

import msgspec

from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    Request,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)


class ToolExchange:
    """Collects the parts of an exchange. `at` is the place of its first turn in the history."""

    __slots__ = ("_assistant_turns", "_calls", "_parts", "_sources", "index")

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


_SYSTEM_ROLES: dict[Role, Role] = {"system": "system", "developer": "system"}


class LateResultError(Exception):
    """A result answers a call in a part of the history that is closed."""


class TurnSequencer:
    """Takes turns one by one. `closed` are the ids of calls in turns that came before, elsewhere.

    `late` says that a result was moved to an exchange before the last one.
    """

    __slots__ = ("_closed_call_ids", "_exchange_by_call", "_exchanges", "has_late_result")

    def __init__(self, index: int = 0, closed_call_ids: Container[str] = ()) -> None:
        self._closed_call_ids = closed_call_ids
        self._exchanges = [ToolExchange(index)]
        self._exchange_by_call: dict[str, ToolExchange] = {}
        self.has_late_result = False

    def add(self, index: int, turn: Turn) -> None:
        """The turn at this place of the history. Raises `LateResult`, see `closed`."""
        results, rest = _split_results(turn)
        if turn.role == "assistant" and rest:
            self._add_assistant(index, _turn_with(turn, "assistant", rest))
        for result in results:
            self._find_exchange(result).add_result(result, turn)
        if turn.role != "assistant" and rest:
            self._exchanges[-1].add_message(
                _turn_with(turn, _SYSTEM_ROLES.get(turn.role, "user"), rest)
            )

    def split(self) -> tuple[list[Turn], int, list[Turn]]:
        """The turns of all exchanges but the last, where that one begins, and its turns."""
        *done, last = self._exchanges
        return [turn for one in done for turn in one.turns()], last.index, last.turns()

    def call_ids(self) -> set[str]:
        """The calls of all exchanges but the last, their ids as `plain_id` has them."""
        last = self._exchanges[-1]
        return {key for key, home in self._exchange_by_call.items() if home is not last}

    def _add_assistant(self, index: int, turn: Turn) -> None:
        if self._exchanges[-1].has_reply:
            self._exchanges.append(ToolExchange(index))
        home = self._exchanges[-1]
        for call in home.add_assistant(turn):
            self._exchange_by_call[normalize_call_id(call.id)] = home

    def _find_exchange(self, result: ToolResultBlock) -> ToolExchange:
        key, last = normalize_call_id(result.call_id), self._exchanges[-1]
        home = self._exchange_by_call.get(key)
        if home is None:
            if key in self._closed_call_ids:
                raise LateResultError
            return last
        self.has_late_result |= home is not last
        return home


def order_turns(request: Request) -> Request:
    """The request with its turns in canonical order."""
    blocks, begin = split_leading_system(request.turns)
    arrangement = TurnSequencer(begin)
    for at in range(begin, len(request.turns)):
        arrangement.add(at, request.turns[at])
    done, _, last = arrangement.split()
    return replace_turns(request, (*drop_blank_text(request.system), *blocks), (*done, *last))


def split_leading_system(
    turns: Sequence[Turn], clean: Callable[[Turn], Turn] | None = None
) -> tuple[tuple[Block, ...], int]:
    """The blocks of the turns that belong to the system prompt, and how many turns those are."""
    blocks: list[Block] = []
    for at, given in enumerate(turns):
        turn = clean(given) if clean is not None else given
        kept = drop_blank_text(turn.blocks)
        if kept and turn.role not in _SYSTEM_ROLES:
            return tuple(blocks), at
        blocks += kept
    return tuple(blocks), len(turns)


def drop_blank_text(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks without texts that hold nothing; the same tuple where there is none."""
    if not any(isinstance(block, TextBlock) and _is_blank(block.text) for block in blocks):
        return blocks
    return tuple(b for b in blocks if not (isinstance(b, TextBlock) and _is_blank(b.text)))


def replace_turns(request: Request, system: tuple[Block, ...], turns: tuple[Turn, ...]) -> Request:
    """The request with these; the same object where it has them already."""
    if system == request.system and turns == request.turns:
        return request
    return msgspec.structs.replace(request, system=system, turns=turns)


def _split_results(turn: Turn) -> tuple[list[ToolResultBlock], tuple[Block, ...]]:
    """The results in a turn, and what else it says."""
    blocks = drop_blank_text(turn.blocks)
    results = [_drop_empty_text(block) for block in blocks if isinstance(block, ToolResultBlock)]
    if not results:
        return results, blocks
    return results, tuple(block for block in blocks if not isinstance(block, ToolResultBlock))


def _drop_empty_text(result: ToolResultBlock) -> ToolResultBlock:
    """Without empty texts. White space that a tool returned is its data."""
    kept = tuple(b for b in result.blocks if not (isinstance(b, TextBlock) and not b.text))
    if len(kept) == len(result.blocks):
        return result
    return ToolResultBlock(result.call_id, kept, result.is_error)


def _turn_with(turn: Turn, role: Role, blocks: tuple[Block, ...]) -> Turn:
    return turn if turn.role == role and turn.blocks is blocks else Turn(role, blocks)


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
