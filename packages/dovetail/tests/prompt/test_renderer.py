"""Which earlier turns a renderer preserves, and its head digests."""

from dataclasses import dataclass

import pytest

from dovetail.models.files import CHATML_TEMPLATE
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.template import ChatTemplate, TemplateProfile
from dovetail_model import ReasoningBlock, Request, TextBlock, ToolCallBlock, ToolSpec, Turn
from dovetail_tokenizers import ByteTokenizer

TOKENIZER = ByteTokenizer(["<|im_start|>", "<|im_end|>", "<think>", "</think>"])
STRIPS = CHATML_TEMPLATE.replace(
    "message['content'] or ''", "message['content'].split('</think>')[-1]"
)
FIELDS = ("reasoning_content",)


def _renderer(
    facts: TemplateProfile,
    *,
    template: str = CHATML_TEMPLATE,
    reasoning_parser: str | None = "qwen3",
) -> PromptRenderer:
    return PromptRenderer(
        ChatTemplate(template),
        facts,
        TOKENIZER,
        stops=["<|im_end|>"],
        tool_parser="hermes",
        reasoning_parser=reasoning_parser,
    )


@dataclass(frozen=True)
class Case:
    """Properties of a template, and whether it preserves turns with and without tools."""

    facts: TemplateProfile
    with_tools: bool
    without: bool
    template: str = CHATML_TEMPLATE
    reasoning_parser: str | None = "qwen3"


CASES = {
    "rewrites any history": Case(
        TemplateProfile(keeps_plain=False, keeps_at_user=True), False, False
    ),
    "has no thoughts": Case(TemplateProfile(), True, True, reasoning_parser=None),
    "has no field for thoughts": Case(TemplateProfile(), True, True),
    "takes them out of the text": Case(TemplateProfile(), False, False, STRIPS),
    "keeps": Case(
        TemplateProfile(reasoning_fields=FIELDS, keeps_at_user=True, keeps_without_tools=True),
        True,
        True,
    ),
    "keeps with tools": Case(
        TemplateProfile(reasoning_fields=FIELDS, keeps_at_user=True), True, False
    ),
    "keeps without": Case(
        TemplateProfile(reasoning_fields=FIELDS, keeps_without_tools=True), False, True
    ),
    "drops": Case(TemplateProfile(reasoning_fields=FIELDS, keeps_in_loop=True), False, False),
    "drops parts": Case(TemplateProfile(thinking_parts=True), False, False),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_keeps_history(case: Case) -> None:
    renderer = _renderer(case.facts, template=case.template, reasoning_parser=case.reasoning_parser)
    assert (renderer.keeps_history(True), renderer.keeps_history(False)) == (
        case.with_tools,
        case.without,
    )


USER, SYSTEM = Turn("user", (TextBlock("Go."),)), Turn("system", (TextBlock("Mind."),))
ASSISTANT, RESULT = Turn("assistant", (TextBlock("Yes."),)), Turn("tool", ())


@pytest.mark.parametrize(
    ("turns", "start"),
    [
        ((), 0),
        ((USER,), 0),
        ((USER, ASSISTANT, RESULT, ASSISTANT), 0),
        ((USER, ASSISTANT, USER), 2),
        ((USER, ASSISTANT, USER, ASSISTANT, RESULT), 2),
        ((USER, ASSISTANT, SYSTEM), 2),
        ((ASSISTANT, RESULT), 0),
    ],
)
def test_replay_start(turns: tuple[Turn, ...], start: int) -> None:
    dropping = _renderer(TemplateProfile(reasoning_fields=FIELDS))
    assert dropping.replay_start(turns, True) == start
    keeps_all = _renderer(TemplateProfile(reasoning_fields=FIELDS, keeps_at_user=True))
    assert keeps_all.replay_start(turns, True) == 0


def test_head_digests_depend_on_content() -> None:
    """Objects are freed and their addresses are reused."""
    renderer = _renderer(TemplateProfile())
    seen = {
        renderer.digest_head(Request("m", (), (TextBlock(str(n)),), (ToolSpec(f"f{n}"),)), {})
        for n in range(3000)
    }
    assert len({head.system for head in seen}) == len({head.tools for head in seen}) == 3000
    again = renderer.digest_head(Request("m", (), (TextBlock("7"),), (ToolSpec("f7"),)), {})
    assert again in seen


def test_only_switches_read_by_the_template_change_the_head() -> None:
    renderer = _renderer(TemplateProfile(), template=CHATML_TEMPLATE + "{{ mood }}")
    plain = renderer.digest_head(Request("m"), {})
    assert renderer.digest_head(Request("m"), {"unread": 1}) == plain
    moody = renderer.digest_head(Request("m"), {"mood": "good"})
    assert (moody.system, moody.tools) == (plain.system, plain.tools)
    assert moody.switches != plain.switches
    assert moody.whole != plain.whole


def test_rebuilt_blocks_are_escaped() -> None:
    renderer = _renderer(TemplateProfile())
    blocks = (TextBlock("A <|im_end|> B"), ToolCallBlock("", "f", '{"x": "<|im_end|>"}'))
    ids = renderer.encode_blocks(blocks, (), [], "")
    assert ids is not None
    assert TOKENIZER.controls["<|im_end|>"] not in ids
    assert TOKENIZER.decode(ids).count("<|im_end|>") == 2
    alone = PromptRenderer(ChatTemplate(CHATML_TEMPLATE), TemplateProfile(), TOKENIZER)
    assert alone.encode_blocks((ReasoningBlock("Hm."),), (), [], "") is None


def test_toolsets_are_cached_within_limits() -> None:
    renderer = _renderer(TemplateProfile())
    turns = (Turn("user", (TextBlock("Go."),)),)

    def count_cached(description: str) -> int:
        tools = (ToolSpec("f", description, {"type": "object"}),)
        request = Request("m", turns, tools=tools)
        before = renderer.digest_head(request, {})
        assert renderer.digest_head(request, {}) == before
        return len(renderer._toolsets)

    assert count_cached("x" * (2 << 20)) == 0  # clients may send very large tools
    assert [count_cached(str(at)) for at in range(3)] == [1, 2, 3]
    large = [count_cached(f"{at} " + "x" * (1 << 19)) for at in range(100)]
    assert max(large) < 70
    assert renderer._toolsets_bytes <= 32 << 20
