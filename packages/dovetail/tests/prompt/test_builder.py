"""Prompts built turn by turn, compared with the rendering of the template."""

from array import array
from functools import cache
from typing import Any

import pytest
from ledger_entries import turn as entry
from splice_cases import THINKING, at_hand, chat_template, controls_of, facts_of, parsers_of

from dovetail.ledger.entry import pack_ids
from dovetail.ledger.recognized_history import RecognizedHistory
from dovetail.ledger.restoration import FINISH_REBUILT
from dovetail.models.files import CHATML_TEMPLATE
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail_model import Request, TextBlock, ToolCallBlock, ToolResultBlock, ToolSpec, Turn
from dovetail_tokenizers import ByteTokenizer

WHAT = {"type": "string", "description": "What."}
TOOL = ToolSpec("f", "Does.", {"type": "object", "properties": {"x": WHAT}})


@cache
def _renderer(name: str) -> tuple[PromptRenderer, ByteTokenizer]:
    ends, controls = controls_of(name)
    tokenizer = ByteTokenizer(controls)
    tool, reasoning = parsers_of(name)
    made = PromptRenderer(
        chat_template(name),
        facts_of(name),
        tokenizer,
        stops=ends,
        tool_parser=tool,
        reasoning_parser=reasoning,
        switches=THINKING,
    )
    return made, tokenizer


def _turn(role: Any, *blocks: Any) -> Turn:
    return Turn(role, blocks)


def _loop(id: str, argument: str) -> tuple[Turn, Turn]:
    called = _turn("assistant", ToolCallBlock(id, "f", f'{{"x": "{argument}"}}'))
    return called, _turn("tool", ToolResultBlock(id, (TextBlock(f"Of {id}."),)))


TEXT_TURN = _turn("assistant", TextBlock("That was it."))
SESSION = (
    _turn("user", TextBlock("Go.")),
    *_loop("a", "one"),
    *_loop("b", "two"),
    TEXT_TURN,
    _turn("user", TextBlock("And on.")),
    *_loop("c", "three"),
    *_loop("d", "four"),
)
PLACE = SESSION.index(TEXT_TURN)
#: Templates that number calls across the history, and others.
TEMPLATES = [
    "Kimi-K2-Instruct",
    "Cohere2MoE",
    "Kimi-K3",
    "MiniMax-M3",
    "deepseek-ai-DeepSeek-V4",
    "muse-glimmer",
    "Qwen3-Coder",
    "Qwen-Qwen2.5-7B-Instruct",
    "meta-llama-Llama-3.1-8B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "unsloth-mistral-Devstral-Small-2507",
    "ByteDance-Seed-OSS",
    "tencent-Hy3",
    "google-gemma-2-2b-it",
]


@at_hand
@pytest.mark.parametrize("name", TEMPLATES)
def test_known_turn_among_unknown_turns(name: str) -> None:
    """Only the known turn is spliced; the messages after it are rendered with numbered ids."""
    renderer, tokenizer = _renderer(name)
    request = Request("m", SESSION, (TextBlock("Be brief."),), (TOOL,))
    natural = renderer.render(request, RecognizedHistory(), THINKING)
    known = entry("e", generated=pack_ids(tokenizer.encode_plain("Ours.")))
    spliced = renderer.render(request, RecognizedHistory(entries={PLACE: known}), THINKING)
    assert (spliced.origin, set(spliced.exact_turns), spliced.notes) == ("iterated", {PLACE}, ())
    _, found, suffix = tokenizer.decode(spliced.ids).partition("Ours.")
    assert found
    assert "Of d." in suffix
    behind = tokenizer.decode(natural.ids).partition("That was it.")[2]
    assert behind.endswith(suffix)
    assert "And on." not in behind.removesuffix(suffix)


@at_hand
def test_a_turn_with_a_rebuilt_end_is_not_exact() -> None:
    renderer, tokenizer = _renderer("Qwen-Qwen2.5-7B-Instruct")
    request = Request("m", SESSION, (), (TOOL,))
    ours = pack_ids(tokenizer.encode_plain("Ours."))
    for finish, exact, written in (("stop", {PLACE}, set()), (FINISH_REBUILT, set(), {PLACE})):
        known = {PLACE: entry("e", generated=ours, finish=finish)}
        made = renderer.render(request, RecognizedHistory(entries=known), THINKING)
        assert "Ours." in tokenizer.decode(made.ids)
        assert (set(made.exact_turns), set(made.rewritten_turns)) == (exact, written)


@at_hand
def test_a_loop_is_resumed_only_after_a_matching_prompt_end() -> None:
    """Qwen3 drops the reasoning of a loop at a user turn: only that loop is rendered."""
    renderer, tokenizer = _renderer("Qwen-Qwen3-0.6B")
    last_user = _turn("user", TextBlock("Last."))
    request = Request("m", (*SESSION, last_user), (), (TOOL,))
    at = PLACE + 2  # the call after the second question
    natural = renderer.render(request, RecognizedHistory(), THINKING)
    before = renderer.render(Request("m", SESSION[:at], (), (TOOL,)), RecognizedHistory(), THINKING)
    resumed = renderer.render(
        request, RecognizedHistory(base_prompt=(at, before.ids), call_count=2), THINKING
    )
    assert (resumed.origin, resumed.ids) == ("resumed", natural.ids)
    assert 0 < resumed.reused_tokens < len(before.ids)
    other = before.ids + array("I", tokenizer.encode_plain("<thought>"))
    whole = renderer.render(
        request, RecognizedHistory(base_prompt=(at, other), call_count=2), THINKING
    )
    assert (whole.origin, whole.ids, whole.reused_tokens) == ("cold", natural.ids, 0)


@at_hand
def test_the_template_renders_a_turn_that_cannot_be_spliced() -> None:
    """If the template renders another text than at load, this is noted and all turns remain."""
    renderer, tokenizer = _renderer("Qwen-Qwen2.5-7B-Instruct")
    broken = ChatTemplate(CHATML_TEMPLATE.replace("<|im_end|>", "{{ odd }}<|im_end|>"))
    renderer = PromptRenderer(broken, TemplateProfile(), tokenizer, stops=["<|im_end|>"])
    known = {PLACE: entry("e", generated=pack_ids(tokenizer.encode_plain("Ours.")))}
    request = Request("m", SESSION)
    even = renderer.render(request, RecognizedHistory(entries=known), {})
    assert (set(even.exact_turns), even.notes) == ({PLACE}, ())
    odd = renderer.render(request, RecognizedHistory(entries=known), {"odd": "?"})
    assert (odd.origin, set(odd.exact_turns), odd.notes) == ("cold", set(), ("splice_failed",))
    assert "That was it.?<|im_end|>" in tokenizer.decode(odd.ids)
