"""Prompts put together turn by turn, beside the template's own rendering of the whole."""

from functools import cache
from typing import Any

import pytest
from ledger_entries import turn as entry
from splicing import THINKING, at_hand, chat_template, controls_of, facts_of, parsers_of

from dovetail.ledger.entry import pack
from dovetail.ledger.recall import Recalled
from dovetail.rendering.renderer import Renderer
from dovetail_model import Request, TextBlock, ToolCallBlock, ToolResultBlock, ToolSpec, Turn
from dovetail_tokenizers import ByteTokenizer

WHAT = {"type": "string", "description": "What."}
TOOL = ToolSpec("f", "Does.", {"type": "object", "properties": {"x": WHAT}})


@cache
def _renderer(name: str) -> tuple[Renderer, ByteTokenizer]:
    ends, controls = controls_of(name)
    tokenizer = ByteTokenizer(controls)
    tool, reasoning = parsers_of(name)
    made = Renderer(
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


SAID = _turn("assistant", TextBlock("That was it."))
SESSION = (
    _turn("user", TextBlock("Go.")),
    *_loop("a", "one"),
    *_loop("b", "two"),
    SAID,
    _turn("user", TextBlock("And on.")),
    *_loop("c", "three"),
    *_loop("d", "four"),
)
PLACE = SESSION.index(SAID)
#: Some that number calls through the history, and some that do not.
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
def test_an_answer_that_is_known_among_turns_that_are_not(name: str) -> None:
    """Only the answer is spliced; what is behind it is rendered, with its ids and numbers."""
    renderer, tokenizer = _renderer(name)
    request = Request("m", SESSION, (TextBlock("Be brief."),), (TOOL,))
    natural = renderer.render(request, Recalled(), THINKING)
    known = entry("e", generated=pack(tokenizer.encode_plain("Ours.")))
    spliced = renderer.render(request, Recalled(known={PLACE: known}), THINKING)
    assert (spliced.how, set(spliced.exact), spliced.notes) == ("iterated", {PLACE}, ())
    _, found, suffix = tokenizer.decode(spliced.ids).partition("Ours.")
    assert found
    assert "Of d." in suffix
    behind = tokenizer.decode(natural.ids).partition("That was it.")[2]
    assert behind.endswith(suffix)
    assert "And on." not in behind.removesuffix(suffix)
