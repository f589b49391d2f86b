"""The cost of one token between ids and events, counted in calls, not measured in time.

Engines send one token at a time, and the CPU caches are cold for each. The relevant figure is
therefore the number of function calls per token, which must not grow with the output.
"""

import json
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice

import pytest
from real_models import PAIRS, model, require

from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.prompt.prompt import HeadDigests, Prompt
from dovetail_model import Request, ToolSpec

QWEN3 = next(pair for pair in PAIRS if pair.name == "Qwen3")
TOOL = ToolSpec("write", "", {"type": "object", "properties": {"content": {"type": "string"}}})
PROSE = 'The fox (a young one, 3 years old) ran; it\'s gone now. "Where to?" Nobody knows, naïve.\n'
CODE = 'def f(x: str) -> int:\n    """Count."""\n    return len([c for c in x if c != "a"])\n\n'
JSON = '<tool_call>\n{"name": "write", "arguments": {"content": "'
TAGS = "<tool_call>\n<function=write>\n<parameter=content>\n"


@dataclass(frozen=True)
class Case:
    """Output with a first and a repeated text, and the limit of calls per token."""

    id: str
    tool_parser: str
    opening: str
    text: str
    max_calls: float


CASES = [
    Case("text", "hermes", "So", PROSE, 16),
    Case("thought", "hermes", "<think>\nSo", PROSE, 17.5),
    Case("arguments_in_json", "hermes", JSON, json.dumps(CODE)[1:-1], 17),
    Case("arguments_in_tags", "qwen3_coder", TAGS, CODE, 22),
]


@dataclass(frozen=True)
class Cost:
    """The cost of one token: function calls and retained memory blocks."""

    calls: float
    blocks: float


def costs(case: Case, sizes: Sequence[int]) -> list[Cost]:
    """Measure the tokens up to each size, as one output grows."""
    made, ids = _start_generation(case)
    _feed(made, ids, 2000)  # the first tokens fill the shared caches
    made, ids = _start_generation(case)
    found, done = [], 0
    for size in sizes:
        found.append(_feed(made, ids, size - done))
        done = size
    return found


def _start_generation(case: Case) -> tuple[Generation, "cycle[int]"]:
    require(QWEN3)
    real = model(QWEN3)
    spec = OutputSpec(real.tokenizer, real.stop_ids, case.tool_parser, "qwen3", "m")
    head = HeadDigests(b"s", b"t", b"w", b"head")
    prompt = Prompt(array("I", [1]), "cold", False, head, RecognizedHistory(chain=b"c" * 16))
    numbers = count()
    made = Generation(
        spec,
        prompt,
        TurnOwner("t", b"key"),
        Request("m", tools=(TOOL,)),
        entry_id="e",
        new_call_id=lambda: f"call_{next(numbers)}",
    )
    for id in real.tokenizer.encode(case.opening):
        made.feed([id])
    return made, cycle(real.tokenizer.encode_plain(case.text))


def _feed(made: Generation, ids: "cycle[int]", size: int) -> Cost:
    calls = 0

    def hook(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    fed = [[id] for id in islice(ids, size)]
    before = sys.getallocatedblocks()
    sys.setprofile(hook)
    try:
        for one in fed:
            made.feed(one)
    finally:
        sys.setprofile(None)
    return Cost(calls / size, (sys.getallocatedblocks() - before) / size)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_token_costs_a_few_calls(case: Case) -> None:
    (cost,) = costs(case, [2000])
    assert cost.calls < case.max_calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_token_cost_does_not_grow_with_the_output(case: Case) -> None:
    _, short, _, long = costs(case, [1000, 2000, 84_000, 85_000])
    assert long.calls < 1.1 * short.calls
    assert long.blocks < 0.1, "what was said is kept in long strings, not token by token"
