"""What is kept of a turn for its export: logprobs, what was forced on the model, how it ended."""

import asyncio
import secrets
from array import array

import pytest
from collecting_sink import RecordingSink

from dovetail.demo.session import build_demo_model
from dovetail.engines.scripted import ScriptedEngine, ScriptedOptions, parse_script
from dovetail.ledger.entry import normalize_session_name
from dovetail.ledger.export import LedgerExporter
from dovetail.ledger.export_sample import TrainingSample
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.pipeline.execution import run_request
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import (
    Event,
    Identity,
    Logprobs,
    Request,
    Sampling,
    TextBlock,
    Thinking,
    Turn,
)

THOUGHT = "<think>" + "I wonder. " * 30 + "</think>It is so."
SHORT = "<think>Hm.</think>It is so."
WHO = Identity(session="s", agent="a")


class Told:
    """An answer: its sample, the events that the client got, what the engine was asked."""

    def __init__(self, text: str, *, keep: bool = False, chunk: int = 1, **changes: object) -> None:
        self.model = build_demo_model()
        script = parse_script(f"- text: {text!r}\n  logprobs: [-0.5, -0.25]\n  chunks: {chunk}\n")
        self.engine = ScriptedEngine(self.model.tokenizer, script, options=ScriptedOptions())
        self.ledger = Ledger(MemoryLedgerStore())
        preparer = ChatPreparer(self.model, self.ledger, Keyring([b"k" * 32]))
        served = TokenModel(
            ("m",), self.model, preparer, ReplicaPool([self.engine]), keep_logprobs=keep
        )
        turns = (Turn("user", (TextBlock("Is it so?"),)),)
        request = Request("m", turns, identity=WHO, **changes)  # type: ignore[arg-type]
        self.events: list[Event] = []
        self.sample = asyncio.run(self._run(served, request))

    async def _run(self, served: TokenModel, request: Request) -> TrainingSample:
        await served.engine.start()
        audience = RecordingSink()
        await run_request(served, request, lambda: f"call_{secrets.token_hex(12)}", audience)
        self.events = [event for _, events in audience.batches for event in events]
        export = LedgerExporter(self.ledger)
        (made,) = [one async for one in export.iter_samples(await export.find("s"))]
        assert isinstance(made, TrainingSample)
        return made

    def text(self, mask: int) -> str:
        """The text of what the model chose, or of what it did not choose behind the prompt."""
        start = self.sample.turns[0].prompt_end
        pairs = zip(self.sample.ids[start:], self.sample.loss_mask[start:], strict=True)
        return self.model.tokenizer.decode([id for id, chosen in pairs if chosen == mask])


def test_who_spoke_is_kept() -> None:
    told = Told(SHORT)
    assert (told.sample.session, told.sample.agent) == ("s", "a")
    assert told.sample.logprobs is None


def test_the_end_of_a_thought_that_was_cut_short_is_not_the_models() -> None:
    told = Told(THOUGHT, thinking=Thinking(budget=40))
    assert len(told.engine.requests) == 2
    forced = told.text(0)
    assert forced.strip() == "</think>"
    chosen = told.text(1)
    assert chosen.startswith("<think>I wonder.")
    # All the same, what the second request began with stands in the sample.
    second = told.engine.requests[1].prompt
    assert array("I", told.sample.ids)[: len(second)] == second


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_logprobs_that_the_client_did_not_ask_for_are_kept_and_not_shown(chunk: int) -> None:
    told = Told(SHORT, keep=True, chunk=chunk)
    assert [asked.sampling.logprobs for asked in told.engine.requests] == [0]
    assert not [event for event in told.events if isinstance(event, Logprobs)]
    turn = told.sample.turns[0]
    assert told.sample.logprobs is not None
    said = told.sample.logprobs[turn.prompt_end : turn.end]
    assert said == [-0.5, *[-0.25] * (len(said) - 1)]  # the one of the token that ended it, too
    assert set(told.sample.logprobs[: turn.prompt_end]) == {None}


def test_logprobs_that_the_client_asked_for_are_kept_and_shown() -> None:
    told = Told(SHORT, sampling=Sampling(logprobs=1))
    shown = [one for event in told.events if isinstance(event, Logprobs) for one in event.tokens]
    turn = told.sample.turns[0]
    assert len(shown) == turn.end - turn.prompt_end
    assert told.sample.logprobs is not None
    assert told.sample.logprobs[turn.prompt_end :] == [one.logprob for one in shown]


def test_what_was_forced_has_no_logprob() -> None:
    told = Told(THOUGHT, keep=True, thinking=Thinking(budget=40))
    assert told.sample.logprobs is not None
    turn = told.sample.turns[0]
    beside = zip(told.sample.logprobs, told.sample.loss_mask, strict=True)
    said = list(beside)[turn.prompt_end :]
    assert [value is not None for value, _ in said] == [bool(chosen) for _, chosen in said]
    assert any(not chosen for _, chosen in said)


def test_no_engine_is_asked_for_logprobs_that_has_none() -> None:
    told = Told(SHORT)
    assert [asked.sampling.logprobs for asked in told.engine.requests] == [None]


@pytest.mark.parametrize("chunk", [1, 1000])
def test_behind_a_stop_sequence_nothing_is_said_to_have_ended_the_turn(chunk: int) -> None:
    """The rest of the answer may come in one piece with it, the end of the turn and all."""
    told = Told(SHORT, keep=True, chunk=chunk, sampling=Sampling(stop=(" so",)))
    (turn,) = told.sample.turns
    assert turn.stop is None
    assert turn.finish == "stop_sequence"
    assert told.text(1) == "<think>Hm.</think>It is"
    assert told.sample.logprobs is not None
    assert len(told.sample.logprobs) == len(told.sample.ids)


@pytest.mark.parametrize("given", ["plain", "é 漢字", "x" * 200, "x" * 5000, "lone \ud800 half"])
def test_any_name_of_a_session_can_be_kept(given: str) -> None:
    name = normalize_session_name(given)
    assert len(name) <= 200
    assert normalize_session_name(name) == name
    assert name.encode()
    assert (name == given) == (len(given) <= 200 and "\ud800" not in given)
