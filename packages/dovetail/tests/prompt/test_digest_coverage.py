"""Digests cover what templates show: histories with equal digests have equal prompts."""

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from splice_cases import NAMES, THINKING, at_hand, chat_template, facts_of

from dovetail.ledger.turn_digest import digest_history
from dovetail.prompt.messages import ChatMessage, MessageBuilder, ToolNames
from dovetail.prompt.splice import STUB_TOOL
from dovetail.prompt.template import ChatTemplate, RenderError, TemplateProfile
from dovetail.prompt.tool_fallback import needs_fallback, to_plain_messages
from dovetail.prompt.turn_order import order_turns
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    Request,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Turn,
)

replace = msgspec.structs.replace
TEXTS = ("Go.", " Go.", "Go.\n", "Go.\nOn.", "Go.\n\nOn.", "  two\n  lines", "\tx", "", " ")


def _text(dice: random.Random) -> TextBlock:
    return TextBlock(dice.choice(TEXTS))


def _content(dice: random.Random) -> tuple[TextBlock | ImageBlock | DocumentBlock, ...]:
    others = (ImageBlock(url="a"), ImageBlock(url="b"), DocumentBlock(text="Go."), DocumentBlock())
    return tuple(
        _text(dice) if dice.random() < 0.8 else dice.choice(others)
        for _ in range(dice.choice((1, 1, 1, 2, 3)))
    )


def _history(dice: random.Random) -> list[Turn]:
    """A tool loop with two calls, and what may follow it."""
    calls = tuple(ToolCallBlock(id, "f", '{"x": 1}') for id in ("call_1", "call_2"))
    ids = dice.choice((["call_1", "call_2"], ["call_2", "call_1"], ["call_1"], ["call_2"], ["x"]))
    results = tuple(ToolResultBlock(id, _content(dice)) for id in ids)
    roles: tuple[Role, ...] = ("user", "user", "system", "developer")
    return [
        Turn("user", (TextBlock("Hi."), *_content(dice))),
        Turn("assistant", (TextBlock("I look."), *calls)),
        Turn("tool", results),
        Turn("assistant", (TextBlock("Seen."),)),
        Turn(dice.choice(roles), _content(dice)),
        Turn("user", (TextBlock("So?"),)),
    ]


# ---- changes of turns that are not assistant turns ---------------------------------------------


def _map_text(turn: Turn, change: Callable[[TextBlock], Sequence[TextBlock]]) -> Turn:
    def changed(blocks: Sequence[Block]) -> tuple[Block, ...]:
        return tuple(
            new for b in blocks for new in (change(b) if isinstance(b, TextBlock) else [b])
        )

    if turn.role != "tool":
        return Turn(turn.role, changed(turn.blocks))
    results = (b for b in turn.blocks if isinstance(b, ToolResultBlock))
    blocks = (msgspec.structs.replace(b, blocks=changed(b.blocks)) for b in results)
    return Turn("tool", tuple(blocks))


def _change_texts(turn: Turn, dice: random.Random) -> Turn:
    return _map_text(turn, lambda block: [_text(dice)])


def _add_space(turn: Turn, dice: random.Random) -> Turn:
    space = dice.choice((" ", "\n", "\t"))
    return _map_text(turn, lambda b: [TextBlock(dice.choice((space + b.text, b.text + space)))])


def _split_lines(turn: Turn, dice: random.Random) -> Turn:
    return _map_text(turn, lambda b: [TextBlock(line) for line in b.text.split("\n")])


def _change_result_ids(turn: Turn, dice: random.Random) -> Turn:
    ids = ("call_1", "call_2", "call1", "x", "y")
    return Turn(
        turn.role,
        tuple(
            replace(b, call_id=dice.choice(ids)) if isinstance(b, ToolResultBlock) else b
            for b in turn.blocks
        ),
    )


def _change_role(turn: Turn, dice: random.Random) -> Turn:
    return (
        turn
        if turn.role == "tool"
        else Turn(dice.choice(("user", "system", "developer")), turn.blocks)
    )


def _drop_block(turn: Turn, dice: random.Random) -> Turn:
    return Turn(turn.role, turn.blocks[1:] or turn.blocks)


CHANGES = (_change_texts, _add_space, _split_lines, _change_result_ids, _change_role, _drop_block)


def _change(turns: list[Turn], dice: random.Random) -> list[Turn]:
    changed = list(turns)
    at = dice.choice((0, 2, 4))
    changed[at] = dice.choice(CHANGES)(changed[at], dice)
    return changed


def _rename_ids(turns: list[Turn]) -> list[Turn]:
    def renamed(block: Block) -> Block:
        match block:
            case ToolCallBlock(id=id):
                return replace(block, id=f"new{id}")
            case ToolResultBlock(call_id=id):
                return replace(block, call_id=f"new{id}")
        return block

    return [Turn(turn.role, tuple(map(renamed, turn.blocks))) for turn in turns]


def _build(profile: TemplateProfile, turns: Sequence[Turn]) -> list[ChatMessage]:
    messages = MessageBuilder(profile, lambda text: text, ToolNames(())).build((), turns)
    return to_plain_messages(messages, (), profile) if needs_fallback(profile) else messages


def _render(
    template: ChatTemplate, profile: TemplateProfile, messages: list[ChatMessage]
) -> str | None:
    try:
        tools = STUB_TOOL if profile.renders_tools else ()
        return template.render(messages, tools, switches=THINKING)
    except RenderError:
        return None


def _normalize(turns: list[Turn]) -> tuple[Turn, ...]:
    return order_turns(Request("m", tuple(turns))).turns


@at_hand
@pytest.mark.parametrize("name", NAMES)
def test_equal_digests_mean_equal_prompts(name: str) -> None:
    template, profile, dice = chat_template(name), facts_of(name), random.Random(name)
    visible = same = 0
    for _ in range(60):
        turns = _history(dice)
        one, other = _normalize(turns), _normalize(_change(turns, dice))
        messages = [_build(profile, each) for each in (one, other)]
        is_same = digest_history(one) == digest_history(other)
        same += is_same
        if messages[0] == messages[1] or (not is_same and visible > 10):
            continue  # equal messages have equal prompts, and enough changes were visible
        prompts = [_render(template, profile, each) for each in messages]
        assert prompts[0] == prompts[1] or not is_same
        visible += prompts[0] != prompts[1]
    assert same > 3  # digests do not differ without need
    assert visible > 10


def test_equal_messages_have_equal_digests() -> None:
    """Ids that a client rewrites and the boundaries of text blocks never reach a template."""
    dice = random.Random(1)
    for _ in range(200):
        turns = _history(dice)
        assert digest_history(_normalize(turns)) == digest_history(_normalize(_rename_ids(turns)))
