"""The recorded data of a turn for its export: logprobs, forced tokens, finish reason."""

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

LONG_REASONING = "<think>" + "I wonder. " * 30 + "</think>It is so."
SHORT = "<think>Hm.</think>It is so."
WHO = Identity(session="s", agent="a")


class ExportedRun:
    """The result of a request: sample, events of the client, requests to the engine."""

    def __init__(self, text: str, *, keep: bool = False, chunk: int = 1, **changes: object) -> None:
        self.model = build_demo_model()
        script = parse_script(f"- text: {text!r}\n  logprobs: [-0.5, -0.25]\n  chunks: {chunk}\n")
        self.engine = ScriptedEngine(self.model.tokenizer, script, options=ScriptedOptions())
        self.ledger = Ledger(MemoryLedgerStore())
        preparer = ChatPreparer(self.model, self.ledger, Keyring([b"k" * 32]))
        entry = TokenModel(
            ("m",), self.model, preparer, ReplicaPool([self.engine]), keep_logprobs=keep
        )
        turns = (Turn("user", (TextBlock("Is it so?"),)),)
        request = Request("m", turns, identity=WHO, **changes)  # type: ignore[arg-type]
        self.events: list[Event] = []
        self.sample = asyncio.run(self._run(entry, request))

    async def _run(self, entry: TokenModel, request: Request) -> TrainingSample:
        await entry.engine.start()
        sink = RecordingSink()
        await run_request(entry, request, lambda: f"call_{secrets.token_hex(12)}", sink)
        self.events = [event for _, events in sink.batches for event in events]
        export = LedgerExporter(self.ledger)
        (sample,) = [one async for one in export.iter_samples(await export.find("s"))]
        assert isinstance(sample, TrainingSample)
        return sample

    def text(self, mask: int) -> str:
        """Decode the output tokens that the model chose, or those that it did not choose."""
        start = self.sample.turns[0].prompt_end
        pairs = zip(self.sample.ids[start:], self.sample.loss_mask[start:], strict=True)
        return self.model.tokenizer.decode([id for id, chosen in pairs if chosen == mask])


def test_session_and_agent_are_recorded() -> None:
    run = ExportedRun(SHORT)
    assert (run.sample.session, run.sample.agent) == ("s", "a")
    assert run.sample.logprobs is None


def test_forced_end_of_reasoning_is_masked() -> None:
    run = ExportedRun(LONG_REASONING, thinking=Thinking(budget=40))
    assert len(run.engine.requests) == 2
    forced = run.text(0)
    assert forced.strip() == "</think>"
    chosen = run.text(1)
    assert chosen.startswith("<think>I wonder.")
    # The sample still contains the prompt of the second engine request.
    second = run.engine.requests[1].prompt
    assert array("I", run.sample.ids)[: len(second)] == second


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_unrequested_logprobs_are_recorded_and_not_shown(chunk: int) -> None:
    run = ExportedRun(SHORT, keep=True, chunk=chunk)
    assert [request.sampling.logprobs for request in run.engine.requests] == [0]
    assert not [event for event in run.events if isinstance(event, Logprobs)]
    turn = run.sample.turns[0]
    assert run.sample.logprobs is not None
    generated = run.sample.logprobs[turn.prompt_end : turn.end]
    assert generated == [
        -0.5,
        *[-0.25] * (len(generated) - 1),
    ]  # including that of the stop token
    assert set(run.sample.logprobs[: turn.prompt_end]) == {None}


def test_requested_logprobs_are_recorded_and_shown() -> None:
    run = ExportedRun(SHORT, sampling=Sampling(logprobs=1))
    shown = [one for event in run.events if isinstance(event, Logprobs) for one in event.tokens]
    turn = run.sample.turns[0]
    assert len(shown) == turn.end - turn.prompt_end
    assert run.sample.logprobs is not None
    assert run.sample.logprobs[turn.prompt_end :] == [one.logprob for one in shown]


def test_forced_tokens_have_no_logprob() -> None:
    run = ExportedRun(LONG_REASONING, keep=True, thinking=Thinking(budget=40))
    assert run.sample.logprobs is not None
    turn = run.sample.turns[0]
    pairs = zip(run.sample.logprobs, run.sample.loss_mask, strict=True)
    generated = list(pairs)[turn.prompt_end :]
    assert [value is not None for value, _ in generated] == [
        bool(chosen) for _, chosen in generated
    ]
    assert any(not chosen for _, chosen in generated)


def test_logprobs_are_not_requested_by_default() -> None:
    run = ExportedRun(SHORT)
    assert [request.sampling.logprobs for request in run.engine.requests] == [None]


@pytest.mark.parametrize("chunk", [1, 1000])
def test_no_stop_token_is_recorded_after_a_stop_sequence(chunk: int) -> None:
    """The rest of the output, including the stop token, may arrive in the same chunk."""
    run = ExportedRun(SHORT, keep=True, chunk=chunk, sampling=Sampling(stop=(" so",)))
    (turn,) = run.sample.turns
    assert turn.stop is None
    assert turn.finish == "stop_sequence"
    assert run.text(1) == "<think>Hm.</think>It is"
    assert run.sample.logprobs is not None
    assert len(run.sample.logprobs) == len(run.sample.ids)


@pytest.mark.parametrize("given", ["plain", "é 漢字", "x" * 200, "x" * 5000, "lone \ud800 half"])
def test_any_session_name_can_be_stored(given: str) -> None:
    name = normalize_session_name(given)
    assert len(name) <= 200
    assert normalize_session_name(name) == name
    assert name.encode()
    assert (name == given) == (len(given) <= 200 and "\ud800" not in given)
