"""Run scripted model output through the complete pipeline: request to prompt, ids to frames.

Only the engine is replaced: its output is given as token ids.
"""

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from agent_clients import Agent, AgentCall

from dovetail.pipeline.generation import Generation
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.messages import ToolNames
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import OutputBlock, Turn
from dovetail_tokenizers import Tokenizer

_numbers = count()


@dataclass
class ScriptedTurn:
    """One turn: its prompt, its output, and the calls that the agent has to run."""

    prepared: PreparedRequest
    generation: Generation
    calls: list[AgentCall]

    @property
    def token_ids(self) -> "array[int]":
        """Return the prompt and the turn, without the stop token."""
        return self.prepared.prompt.ids + self.generation.ids


@dataclass
class ScriptedRunner:
    """Responds to an agent with scripted model output."""

    preparer: ChatPreparer
    tokenizer: Tokenizer
    stop_id: int
    writer: TurnWriter
    spell: Callable[[str], list[int]] | None = None
    turns: list[ScriptedTurn] = field(default_factory=list)

    async def run_blocks(self, agent: Agent, blocks: Sequence[OutputBlock]) -> ScriptedTurn:
        """Generate these blocks, in the model's own syntax."""
        prepared = await self.prepare(agent)
        end = self.tokenizer.decode(prepared.prompt.ids[-24:])
        turn = Turn("assistant", tuple(blocks))
        text = self.writer.write(turn, ToolNames(()), lambda text: text, end)
        assert text is not None
        ids = (self.spell or self.tokenizer.encode)(text)
        return await self.run_tokens(agent, prepared, [*ids, self.stop_id])

    async def prepare(self, agent: Agent) -> PreparedRequest:
        body, headers = agent.request()
        return await self.preparer.prepare(agent.codec.decode(body, headers))

    async def run_tokens(
        self, agent: Agent, prepared: PreparedRequest, ids: Sequence[int], step: int = 3
    ) -> ScriptedTurn:
        """Generate these tokens, a few at a time."""
        prefix = agent.codec.call_id_prefix
        generation = self.preparer.create_generation(
            prepared, lambda: f"{prefix}{next(_numbers):024x}"
        )
        encoder = agent.codec.stream(prepared.request, _new_id, lambda: 0.0)
        frames = b""
        for at in range(0, len(ids), step):
            frames += encoder.encode(generation.feed(ids[at : at + step]))
        frames += encoder.encode(generation.finish("stop" if generation.stopped else "length"))
        calls = agent.receive(frames)
        await self.preparer.record(prepared, generation)
        self.turns.append(ScriptedTurn(prepared, generation, calls))
        return self.turns[-1]


def _new_id(prefix: str) -> str:
    return f"{prefix}{next(_numbers):024x}"


class OddSpelling:
    """Text as tokens that a model may sample but a tokenizer would not choose."""

    def __init__(self, tokenizer: Tokenizer, seed: int, share: float = 0.05) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._share = share
        self._by_bytes = {
            tokenizer.bytes_of(id): id
            for id in range(tokenizer.size)
            if not tokenizer.is_control(id)
        }

    def __call__(self, text: str) -> list[int]:
        return self.split(self._tokenizer.encode(text))

    def split(self, given: Sequence[int], seed: int | None = None) -> list[int]:
        """Return the same text in more tokens.

        With a seed, the result does not depend on history.
        """
        if seed is not None:
            self._random = random.Random(seed)
        ids: list[int] = []
        for id in given:
            spelled = self._tokenizer.bytes_of(id)
            if len(spelled) > 1 and not self._tokenizer.is_control(id):
                middle = self._random.randrange(1, len(spelled))
                halves = (
                    self._by_bytes.get(spelled[:middle]),
                    self._by_bytes.get(spelled[middle:]),
                )
                if None not in halves and self._random.random() < self._share:
                    ids += [half for half in halves if half is not None]
                    continue
            ids.append(id)
        return ids
