"""Rendering from a user turn on: which templates support it, and that it equals a full render."""

from typing import Any

import pytest
from splice_cases import NAMES, THINKING, at_hand, chat_template, facts_of, resumption_of

from dovetail.prompt.messages import MessageBuilder, ToolNames, format_tools
from dovetail.prompt.partial_render import PartialRenderer
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail_model import ReasoningBlock, TextBlock, ToolCallBlock, ToolResultBlock, ToolSpec, Turn

POSSIBLE = [
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "GLM-4.6",
    "GLM-4.7-Flash",
    "MiniMax-M2",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "Qwen-QwQ-32B",
    "StepFun3.5-Flash",
    "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-V3.2",
    "google-gemma-4-31B-it",
    "openai-gpt-oss-120b",
    "openbmb-MiniCPM5-1B",
    "upstage-Solar-Open-100B",
    "LFM2.5-8B-A1B",
    "Reka-Edge",
]
#: Templates that number calls across the history or reorder it.
IMPOSSIBLE = [
    "Kimi-K2-Thinking",
    "Cohere2MoE",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
]
#: A bug in these templates: they count positions wrong if there is a system message. They preserve
#: earlier turns, so partial rendering is never used for them.
EXCUSED = {"Bielik-11B-v3.0-Instruct"}
SWITCHES = {
    "as it is": {},
    "thinking": {"enable_thinking": True, "thinking": True},
    "not thinking": {"enable_thinking": False, "thinking": False},
}
NEEDED = {"functions": "[]", "datetime": "noon"}


@at_hand
@pytest.mark.parametrize("name", POSSIBLE)
def test_partial_rendering_is_supported(name: str) -> None:
    assert resumption_of(name).supported


@at_hand
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_partial_rendering_is_not_supported(name: str) -> None:
    assert not resumption_of(name).supported


def _turn(role: Any, *blocks: Any) -> Turn:
    return Turn(role, blocks)


def _result(id: str) -> ToolResultBlock:
    return ToolResultBlock(id, (TextBlock(f"Of {id}."),))


FIRST = (
    _turn("user", TextBlock("One?")),
    _turn(
        "assistant",
        ReasoningBlock("Hm."),
        TextBlock("Look."),
        ToolCallBlock("a", "f", '{"x": "1"}'),
    ),
    _turn("tool", _result("a")),
    _turn("assistant", ReasoningBlock("Oh."), TextBlock("It is one.")),
)
SECOND = (
    _turn("user", TextBlock("Two?")),
    _turn("assistant", ReasoningBlock("So."), ToolCallBlock("b", "f", '{"x": "2"}')),
    _turn("tool", _result("b")),
    _turn("assistant", ToolCallBlock("c", "f", "{}"), ToolCallBlock("d", "f", "{}")),
    _turn("tool", _result("c"), _result("d")),
    _turn("assistant", TextBlock("It is two.")),
)
LAST = _turn("user", TextBlock("Three?"))
WHAT = {"type": "string", "description": "What."}
TOOLS = format_tools([ToolSpec("f", "Does.", {"type": "object", "properties": {"x": WHAT}})], str)


@at_hand
@pytest.mark.parametrize("how", SWITCHES)
@pytest.mark.parametrize("name", [n for n in NAMES if n not in EXCUSED])
def test_a_partial_render_equals_a_full_render(name: str, how: str) -> None:
    resumption, template, facts = resumption_of(name), chat_template(name), facts_of(name)
    if not resumption.supported:
        return
    switches = {**NEEDED, **SWITCHES[how]}
    whole, known = (
        template.render(
            MessageBuilder(facts, str, ToolNames(())).build((TextBlock("Be brief."),), turns),
            TOOLS if facts.renders_tools else (),
            switches=switches,
        )
        for turns in ((*FIRST, *SECOND, LAST), (*FIRST, SECOND[0]))
    )
    later = MessageBuilder(facts, str, ToolNames(()), calls_before=1)
    messages = later.adapt([m for turn in (*SECOND[1:], LAST) for m in later.build_turn(turn)])
    opening = resumption.render_after_user([], True, switches)
    rest = resumption.render_after_user(messages, True, switches)
    assert opening
    assert rest is not None
    assert known.endswith(opening)
    assert known.removesuffix(opening) + rest == whole


@pytest.mark.parametrize(
    ("template", "possible"),
    [
        ("{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}<assistant>", True),
        (
            "{% for m in messages %}{{ loop.index }}<{{ m.role }}>{{ m.content }}|{% endfor %}<>",
            False,
        ),
        (
            "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.revindex<7 }}|{% endfor %}>",
            False,
        ),
        ("{% for m in messages %}<{{ m.role }}>{{ m.content[:3] }}|{% endfor %}<assistant>", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no') }}", False),
    ],
    ids=["plain", "places", "the first are lost", "the text is cut", "no opening", "refuses"],
)
def test_artificial_templates(template: str, possible: bool) -> None:
    assert PartialRenderer(ChatTemplate(template), TemplateProfile()).supported is possible


def test_support_is_also_probed_with_reasoning() -> None:
    """Reasoning is preserved from the fourth message on, which partial rendering would shift."""
    text = (
        "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content if loop.index > 3 }}"
        "{{ m.content }}|{% endfor %}<assistant>"
    )
    assert PartialRenderer(ChatTemplate(text), TemplateProfile()).supported
    thinking = TemplateProfile(reasoning_fields=("reasoning_content",))
    assert not PartialRenderer(ChatTemplate(text), thinking).supported


def test_a_template_error_gives_no_rendering() -> None:
    text = "{% if tools %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}>"
    resumption = PartialRenderer(ChatTemplate(text), TemplateProfile())
    assert resumption.render_after_user([], True, THINKING) is None
    assert resumption.render_after_user([], False, THINKING) == ">"
