"""Counters of harnesses are removed; other text is unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.prompt.normalization import PromptNormalizer, normalize_prompt
from dovetail.prompt.volatile_text import (
    DEFAULT_PATTERNS,
    InvalidPatternError,
    NormalizationOptions,
    VolatilePatterns,
)
from dovetail_model import Request, TextBlock, ToolCallBlock, ToolResultBlock, Turn

COUNTERS = [
    "Token usage: 12345/200000; 187655 remaining",
    "Token usage: 12,345/200,000; -7 remaining",
    "USD budget: $0.52/$10; $9.48 remaining",
    "Output tokens — turn: 1.2k / 5k · session: 10k",
    "Tokens used: 31000",
    "Tokens remaining: 31000 / 200000",
    "Context left: 12%",
    "Remaining tokens: 5",
]
VOLATILE = VolatilePatterns()


@pytest.mark.parametrize("counter", COUNTERS)
def test_counters_are_removed_from_system_text(counter: str) -> None:
    for around in ("{}", "Be kind.\n{}", "{}\nBe kind.", "Be kind.\n{}\nAlways."):
        text = around.format(counter)
        without = "\n".join(line for line in text.split("\n") if line != counter)
        assert VOLATILE.strip_system(text) == without


@pytest.mark.parametrize("counter", COUNTERS)
def test_counters_are_removed_from_reminders_in_user_text(counter: str) -> None:
    alone = f"<system-reminder>\n{counter}\n</system-reminder>"
    warning = f"<system_warning>{counter}</system_warning>"
    with_text = f"<system-reminder>\nUse the list.\n{counter}\n</system-reminder>"
    assert VOLATILE.strip_user(alone) == ""
    assert VOLATILE.strip_user(warning) == ""
    assert VOLATILE.strip_user(f"Go on.\n{alone}\nNow.") == "Go on.\nNow."
    assert VOLATILE.strip_user(with_text) == "<system-reminder>\nUse the list.\n</system-reminder>"


@pytest.mark.parametrize("counter", COUNTERS)
def test_counters_written_by_users_are_unchanged(counter: str) -> None:
    for text in (
        counter,
        f"What does this mean?\n{counter}",
        f"He wrote: <system-reminder>{counter}</system-reminder>",
        f"<system-reminder>x</system-reminder>\n{counter}",
    ):
        assert VOLATILE.strip_user(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "Token usage: see the manual; remaining questions to the list",
        "Watch the line `Token usage: 1/2; 1 remaining` closely.",
        "  Token usage: 1/2; 1 remaining",
        "Tokens used: many",
    ],
)
def test_system_prose_about_counters_stays(text: str) -> None:
    assert VOLATILE.strip_system(text) is text


def test_tool_results_are_unchanged() -> None:
    text = "<system-reminder>\nToken usage: 1/2; 1 remaining\n</system-reminder>"
    call = Turn("assistant", (ToolCallBlock("c1", "read", "{}"),))
    result = Turn("tool", (ToolResultBlock("c1", (TextBlock(text),)),))
    request = Request("m", turns=(Turn("user", (TextBlock("go"),)), call, result))
    assert normalize_prompt(request) is request


def test_a_custom_pattern_is_removed() -> None:
    options = NormalizationOptions(volatile=(*DEFAULT_PATTERNS, r"^Now: .*$", r" \(seed \d+\)"))
    system = (TextBlock("Be kind (seed 17).\nNow: 12:31\nToken usage: 1/2; 1 remaining"),)
    user = Turn("user", (TextBlock("Now: what?\n<system-reminder>\nNow: 1\n</system-reminder>"),))
    made = normalize_prompt(Request("m", turns=(user,), system=system), options)
    assert made.system == (TextBlock("Be kind."),)
    assert made.turns[0].blocks == (TextBlock("Now: what?\n<system-reminder>\n</system-reminder>"),)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "x*", "", "(?P<n>a)|^", "[z-a]"])
def test_an_invalid_pattern_is_rejected_by_name(pattern: str) -> None:
    with pytest.raises(InvalidPatternError) as refused:
        PromptNormalizer(NormalizationOptions(volatile=(pattern,)))
    assert repr(pattern) in str(refused.value)


LINES = st.lists(st.sampled_from([*COUNTERS, "Be kind.", "", "x", " y "]), max_size=8)


@given(LINES)
def test_lines_of_counters_are_removed_at_any_position(lines: list[str]) -> None:
    expected = [line for line in lines if line not in COUNTERS]
    assert VOLATILE.strip_system("\n".join(lines)) == "\n".join(expected)


@given(st.text(alphabet="ab<>/\nsytem-rindr 12:;", max_size=60))
def test_other_text_is_the_same_object(text: str) -> None:
    assert VOLATILE.strip_user(text) is text
    assert VOLATILE.strip_system(text) is text
