"""Recovered turns with real weights: exactly the tokens of the engine and those inserted."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from collecting_sink import run_and_collect
from llamacpp_environment import CONTEXT, WEIGHTS, need_weights
from logprob_sessions import RecordingEngine

from dovetail.engines.llamacpp import LlamaCppEngine, LlamaCppOptions
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model, load_model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.recovery import RecoveryPolicy
from dovetail.pipeline.registry import TokenModel
from dovetail.routing.pool import ReplicaPool
from dovetail_model import Fold, Message, Request, Sampling, TextBlock, Turn

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""


@dataclass
class Bench:
    """A model that reasons in every turn, on the embedded engine."""

    runner: asyncio.Runner
    engine: RecordingEngine
    model: Model
    preparer: ChatPreparer

    def execute(self, text: str, policy: RecoveryPolicy, max_tokens: int) -> Message:
        pool = ReplicaPool([self.engine])
        entry = TokenModel(("m",), self.model, self.preparer, pool, recovery=policy)
        sampling = Sampling(temperature=0, max_tokens=max_tokens)
        request = Request("m", (_user(text),), sampling=sampling)
        fold = Fold()
        for event in self.runner.run(run_and_collect(entry, request)):
            fold.add(event)
        return fold.message()

    def next_prompt(self, text: str, message: Message) -> list[int]:
        turns = (_user(text), Turn("assistant", message.blocks), _user("Go on."))
        prepared = self.runner.run(self.preparer.prepare(Request("m", turns)))
        assert prepared.prompt.exact_turns == {1}
        return prepared.prompt.ids.tolist()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    need_weights()
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    model = load_model(WEIGHTS, reasoning_parser="qwen3", custom_template=template)
    options = LlamaCppOptions(slots=1, batch=64, threads=1)
    engine = LlamaCppEngine(WEIGHTS, model.tokenizer, context_length=CONTEXT, options=options)
    preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        yield Bench(runner, RecordingEngine(engine), model, preparer)
        runner.run(engine.stop())


def _user(text: str) -> Turn:
    return Turn("user", (TextBlock(text),))


def test_reasoning_is_closed_and_the_model_continues(bench: Bench) -> None:
    policy = RecoveryPolicy(frozenset({"reasoning"}))
    message = bench.execute("What is the capital of France?", policy, 150)
    first, second = bench.engine.outputs
    assert bench.model.tokenizer.decode(second.prompt).endswith("</think>\n\n")
    generated = first.ids[:-1]  # without the stop token
    assert list(second.prompt[: len(first.prompt) + len(generated)]) == [*first.prompt, *generated]
    whole = [*second.prompt, *second.ids]
    assert bench.next_prompt("What is the capital of France?", message)[: len(whole)] == whole
    assert [block.type for block in message.blocks] == ["reasoning", "text"]


def test_a_loop_ends(bench: Bench) -> None:
    policy = RecoveryPolicy(frozenset({"loop"}), loop_tokens=64)
    text = "Write the word yes, again and again: yes yes yes yes yes yes yes yes yes yes yes yes"
    message = bench.execute(text, policy, 400)
    (output,) = bench.engine.outputs
    assert 64 <= message.usage.output_tokens < 400
    whole = [*output.prompt, *output.ids[: message.usage.output_tokens]]
    prompt = bench.next_prompt(text, message)
    assert prompt[: len(whole)] == whole
    assert "repeated itself" in bench.model.tokenizer.decode(prompt[len(whole) :])
