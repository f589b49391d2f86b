"""A model of one engine for closed-loop simulations: a block cache with LRU eviction, and a queue.

Blocks of running turns are pinned. A turn starts when the prefill of the previous one is done and
there are blocks for its prompt and its output; until then it waits in the order of arrival and the
cache does not keep its prefix. Decoding neither slows prefill down nor is slowed down by it.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.simulate.agent_sessions import AgentTurn


@dataclass(frozen=True)
class EngineModel:
    """The size and the speed of the engine."""

    blocks: int
    block_tokens: int = 64
    prefill_tokens_per_second: float = 10_000.0
    decode_seconds: float = 0.02

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_tokens


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """A turn that the engine runs.

    `computed_tokens`: the tokens of the prompt that were not cached.
    `re_prefilled_tokens`: those of them that had been computed before.
    """

    turn: AgentTurn
    computed_tokens: int
    re_prefilled_tokens: int
    first_token_at: float
    ends_at: float


class SessionEngine:
    """The engine. Call `start` after each change and at `prefill_until`."""

    def __init__(self, model: EngineModel) -> None:
        self.model = model
        self.queue: deque[AgentTurn] = deque()
        self.prefill_until = 0.0
        self._pins: Counter[int] = Counter()
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._computed: set[int] = set()

    def start(self, now: float) -> Iterator[StartedTurn]:
        """Start the next turn of the queue, if that is possible."""
        if not self.queue or now < self.prefill_until:
            return
        turn, model = self.queue[0], self.model
        blocks = turn.blocks[: model.blocks]
        if not self._pin(blocks):
            return
        self.queue.popleft()
        prompt = turn.blocks[: turn.prompt_tokens // model.block_tokens]
        cached = self._cached
        computed = max(1, turn.prompt_tokens - cached * model.block_tokens)
        repeated = sum(block in self._computed for block in prompt[cached:])
        self._computed.update(turn.blocks)
        self.prefill_until = now + computed / model.prefill_tokens_per_second
        first = self.prefill_until + model.decode_seconds
        end = first + (turn.output_tokens - 1) * model.decode_seconds
        yield StartedTurn(turn, computed, repeated * model.block_tokens, first, end)

    def finish(self, turn: AgentTurn) -> None:
        """Unpin the blocks of a turn. The end of a prompt is evicted before its beginning."""
        for block in reversed(turn.blocks[: self.model.blocks]):
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
                self._evictable[block] = None

    def _pin(self, blocks: Sequence[int]) -> bool:
        """Pin the blocks of a turn and evict others, if there are enough."""
        missing = [one for one in blocks if one not in self._pins]
        if len(self._pins) + len(missing) > self.model.blocks:
            return False
        held = [one in self._pins or one in self._evictable for one in blocks]
        self._cached = held.index(False) if False in held else len(held)
        for block in missing:
            self._evictable.pop(block, None)
        self._pins.update(blocks)
        while len(self._pins) + len(self._evictable) > self.model.blocks:
            self._evictable.popitem(last=False)
        return True
