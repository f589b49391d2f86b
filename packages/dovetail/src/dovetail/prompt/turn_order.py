"""Put turns in canonical order, exchange by exchange.

An exchange is an assistant turn and the messages up to the next one. In canonical order, one tool
turn follows the assistant turn, with the results in the order of the calls. Other messages among
the results steer a tool loop: their text is appended to the last result after a blank line, and so
are their images and documents.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from operator import is_

import msgspec

from dovetail_model import (
    Block,
    ContentBlock,
    Request,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

_NOT_IN_IDS = {code: None for code in range(128) if not chr(code).isalnum()}


class ToolExchange:
    """Collects the parts of an exchange. `index` is the position of its first turn."""

    __slots__ = ("_assistant_turns", "_calls", "_parts", "_sources", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self._assistant_turns: list[Turn] = []
        self._calls: list[ToolCallBlock] = []
        self._parts: list[ToolResultBlock | Turn] = []  # results and messages in order of arrival
        self._sources: list[Turn] = []  # the turns that contained the results

    @property
    def has_reply(self) -> bool:
        """Whether a message followed the assistant turn."""
        return bool(self._parts)

    def add_assistant(self, turn: Turn) -> list[ToolCallBlock]:
        """Add an assistant turn. Returns its calls."""
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
        """Return the turns in canonical order. Unchanged turns are the same objects."""
        assistant = _merge_turns(self._assistant_turns)
        first = self._first_result()
        if first is None:
            return [*assistant, *(part for part in self._parts if isinstance(part, Turn))]
        before = [part for part in self._parts[:first] if isinstance(part, Turn)]
        results = [part for part in self._parts if isinstance(part, ToolResultBlock)]
        steering = [part for part in self._parts[first:] if isinstance(part, Turn)]
        results = sort_results(self._calls, results)
        residue = _attach_messages(results, steering)
        if steering:
            results = sort_results(self._calls, results)  # the last may now equal another
        return [*assistant, *before, _reuse_turn(self._sources, "tool", tuple(results)), *residue]

    def _first_result(self) -> int | None:
        """Return the index where the tool loop begins: 0 after calls, else the first result."""
        kinds = (at for at, part in enumerate(self._parts) if isinstance(part, ToolResultBlock))
        first = next(kinds, None)
        return 0 if first is not None and self._calls else first


def normalize_call_id(call_id: str) -> str:
    """Reduce an id to its letters and digits: OpenClaw sends `call1` for `call_1`.

    A request may have megabytes of ids. Only ASCII can be reduced quickly, and clients use no
    other characters.
    """
    return (call_id.translate(_NOT_IN_IDS) or call_id) if call_id.isascii() else call_id


def sort_results(
    calls: Sequence[ToolCallBlock], results: Iterable[ToolResultBlock]
) -> list[ToolResultBlock]:
    """Sort results by their calls, then append the results without a call.

    A second result for the same call is placed after the first, unless both are equal.
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
        elif not any(_is_same_result(result, other) for at in places for other in slots[at]):
            slots[places[-1]].append(result)
    return [*(result for slot in slots for result in slot), *strays]


def _is_same_result(result: ToolResultBlock, other: ToolResultBlock) -> bool:
    """Compare what the model reads, regardless of its author."""
    return (result.call_id, result.blocks, result.is_error) == (
        other.call_id,
        other.blocks,
        other.is_error,
    )


def _merge_turns(turns: list[Turn]) -> list[Turn]:
    if len(turns) < 2:
        return turns
    return [Turn("assistant", tuple(block for turn in turns for block in turn.blocks))]


def _attach_messages(results: list[ToolResultBlock], steering: Iterable[Turn]) -> list[Turn]:
    """Append steering messages to the last result. Returns turns with all other blocks."""
    last = results[-1]
    inside = list(last.blocks)
    appended: list[str] = []
    residue: list[Turn] = []
    for turn in steering:
        unattached: list[Block] = []
        for block in turn.blocks:
            if isinstance(block, ContentBlock):
                _append_block(inside, block)
                appended += [block.text] if isinstance(block, TextBlock) else []
            else:
                unattached.append(block)
        if unattached:
            residue.append(_reuse_turn([turn], turn.role, tuple(unattached)))
    if len(inside) != len(last.blocks) or not all(map(is_, inside, last.blocks)):
        results[-1] = ToolResultBlock(
            last.call_id, tuple(inside), last.is_error, "\n\n".join(appended)
        )
    return residue


def _append_block(
    blocks: list[ContentBlock],
    block: ContentBlock,
) -> None:
    last = blocks[-1] if blocks else None
    if isinstance(block, TextBlock) and isinstance(last, TextBlock):
        blocks[-1] = TextBlock(f"{last.text}\n\n{block.text}")
    else:
        blocks.append(block)


def _reuse_turn(sources: Sequence[Turn], role: Role, blocks: tuple[Block, ...]) -> Turn:
    """Return a turn with these blocks, which is the first source if that is equal."""
    source = sources[0]
    alike = source.role == role and len(source.blocks) == len(blocks)
    return source if alike and all(map(is_, source.blocks, blocks)) else Turn(role, blocks)


_SYSTEM_ROLES: dict[Role, Role] = {"system": "system", "developer": "system"}


class LateResultError(Exception):
    """A result for a call in a closed part of the history."""


class TurnSequencer:
    """Orders turns incrementally.

    `closed_call_ids`: the calls of an earlier, closed part of the history.
    `has_late_result`: whether a result was moved to an exchange before the last one.
    """

    __slots__ = ("_closed_call_ids", "_exchange_by_call", "_exchanges", "has_late_result")

    def __init__(self, index: int = 0, closed_call_ids: Container[str] = ()) -> None:
        self._closed_call_ids = closed_call_ids
        self._exchanges = [ToolExchange(index)]
        self._exchange_by_call: dict[str, ToolExchange] = {}
        self.has_late_result = False

    def add(self, index: int, turn: Turn) -> None:
        """Add the turn at this index. Raises `LateResultError` for the result of a closed call."""
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
        """Return the turns of all exchanges but the last, the index of the last, and its turns."""
        *done, last = self._exchanges
        return [turn for one in done for turn in one.turns()], last.index, last.turns()

    def call_ids(self) -> set[str]:
        """Return the normalized ids of the calls of all exchanges but the last."""
        last = self._exchanges[-1]
        return {key for key, exchange in self._exchange_by_call.items() if exchange is not last}

    def _add_assistant(self, index: int, turn: Turn) -> None:
        if self._exchanges[-1].has_reply:
            self._exchanges.append(ToolExchange(index))
        exchange = self._exchanges[-1]
        for call in exchange.add_assistant(turn):
            self._exchange_by_call[normalize_call_id(call.id)] = exchange

    def _find_exchange(self, result: ToolResultBlock) -> ToolExchange:
        key, last = normalize_call_id(result.call_id), self._exchanges[-1]
        exchange = self._exchange_by_call.get(key)
        if exchange is None:
            if key in self._closed_call_ids:
                raise LateResultError
            return last
        self.has_late_result |= exchange is not last
        return exchange


def order_turns(request: Request) -> Request:
    """Put the turns of a request in canonical order."""
    blocks, begin = split_leading_system(request.turns)
    sequencer = TurnSequencer(begin)
    for at in range(begin, len(request.turns)):
        sequencer.add(at, request.turns[at])
    done, _, last = sequencer.split()
    return replace_turns(request, (*drop_blank_text(request.system), *blocks), (*done, *last))


def split_leading_system(
    turns: Sequence[Turn], clean: Callable[[Turn], Turn] | None = None
) -> tuple[tuple[Block, ...], int]:
    """Return the blocks of the leading system turns, and the number of these turns."""
    blocks: list[Block] = []
    for at, original in enumerate(turns):
        turn = clean(original) if clean is not None else original
        content = drop_blank_text(turn.blocks)
        if content and turn.role not in _SYSTEM_ROLES:
            return tuple(blocks), at
        blocks += content
    return tuple(blocks), len(turns)


def drop_blank_text(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Remove blank texts. Returns the same tuple if there are none."""
    if not any(isinstance(block, TextBlock) and _is_blank(block.text) for block in blocks):
        return blocks
    return tuple(b for b in blocks if not (isinstance(b, TextBlock) and _is_blank(b.text)))


def replace_turns(request: Request, system: tuple[Block, ...], turns: tuple[Turn, ...]) -> Request:
    """Replace system and turns. Returns the same request if they are equal."""
    if system == request.system and turns == request.turns:
        return request
    return msgspec.structs.replace(request, system=system, turns=turns)


def _split_results(turn: Turn) -> tuple[list[ToolResultBlock], tuple[Block, ...]]:
    """Return the results of a turn and its other blocks."""
    blocks = drop_blank_text(turn.blocks)
    results = [_drop_empty_text(block) for block in blocks if isinstance(block, ToolResultBlock)]
    if not results:
        return results, blocks
    return results, tuple(block for block in blocks if not isinstance(block, ToolResultBlock))


def _drop_empty_text(result: ToolResultBlock) -> ToolResultBlock:
    """Remove empty texts, but not whitespace, which is data that a tool returned."""
    blocks = tuple(b for b in result.blocks if not (isinstance(b, TextBlock) and not b.text))
    if len(blocks) == len(result.blocks):
        return result
    return ToolResultBlock(result.call_id, blocks, result.is_error)


def _turn_with(turn: Turn, role: Role, blocks: tuple[Block, ...]) -> Turn:
    return turn if turn.role == role and turn.blocks is blocks else Turn(role, blocks)


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
