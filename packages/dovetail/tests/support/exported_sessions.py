"""Run scripted sessions, export them, and check the export.

An export must contain what the engine received and returned, id for id.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from agent_clients import Agent
from scripted_run import ScriptedRunner, ScriptedTurn

from dovetail.ledger.export import LedgerExporter
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.ledger import Ledger
from dovetail.pipeline.preparation import PreparedRequest


@dataclass
class ExpectedTurn:
    """What the engine received and generated, the stop token included."""

    prompt: list[int]
    output: list[int]


@dataclass
class RecordingRunner(ScriptedRunner):
    """Records for each entry what the engine received and generated."""

    expected_turns: dict[str, ExpectedTurn] = field(default_factory=dict)

    async def run_tokens(
        self, agent: Agent, prepared: PreparedRequest, ids: Sequence[int], step: int = 3
    ) -> ScriptedTurn:
        turn = await super().run_tokens(agent, prepared, ids, step)
        expected = ExpectedTurn(list(prepared.prompt.ids), list(ids))
        self.expected_turns[turn.generation.entry_id] = expected
        return turn


async def exported(ledger: Ledger, name: str, tenant: str = "") -> list[TrainingSample]:
    """Export all samples of a session; none may be missing."""
    export = LedgerExporter(ledger, tenant)
    made = [one async for one in export.iter_samples(await export.find(name))]
    samples = [one for one in made if isinstance(one, TrainingSample)]
    assert len(samples) == len(made)
    return samples


def check(samples: Sequence[TrainingSample], expected_turns: dict[str, ExpectedTurn]) -> None:
    """Check that each turn is exported once, with exactly the engine's ids."""
    entries = [turn.entry for sample in samples for turn in sample.turns]
    assert sorted(entries) == sorted(expected_turns)
    for sample in samples:
        check_sample(sample, expected_turns)


def check_sample(sample: TrainingSample, expected_turns: dict[str, ExpectedTurn]) -> None:
    ids, mask = list(sample.ids), list(sample.loss_mask)
    expected_mask = [0] * len(ids)
    at = 0
    for turn in sample.turns:
        expected = expected_turns[turn.entry]
        assert turn.start == at
        assert ids[: turn.prompt_end] == expected.prompt
        output = ids[turn.prompt_end : turn.end]
        if turn is sample.turns[-1] or output[-1:] == [turn.stop]:
            assert output == expected.output
        else:  # the next prompt ends the turn with another token than the model did
            assert [*output, turn.stop] == expected.output
            assert ids[turn.end] != turn.stop
        expected_mask[turn.prompt_end : turn.end] = [1] * len(output)
        at = turn.end
        spans = turn.spans
        assert all(span.start <= span.end <= turn.end for span in spans)
        assert [span.end for span in spans[:-1]] == [span.start for span in spans[1:]]
        assert not spans or spans[0].start == turn.prompt_end
    assert at == len(ids)
    assert mask == expected_mask


def count_breaks(turns: Sequence[ScriptedTurn]) -> int:
    """Count the prompts that do not start with the previous prompt and turn."""
    return sum(
        after.prepared.prompt.ids[: len(before.token_ids)] != before.token_ids
        for before, after in pairwise(turns)
    )
