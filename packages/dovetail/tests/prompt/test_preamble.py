"""Only the billing line is removed."""

import pytest

from dovetail.prompt.normalization import normalize_prompt
from dovetail.prompt.volatile_text import NormalizationOptions, strip_preamble
from dovetail_model import Block, Request, TextBlock, Turn

LINE = "x-anthropic-billing-header: cc_version=2.1.197.4f2; cc_entrypoint=sdk-cli;"
PROMPT = "You are a helpful agent; you set x=1; and so on.\nSecond line."


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        (LINE, ""),
        (LINE + "\n", ""),
        (LINE + " cc_is_subagent=true;", ""),
        (LINE + " cch=0a1b2;", ""),
        (LINE + " cch=0a1b2; " + PROMPT, PROMPT),
        (LINE + PROMPT, PROMPT),
        (LINE + "\n" + PROMPT, PROMPT),
        (LINE + "\r\n\r\n" + PROMPT, PROMPT),
        (LINE + " cch=0a1b2\n" + PROMPT, PROMPT),
        (LINE + " cch=0a1b2", ""),
        ("x-anthropic-billing-header: cc_version=1 (beta); " + PROMPT, PROMPT),
        ("x-anthropic-billing-header: nothing\n" + PROMPT, PROMPT),
        ("x-anthropic-billing-header:", ""),
        (LINE + "\n" + LINE, LINE),  # the second line is a quotation
        ("As in " + LINE, "As in " + LINE),
        (PROMPT + "\n" + LINE, PROMPT + "\n" + LINE),
        ("", ""),
    ],
)
def test_the_billing_line_is_removed_and_other_text_stays(text: str, rest: str) -> None:
    assert strip_preamble(text) == rest


def request(*turns: Turn, system: tuple[str, ...] = ()) -> Request:
    blocks: tuple[Block, ...] = tuple(map(TextBlock, system))
    return Request("m", turns=turns, system=blocks)


def test_claude_code_sends_the_billing_line_as_a_separate_block() -> None:
    user_turn = Turn("user", (TextBlock("hi"),))
    made = normalize_prompt(request(user_turn, system=(LINE, "You are Claude Code.", PROMPT)))
    assert made.system == (TextBlock("You are Claude Code."), TextBlock(PROMPT))
    assert made.turns == (user_turn,)


def test_the_billing_line_is_removed_from_inline_system_turns() -> None:
    user_turns = [Turn("user", (TextBlock(text),)) for text in ("a", "b")]
    inline = Turn("system", (TextBlock(LINE), TextBlock(LINE + "\nBe kind.")))
    assert normalize_prompt(
        request(user_turns[0], Turn("developer", (TextBlock(LINE),)), user_turns[1])
    ).turns == (
        user_turns[0],
        user_turns[1],
    )
    assert normalize_prompt(request(user_turns[0], inline)).turns[1] == Turn(
        "system", (TextBlock("Be kind."),)
    )


def test_a_quotation_in_user_text_is_unchanged() -> None:
    original = request(Turn("user", (TextBlock(LINE + "\nwhat is this?"),)))
    assert normalize_prompt(original) is original


def test_the_billing_line_stays_if_stripping_is_off() -> None:
    original = request(Turn("user", (TextBlock("hi"),)), system=(LINE, PROMPT))
    assert normalize_prompt(original, NormalizationOptions(strip_preamble=False)) is original


def test_sessions_with_different_billing_lines_share_the_system_text() -> None:
    lines = ["cc_version=1.2; cc_entrypoint=cli;", "cc_version=1.2; cc_entrypoint=sdk; cch=1;"]
    user_turn = Turn("user", (TextBlock("hi"),))
    heads = [f"x-anthropic-billing-header: {line}" for line in lines]
    first, second = (normalize_prompt(request(user_turn, system=(head, PROMPT))) for head in heads)
    assert first == second
