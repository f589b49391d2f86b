"""Generated turns are a prefix of the next prompt, for every model and harness."""

import re
from pathlib import Path

import pytest
from agent_clients import AGENTS
from exactness_matrix import Policy, Row, measure, policy_of
from exactness_page import page
from long_session import LONG_PAIR, figures
from real_models import PAIRS, Pair, available, model, require

PAGE = Path(__file__).parents[4] / "docs" / "exactness.md"
EVERY_PAIR = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)

# Written by hand from the templates. All others preserve everything.
POLICIES: dict[str, Policy] = {
    "Qwen3": "drops at a user turn",
    "Qwen3.5": "drops at a user turn",
    "DeepSeek-V3.1": "drops at a user turn",
    "GLM-4.7": "drops at a user turn",
    "Kimi-K2-Thinking": "drops at the answer",
    "gpt-oss": "drops at the answer",
    "Mistral-Nemo": "moves the tools",
    "Gemma-4": "drops at a user turn",
    "MiniMax-M2": "drops at a user turn",
}


@EVERY_PAIR
def test_the_probed_policy_matches_the_template(pair: Pair) -> None:
    require(pair)
    assert policy_of(model(pair)) == POLICIES.get(pair.name, "keeps")


@EVERY_PAIR
def test_every_preserved_turn_is_exact(pair: Pair) -> None:
    wrong = {c.agent: [s for s in c.preserved if not s.exact or s.notes] for c in _row(pair).cells}
    assert wrong == {kind.name: [] for kind in AGENTS}


@EVERY_PAIR
def test_every_step_of_a_tool_loop_extends_the_prompt(pair: Pair) -> None:
    for cell in _row(pair).cells:
        tool = [step.origin for step in cell.steps if step.follower == "tool"]
        assert len(tool) >= 8
        assert set(tool) == {"grown"}, cell.agent


@EVERY_PAIR
def test_a_turn_is_followed_by_the_token_that_ended_it(pair: Pair) -> None:
    for cell in _row(pair).cells:
        assert all(step.ends_well for step in cell.steps), cell.agent


@EVERY_PAIR
def test_only_the_last_loop_is_prefilled_again_if_the_template_drops_reasoning(pair: Pair) -> None:
    for cell in _row(pair).cells:
        assert all(step.keeps_earlier for step in cell.steps if not step.preserved), cell.agent


@EVERY_PAIR
def test_prompts_equal_a_cold_render_if_the_template_drops_reasoning(pair: Pair) -> None:
    for cell in _row(pair).cells:
        assert all(step.as_cold for step in cell.steps if not step.preserved), cell.agent


@EVERY_PAIR
def test_no_preserved_turn_is_prefilled_again(pair: Pair) -> None:
    preserved = [step for cell in _row(pair).cells for step in cell.preserved]
    assert sum(step.reprefilled for step in preserved) == 0
    assert (
        sum(step.reprefilled_off for step in preserved) > 0
    )  # without the ledger, turns would be prefilled again


def test_the_document_has_a_cell_for_every_model_and_agent() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    head = next(line for line in lines if line.startswith("| model | at a user message"))
    assert all(f"{kind.name} ({kind.codec.name})" in head for kind in AGENTS)
    for pair in PAIRS:
        name = re.escape(pair.name) + (r"\*" if pair.surrogate else "")
        found = [line for line in lines if re.match(rf"\| {name} \|", line)]
        cells = [re.findall(r"(\d+)/(\d+)", line) for line in found]
        assert len(cells[0]) == len(AGENTS), pair.name
        assert all(exact == preserved for exact, preserved in cells[0]), pair.name


def test_the_document_is_current() -> None:
    if len(available()) < len(PAIRS):
        pytest.skip("not all models are at hand: make tokenizers, DOVETAIL_TEMPLATES")
    made = page([measure(pair) for pair in PAIRS], figures(LONG_PAIR))
    assert PAGE.read_text(encoding="utf-8") == made, "run `make docs`"


def _row(pair: Pair) -> Row:
    require(pair)
    return measure(pair)
