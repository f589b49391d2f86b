"""The probe finds the properties of real templates, which are listed by hand."""

from pathlib import Path
from typing import Any

import pytest
from real_models import TEMPLATES

from dovetail.models.files import CHATML_TEMPLATE
from dovetail.models.template_probe import probe_template
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile

PATHS = sorted(TEMPLATES.glob("*.jinja"))
at_hand = pytest.mark.skipif(not PATHS, reason="no folder of chat templates at hand")

SPECIALS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
#: The defaults with a reasoning parser. One template requires the last two variables.
THINKING: dict[str, Any] = {"enable_thinking": True, "functions": "[]", "datetime": "noon"}


def _probed(name: str, switches: dict[str, Any] = THINKING) -> TemplateProfile:
    return probe_template(
        ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), SPECIALS), switches
    )


RC = ("reasoning_content",)
DROPS_AT_USER = {"keeps_in_loop": True, "keeps_at_user": False, "drops_at_final": False}
DROPS_AT_FINAL = {"keeps_in_loop": True, "keeps_at_user": False, "drops_at_final": True}
NEVER = {"keeps_in_loop": False, "keeps_at_user": False}
ALWAYS = {"keeps_in_loop": True, "keeps_at_user": True, "keeps_without_tools": True}
ONE_CALL = {"many_calls": False}

KNOWN: dict[str, dict[str, Any]] = {
    "Qwen-Qwen3-0.6B": {
        **DROPS_AT_USER,
        "reasoning_fields": RC,
        "keeps_plain": False,
        "null_content": False,
        "reasoning_opener": "",
        "keep_switches": {},
        "thinking_switches": {True: {"enable_thinking": True}, False: {"enable_thinking": False}},
    },
    "Qwen3.5-4B": {
        **DROPS_AT_USER,
        "reasoning_opener": "<think>\n",
        "system_inside": "refused",
        "trims": True,
        "keeps_plain": False,
    },
    "Qwen3-Coder": {"reasoning_fields": (), "arguments": "object", "keeps_plain": True},
    "Qwen-QwQ-32B": {**NEVER, "reasoning_fields": (), "reasoning_opener": "<think>\n"},
    "GLM-4.7-Flash": {
        **DROPS_AT_USER,
        "reasoning_opener": "<think>",
        "keep_switches": {"clear_thinking": False},
        "null_content": False,
        "trims": True,
    },
    "Kimi-K2-Thinking": {**DROPS_AT_FINAL, "reasoning_fields": RC},
    "moonshotai-Kimi-K2": {"call_ids": "kimi", "shows_ids": True},
    "Kimi-K3": {
        **ALWAYS,
        "reasoning_opener": "<|open|>think<|sep|>",
        "effort_switch": "thinking_effort",
        "efforts": ("low", "high", "max"),
    },
    "openai-gpt-oss-120b": {
        **DROPS_AT_FINAL,
        **ONE_CALL,
        "reasoning_fields": ("thinking",),
        "null_content": False,
        "system_inside": "dropped",
        "developer": "kept",
        "effort_switch": "reasoning_effort",
        "efforts": ("low", "medium", "high"),
    },
    "deepseek-ai-DeepSeek-V3.1": {
        **NEVER,
        "reasoning_opener": "<think>",
        "renders_tools": False,
        "system_inside": "dropped",
    },
    "deepseek-ai-DeepSeek-V4": {
        "keeps_in_loop": True,
        "keeps_at_user": True,
        "keeps_without_tools": False,
        "reasoning_opener": "<think>",
    },
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": {
        **NEVER,
        "renders_calls": True,
        "wants_null": True,
        "arguments": "string",
        "renders_tools": False,
    },
    "MiniMax-M2": {**DROPS_AT_USER, "reasoning_opener": "<think>\n", "null_content": False},
    "MiniMax-M3": {
        **ALWAYS,
        "thinking_switches": {
            True: {"thinking_mode": "enabled"},
            False: {"thinking_mode": "disabled"},
        },
    },
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": {
        **DROPS_AT_USER,
        "keep_switches": {"truncate_history_thinking": False},
        "reasoning_opener": "<think>\n",
    },
    "LFM2.5-8B-A1B": {
        **DROPS_AT_USER,
        "reasoning_fields": ("thinking",),
        "keep_switches": {"preserve_thinking": True},
    },
    "upstage-Solar-Open-100B": {
        **DROPS_AT_USER,
        "keep_switches": {"think_render_option": "all"},
        "text_with_calls": False,
        "shows_ids": True,
        "call_ids": "any",
    },
    "tencent-Hy3": {
        "keeps_at_user": True,
        "efforts": ("low", "high"),
        "thinking_switches": {
            True: {"reasoning_effort": "high"},
            False: {"reasoning_effort": "no_think"},
        },
    },
    "ByteDance-Seed-OSS": {**ALWAYS, "budget_switch": "thinking_budget", "arguments": "object"},
    "mistralai-Ministral-3-14B-Reasoning-2512": {
        **ALWAYS,
        "reasoning_fields": (),
        "thinking_parts": True,
        "consecutive_users": False,
    },
    "mistralai-Mistral-Nemo-Instruct-2407": {
        "call_ids": "nine",
        "keeps_plain": False,
        "system_inside": "refused",
        "text_with_calls": False,
    },
    "meta-llama-Llama-3.1-8B-Instruct": {
        **ONE_CALL,
        "reasoning_fields": (),
        "text_with_calls": False,
        "trims": True,
        "keeps_plain": True,
    },
    "google-gemma-2-2b-it": {
        "renders_tools": False,
        "renders_calls": False,
        "renders_results": False,
        "system": "refused",
        "consecutive_users": False,
    },
    "google-gemma-4-31B-it": {**DROPS_AT_USER, "trims": True, "interleaves": False},
    "muse-glimmer": {**ALWAYS, "interleaves": True, "effort_switch": "reasoning_strength"},
    "llama-cpp-deepseek-r1": {"renders_tools": False, "renders_calls": True},
    "microsoft-Phi-3.5-mini-instruct": {"renders_tools": False, "renders_results": False},
    "CohereForAI-c4ai-command-r-plus-tool_use": {"keeps_prompt": False, "reasoning_fields": ()},
    "meetkai-functionary-medium-v3.2": {"arguments": "string"},
}


@at_hand
@pytest.mark.parametrize("name", KNOWN)
def test_known_profiles(name: str) -> None:
    facts = _probed(name)
    assert {fact: getattr(facts, fact) for fact in KNOWN[name]} == KNOWN[name]


@at_hand
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_template_can_be_probed(path: Path) -> None:
    template = ChatTemplate(path.read_text(), SPECIALS)
    facts = probe_template(template, THINKING)
    assert facts == probe_template(template, THINKING)
    off = facts.thinking_switches.get(False, {})
    assert not probe_template(template, {**THINKING, **off}).reasoning_opener or not off


@at_hand
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_reasoning_opener_ends_the_prompt(path: Path) -> None:
    template = ChatTemplate(path.read_text(), SPECIALS)
    opener = probe_template(template, THINKING).reasoning_opener
    if opener and "tool_use" not in path.stem:
        assert template.render([{"role": "user", "content": "x"}], switches=THINKING).endswith(
            opener
        )


@at_hand
def test_a_keep_switch_preserves_reasoning() -> None:
    for path in PATHS:
        template = ChatTemplate(path.read_text(), SPECIALS)
        switches = probe_template(template, THINKING).keep_switches
        assert not switches or probe_template(template, {**THINKING, **switches}).keeps_at_user, (
            path.stem
        )


@at_hand
def test_the_profile_depends_on_the_switches() -> None:
    assert not _probed("deepseek-ai-DeepSeek-V4", {}).keeps_in_loop
    profile = _probed("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"truncate_history_thinking": False})
    assert profile.keeps_at_user


def test_content_in_parts_only() -> None:
    text = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}\n{% endfor %}"
    facts = probe_template(ChatTemplate(text))
    assert facts.content == "parts"
    assert facts.warnings


def test_chatml() -> None:
    facts = probe_template(ChatTemplate(CHATML_TEMPLATE))
    assert (facts.system, facts.developer, facts.keeps_plain) == ("kept", "kept", True)
    assert (facts.renders_tools, facts.renders_calls) == (False, False)
    assert facts.renders_results
    assert facts.null_content


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ raise_exception('never') }}", "never"),
        ("{{ undefined_thing.field }}", "undefined_thing"),
        ("nothing of it", "does not render"),
    ],
)
def test_a_template_that_renders_no_message_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(RenderError, match=reason):
        probe_template(ChatTemplate(text))
