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

from dovetail.prompt.turn_order import Exchange, plain_id
from dovetail_model import Block, Request, Role, TextBlock, ToolResultBlock, Turn

_STEERING: dict[Role, Role] = {"system": "system", "developer": "system"}


class LateResult(Exception):
    """A result answers a call in a part of the history that is closed."""


class Arrangement:
    """Takes turns one by one. `closed` are the ids of calls in turns that came before, elsewhere.

    `late` says that a result was moved to an exchange before the last one.
    """

    __slots__ = ("_closed", "_exchanges", "_homes", "late")

    def __init__(self, at: int = 0, closed: Container[str] = ()) -> None:
        self._closed = closed
        self._exchanges = [Exchange(at)]
        self._homes: dict[str, Exchange] = {}
        self.late = False

    def add(self, at: int, turn: Turn) -> None:
        """The turn at this place of the history. Raises `LateResult`, see `closed`."""
        results, rest = _parted(turn)
        if turn.role == "assistant" and rest:
            self._say(at, _of(turn, "assistant", rest))
        for result in results:
            self._home(result).result(result, turn)
        if turn.role != "assistant" and rest:
            self._exchanges[-1].steer(_of(turn, _STEERING.get(turn.role, "user"), rest))

    def split(self) -> tuple[list[Turn], int, list[Turn]]:
        """The turns of all exchanges but the last, where that one begins, and its turns."""
        *done, last = self._exchanges
        return [turn for one in done for turn in one.turns()], last.at, last.turns()

    def call_ids(self) -> set[str]:
        """The calls of all exchanges but the last, their ids as `plain_id` has them."""
        last = self._exchanges[-1]
        return {key for key, home in self._homes.items() if home is not last}

    def _say(self, at: int, turn: Turn) -> None:
        if self._exchanges[-1].answered:
            self._exchanges.append(Exchange(at))
        home = self._exchanges[-1]
        for call in home.say(turn):
            self._homes[plain_id(call.id)] = home

    def _home(self, result: ToolResultBlock) -> Exchange:
        key, last = plain_id(result.call_id), self._exchanges[-1]
        home = self._homes.get(key)
        if home is None:
            if key in self._closed:
                raise LateResult
            return last
        self.late |= home is not last
        return home


def arrange(request: Request) -> Request:
    """The request with its turns in canonical order."""
    blocks, begin = leading(request.turns)
    arrangement = Arrangement(begin)
    for at in range(begin, len(request.turns)):
        arrangement.add(at, request.turns[at])
    done, _, last = arrangement.split()
    return with_turns(request, (*without_blanks(request.system), *blocks), (*done, *last))


def leading(
    turns: Sequence[Turn], clean: Callable[[Turn], Turn] | None = None
) -> tuple[tuple[Block, ...], int]:
    """The blocks of the turns that belong to the system prompt, and how many turns those are."""
    blocks: list[Block] = []
    for at, given in enumerate(turns):
        turn = clean(given) if clean is not None else given
        kept = without_blanks(turn.blocks)
        if kept and turn.role not in _STEERING:
            return tuple(blocks), at
        blocks += kept
    return tuple(blocks), len(turns)


def without_blanks(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks without texts that hold nothing; the same tuple where there is none."""
    if not any(isinstance(block, TextBlock) and _blank(block.text) for block in blocks):
        return blocks
    return tuple(b for b in blocks if not (isinstance(b, TextBlock) and _blank(b.text)))


def with_turns(request: Request, system: tuple[Block, ...], turns: tuple[Turn, ...]) -> Request:
    """The request with these; the same object where it has them already."""
    if system == request.system and turns == request.turns:
        return request
    return msgspec.structs.replace(request, system=system, turns=turns)


def _parted(turn: Turn) -> tuple[list[ToolResultBlock], tuple[Block, ...]]:
    """The results in a turn, and what else it says."""
    blocks = without_blanks(turn.blocks)
    results = [_trimmed(block) for block in blocks if isinstance(block, ToolResultBlock)]
    if not results:
        return results, blocks
    return results, tuple(block for block in blocks if not isinstance(block, ToolResultBlock))


def _trimmed(result: ToolResultBlock) -> ToolResultBlock:
    """Without empty texts. White space that a tool returned is its data."""
    kept = tuple(b for b in result.blocks if not (isinstance(b, TextBlock) and not b.text))
    if len(kept) == len(result.blocks):
        return result
    return ToolResultBlock(result.call_id, kept, result.is_error)


def _of(turn: Turn, role: Role, blocks: tuple[Block, ...]) -> Turn:
    return turn if turn.role == role and turn.blocks is blocks else Turn(role, blocks)


def _blank(text: str) -> bool:
    return not text or text.isspace()
