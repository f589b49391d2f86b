"""The self-test passes for a template with matching parsers, and reports mismatches."""

from pathlib import Path
from typing import Any

import pytest
from real_models import TEMPLATES

from dovetail.models.files import CHATML_TEMPLATE
from dovetail.models.self_test import SelfTestReport, TemplatePairing, run_self_test
from dovetail.models.template_probe import probe_template
from dovetail.prompt.template import ChatTemplate
from dovetail_parsers import resolve_family

PATHS = sorted(TEMPLATES.glob("*.jinja"))
at_hand = pytest.mark.skipif(not PATHS, reason="no folder of chat templates at hand")
SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
THINKING: dict[str, Any] = {"enable_thinking": True, "functions": "[]", "datetime": "noon"}

#: Templates without matching parsers.
EXCUSED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "the prompt's last words are not kept in history",
    "meetkai-functionary-medium-v3.1": "a format that none of the parser names means",
    "meetkai-functionary-medium-v3.2": "a format that none of the parser names means",
}


def _tested(name: str, tool: str | None, reasoning: str | None) -> SelfTestReport:
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), SPECIALS)
    return run_self_test(
        TemplatePairing(template, probe_template(template, THINKING), tool, reasoning, THINKING)
    )


@at_hand
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_parsers_of_the_family_pass(path: Path) -> None:
    family = resolve_family(path.read_text())
    tool = family.tool_parser if family else None
    result = _tested(path.stem, tool or "hermes", family.reasoning_parser if family else None)
    assert result.ok == (path.stem not in EXCUSED), result
    assert not result.notes


@at_hand
@pytest.mark.parametrize(
    ("name", "tool", "reasoning", "lost", "leaked"),
    [
        ("Qwen-Qwen3-0.6B", "mistral", "qwen3", "call", "text"),
        ("Qwen-Qwen3-0.6B", "qwen3_coder", "qwen3", "call", "text"),
        ("Qwen-Qwen3-0.6B", "hermes", "mistral", "reasoning", "text"),
        ("openai-gpt-oss-120b", "hermes", None, "call", "text"),
        ("GLM-4.7-Flash", "hermes", "glm45", "call", "text"),
    ],
)
def test_mismatched_parsers_are_reported(
    name: str, tool: str, reasoning: str | None, lost: str, leaked: str
) -> None:
    result = _tested(name, tool, reasoning)
    assert not result.ok
    assert any(item.startswith(lost) for outcome in result.outcomes for item in outcome.lost)
    assert any(item.startswith(leaked) for outcome in result.outcomes for item in outcome.leaked)


@at_hand
def test_unparsed_reasoning_is_noted() -> None:
    assert "no reasoning parser" in _tested("MiniMax-M2", "minimax_m2", None).notes[0]
    assert "does not recognize" in _tested("GLM-4.7-Flash", "glm47", "mistral").notes[0]


@at_hand
def test_rejection_is_reported() -> None:
    outcomes = _tested("openai-gpt-oss-120b", "harmony", "gpt_oss").outcomes
    assert [o.shape for o in outcomes if o.refused] == ["text and call"]


def test_a_template_without_tools_passes_in_hermes_form() -> None:
    template = ChatTemplate(CHATML_TEMPLATE)
    result = run_self_test(TemplatePairing(template, probe_template(template), "hermes"))
    assert result.ok
    assert {outcome.shape for outcome in result.outcomes} >= {"answer", "call", "two calls"}
