"""Sessions that are played and then exported, and what an export has to be.

The truth is what the engine was asked with and what it answered, noted where both are given.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agent_clients import Agent
from scripted_run import Played, Player

from dovetail.ledger.export import LedgerExporter
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.ledger import Ledger
from dovetail.pipeline.preparation import PreparedRequest


@dataclass
class Truth:
    """What the engine was asked with and what it said, the token that ended it included."""

    prompt: list[int]
    answer: list[int]


@dataclass
class NotingPlayer(Player):
    """Notes for each entry what passed between us and the engine."""

    truths: dict[str, Truth] = field(default_factory=dict)

    async def say(
        self, agent: Agent, prepared: PreparedRequest, ids: Sequence[int], step: int = 3
    ) -> Played:
        played = await super().say(agent, prepared, ids, step)
        truth = Truth(list(prepared.prompt.ids), list(ids))
        self.truths[played.generation.entry_id] = truth
        return played


async def exported(ledger: Ledger, name: str, tenant: str = "") -> list[TrainingSample]:
    """All samples of a session, none of them left out."""
    export = LedgerExporter(ledger, tenant)
    made = [one async for one in export.iter_samples(await export.find(name))]
    samples = [one for one in made if isinstance(one, TrainingSample)]
    assert len(samples) == len(made)
    return samples


def check(samples: Sequence[TrainingSample], truths: dict[str, Truth]) -> None:
    """Each turn once, and every id of it as the engine had it."""
    entries = [turn.entry for sample in samples for turn in sample.turns]
    assert sorted(entries) == sorted(truths)
    for sample in samples:
        check_sample(sample, truths)


def check_sample(sample: TrainingSample, truths: dict[str, Truth]) -> None:
    ids, mask = list(sample.ids), list(sample.loss_mask)
    expected = [0] * len(ids)
    at = 0
    for turn in sample.turns:
        truth = truths[turn.entry]
        assert turn.start == at
        assert ids[: turn.prompt_end] == truth.prompt
        said = ids[turn.prompt_end : turn.end]
        if turn is sample.turns[-1] or said[-1:] == [turn.stop]:
            assert said == truth.answer
        else:  # the next prompt ends the turn in another way than the model did
            assert [*said, turn.stop] == truth.answer
            assert ids[turn.end] != turn.stop
        expected[turn.prompt_end : turn.end] = [1] * len(said)
        at = turn.end
        spans = turn.spans
        assert all(span.start <= span.end <= turn.end for span in spans)
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
        assert not spans or spans[0].start == turn.prompt_end
    assert at == len(ids)
    assert mask == expected


def breaks(played: Sequence[Played]) -> int:
    """How often a prompt does not begin with all of the turn before."""
    return sum(
        after.prepared.prompt.ids[: len(before.whole)] != before.whole
        for before, after in pairwise(played)
    )
