"""One arrangement of turns, whichever API they came by and however the client ordered them.

Leading system and developer turns become the system prompt; later ones stay in place as `system`.
A history falls into exchanges (see `exchange.py`), each begun by what the model said. Empty text
and empty turns are gone, assistant turns with nothing between them are one, user turns stay apart.
A result that comes later than its exchange is moved to the nearest call before it with that id.

What holds, for every history H and every X that follows it:

- `arrange` is idempotent and loses no text.
- If X begins with an assistant turn and has no result for a call of H, and `arrange(H)` does not
  end in an assistant turn: the turns of `arrange(H + X)` begin with those of `arrange(H)`.
- If X begins otherwise, that holds up to the last assistant turn of H: behind it results find
  their calls and reminders join the last result, whose text grows at its end.
"""

from collections.abc import Callable, Container, Sequence

import msgspec

from dovetail.prompt.turn_order import ToolExchange, normalize_call_id
from dovetail_model import Block, Request, Role, TextBlock, ToolResultBlock, Turn

_SYSTEM_ROLES: dict[Role, Role] = {"system": "system", "developer": "system"}


class LateResultError(Exception):
    """A result answers a call in a part of the history that is closed."""


class TurnSequencer:
    """Takes turns one by one. `closed` are the ids of calls in turns that came before, elsewhere.

    `late` says that a result was moved to an exchange before the last one.
    """

    __slots__ = ("_closed_call_ids", "_exchanges", "_exchange_by_call", "has_late_result")

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
