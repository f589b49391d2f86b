"""Prefix diagnostics: every reason, the exact common prefix, limited cost and memory."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.prompt.prefix_diagnostics import (
    PrefixDiagnostics,
    PromptObservation,
    count_common_bytes,
)
from dovetail.prompt.prefix_report import (
    DIVERGENCE_REASONS,
    DivergenceReason,
    PrefixReport,
    describe_prefix,
    prefix_headers,
)


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def seen(text: str, session: str | None = "s", turns: str = "u", **more: Any) -> PromptObservation:
    """Build a prompt whose tokens are characters and whose turns are one letter each."""
    digests = tuple(turn.encode() for turn in turns)
    given = {"system": b"S", "tools": b"T", "switches": b"W", **more}
    return PromptObservation(
        session, "claude-code", array("I", map(ord, text)), turns=digests, **given
    )


def make_diagnostics() -> PrefixDiagnostics:
    return PrefixDiagnostics(decode=decode)


PROMPT, OUTPUT = "STW u1 a:", "I said"
NEXT = "STW u1 a:I said. u2 a:"


def grown(diagnostics: PrefixDiagnostics, turn: bytes | None = b"a") -> None:
    """Record a session with one prompt and its output."""
    diagnostics.compare(seen(PROMPT))
    diagnostics.record_output("s", array("I", map(ord, OUTPUT)), turn=turn)


def test_a_prompt_that_extends_the_last() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen(NEXT, turns="uav", reused_tokens=9))
    common = len(PROMPT + OUTPUT)
    assert found == PrefixReport(common, len(NEXT), len(NEXT) - common, reused_tokens=9)


CASES: list[tuple[DivergenceReason, str, dict[str, Any], int | None]] = [
    ("header", "XTW u1 a:I said. u2 a:", {"system": b"X", "tools": b"t", "turns": "uav"}, None),
    ("tools", "StW u1 a:I said. u2 a:", {"tools": b"t", "turns": "uav"}, None),
    ("switches", "STw u1 a:I said. u2 a:", {"switches": b"w", "turns": "uav"}, None),
    ("history", "STW uX a:I said. u2 a:", {"turns": "xav"}, 0),
    ("history", "STW u1 a:I swore. u2 a:", {"turns": "ubv"}, 1),
    ("history", "STW summary", {"turns": "z"}, 0),
    ("policy", "STW u1 a:said. u2 a:", {"turns": "uav", "policy_dropped": True}, None),
    ("resume", "STW u1 a:said. u2 a:", {"turns": "uav", "reasoning_cleared": True}, None),
    (
        "resume",
        "STw u1 a:said. u2 a:",
        {"turns": "uav", "reasoning_cleared": True, "policy_dropped": True, "switches": b"w"},
        None,
    ),
    ("edit", "STW u1 a:said. u2 a:", {"turns": "uav", "context_edited": True}, None),
    ("history", "STW uX a:", {"turns": "x", "reasoning_cleared": True, "policy_dropped": True}, 0),
    ("retokenization", "STW u1 a:I  aid. u2 a:", {"turns": "uav"}, None),
]


@pytest.mark.parametrize(("reason", "text", "more", "turn"), CASES)
def test_every_reason(
    reason: DivergenceReason, text: str, more: dict[str, Any], turn: int | None
) -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen(text, **more))
    whole = PROMPT + OUTPUT
    at = next(i for i, (was, now) in enumerate(zip(whole, text, strict=False)) if was != now)
    assert (found.reason, found.turn) == (reason, turn)
    assert (found.diverged_at, found.common_tokens, found.reprefilled_tokens) == (
        at,
        at,
        len(whole) - at,
    )
    assert (found.total_tokens, found.prefill_tokens) == (len(text), len(text) - at)
    assert (found.text_before, found.old_text, found.new_text) == (
        text[:at],
        whole[at:],
        text[at : at + 24],
    )
    again = diagnostics.compare(seen(text + " more", **{**more, "turns": more["turns"] + "m"}))
    assert again.reason is None
    assert again.common_tokens == len(text)


def test_the_reasons_are_a_closed_set() -> None:
    assert {case[0] for case in CASES} | {"first"} == set(DIVERGENCE_REASONS)


def test_edit_looks_like_retokenization_without_a_turn_digest() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics, turn=None)
    assert diagnostics.compare(seen("STW u1 a:I swore.", turns="ubv")).reason == "retokenization"


def test_repeated_prompt_needs_no_prefill() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen(PROMPT))
    assert (found.reason, found.prefill_tokens, found.reprefilled_tokens) == (None, 0, len(OUTPUT))


def test_a_first_prompt_is_compared_with_other_sessions_of_its_harness() -> None:
    diagnostics = make_diagnostics()
    first = diagnostics.compare(seen("STW u1 a:"))
    assert first == PrefixReport(0, 9, 9, reason="first")
    diagnostics.compare(replace(seen("STW u2 a:", "other"), harness="codex"))
    diagnostics.compare(seen("SXX", "third", tools=b"X"))
    found = diagnostics.compare(seen("STW u3 a:", "s2", turns="w"))
    assert (found.reason, found.shared_tokens, found.shared_difference) == ("first", 5, "history")
    assert (found.common_tokens, found.prefill_tokens, found.diverged_at, found.text_before) == (
        0,
        9,
        5,
        "STW u",
    )
    tools = diagnostics.compare(seen("STX", "s3", tools=b"X"))
    assert (tools.shared_tokens, tools.shared_difference) == (2, "tools")
    same = diagnostics.compare(seen("STW u1 a:", "s4"))
    assert (same.shared_tokens, same.shared_difference, same.diverged_at) == (9, None, None)


def test_prompts_without_a_session_are_compared_with_other_sessions() -> None:
    diagnostics = make_diagnostics()
    diagnostics.compare(seen(PROMPT, None))
    found = diagnostics.compare(seen(NEXT, None))
    assert (found.reason, found.common_tokens, found.shared_tokens) == ("first", 0, len(PROMPT))
    diagnostics.record_output(None, [1, 2])


def test_a_title_request_does_not_disturb_its_session() -> None:
    """Claude Code sends it with the same session id, together with the first turn."""
    diagnostics = make_diagnostics()
    main, title = seen(PROMPT), seen("title?", turns="t", system=b"t", tools=b"")
    diagnostics.compare(main)
    assert diagnostics.compare(title).reason == "first"
    diagnostics.record_output("s", array("I", map(ord, OUTPUT)), turn=b"a", prompt=main)
    diagnostics.record_output("s", array("I", map(ord, "{}")), turn=b"j", prompt=title)
    assert diagnostics.compare(seen(NEXT, turns="uav")).reason is None
    again = diagnostics.compare(seen("tXT u1 a:I said.", turns="uav", system=b"X", tools=b"X"))
    assert again.reason == "header"  # not compared with the title, although that shares more tokens


def test_output_of_an_evicted_prompt_is_ignored() -> None:
    diagnostics = make_diagnostics()
    diagnostics.compare(seen(PROMPT))
    diagnostics.record_output("s", [1], prompt=seen("other", turns="x"))
    assert diagnostics.compare(seen(PROMPT)).reprefilled_tokens == 0


def test_a_completely_new_head_is_still_the_same_session() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen("XXW u1 a:I said.", turns="uav", system=b"X", tools=b"X"))
    assert found.reason == "header"


IDS = st.lists(st.sampled_from([0, 1, 255, 256, 65536, 2**32 - 1]), max_size=12)


@given(st.lists(st.tuples(IDS, IDS, st.sampled_from([b"S", b"X"])), max_size=6))
def test_a_branch_holds_the_last_prompt_and_output(
    prompts: list[tuple[list[int], list[int], bytes]],
) -> None:
    """A branch holds the prompt and its output, regardless of how it grew."""
    diagnostics = PrefixDiagnostics(decode=str)
    for ids, output, system in prompts:
        prompt = PromptObservation("s", "", array("I", ids), system=system)
        diagnostics.compare(prompt)
        diagnostics.record_output("s", output, prompt=prompt)
        branch = diagnostics._branches("s")[-1]
        assert branch.token_bytes == array("I", ids + output).tobytes()
        assert branch.ends_with(prompt)


@given(IDS, IDS, IDS)
def test_common_is_the_true_common_prefix(head: list[int], old: list[int], new: list[int]) -> None:
    diagnostics = PrefixDiagnostics(decode=str)
    old, new = head + old, head + new
    diagnostics.compare(PromptObservation("s", "", array("I", old)))
    found = diagnostics.compare(PromptObservation("s", "", array("I", new)))
    short = min(len(old), len(new))
    assert found.common_tokens == next((i for i in range(short) if old[i] != new[i]), short)
    assert found.prefill_tokens == len(new) - found.common_tokens
    assert (found.reason is None) == (found.common_tokens == short)


@pytest.mark.parametrize("at", [0, 1, 65_535, 65_536, 65_537, 131_071, 131_072, 199_999])
def test_long_runs_are_compared_block_by_block(at: int) -> None:
    left = bytes(200_000)
    right = left[:at] + b"\1" + left[at + 1 :]
    assert (
        count_common_bytes(left, memoryview(right))
        == count_common_bytes(right, memoryview(left))
        == at
    )
    assert (
        count_common_bytes(left, memoryview(left[:at]))
        == count_common_bytes(left[:at], memoryview(left))
        == at
    )


def test_comparing_long_prompts_takes_few_steps() -> None:
    diagnostics = PrefixDiagnostics(decode=lambda ids: f"{len(ids)} tokens")
    old = array("I", range(200_000))
    new = array("I", old)
    new[150_001] = 7
    diagnostics.compare(PromptObservation("s", "h", old))
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    tracer = sys.gettrace()
    sys.settrace(count)
    try:
        found = diagnostics.compare(PromptObservation("s", "h", new))
    finally:
        sys.settrace(tracer)
    assert (found.common_tokens, found.old_text) == (150_001, "24 tokens")
    assert steps < 400


def test_memory_is_limited_and_the_oldest_session_is_evicted() -> None:
    diagnostics = PrefixDiagnostics(max_bytes=100_000, decode=decode)
    for number in range(50):
        for turn in range(6):
            text = array("I", [number * turn, *range(1000)])
            diagnostics.compare(PromptObservation(f"s{number}", "h", text, system=bytes([turn])))
            diagnostics.record_output(f"s{number}", range(100))
            held = sum(line.size for lines in diagnostics._sessions.values() for line in lines)
            assert held == diagnostics._held_bytes <= 100_000
    assert "s49" in diagnostics._sessions
    assert "s0" not in diagnostics._sessions
    assert max(map(len, diagnostics._sessions.values())) <= 16
    diagnostics.compare(PromptObservation("huge", "h", array("I", range(50_000))))
    assert diagnostics._held_bytes == 0
    diagnostics.record_output("huge", [1])


def test_headers_contain_numbers_and_no_text() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen("STW u1 a:I swore secret", turns="ubv"))
    assert prefix_headers(found) == [
        ("x-dovetail-prefix-common", "12"),
        ("x-dovetail-prefix-total", "23"),
        ("x-dovetail-prefix-again", "11"),
        ("x-dovetail-prefix-reason", "history"),
        ("x-dovetail-prefix-turn", "1"),
    ]
    assert prefix_headers(PrefixReport(1, 2, 1)) == [
        ("x-dovetail-prefix-common", "1"),
        ("x-dovetail-prefix-total", "2"),
        ("x-dovetail-prefix-again", "1"),
    ]


def test_descriptions_contain_text_only_on_request() -> None:
    diagnostics = make_diagnostics()
    grown(diagnostics)
    found = diagnostics.compare(seen("STW u1 a:I swore\n secret", turns="ubv"))
    line = describe_prefix(found)
    assert line == (
        "prefix: diverged at token 12, turn 1 (history: the history was edited): "
        "12 of 24 tokens unchanged, 12 to prefill, 3 re-prefilled"
    )
    shown = describe_prefix(found, payload=True)
    assert shown.split("\n") == [
        line,
        r"  after 'STW u1 a:I s': was 'aid', now 'wore\n secret'",
    ]
    assert (
        describe_prefix(PrefixReport(70, 80, 10))
        == "prefix: 70 of 80 tokens unchanged, 10 to prefill"
    )
    first = PrefixReport(0, 80, 80, reason="first", shared_tokens=60, shared_difference="header")
    assert describe_prefix(first) == (
        "prefix: first prompt of the session, 80 tokens to prefill; "
        "60 shared with other sessions, then the header differs"
    )


def test_lines_on_the_page_are_what_is_logged() -> None:
    page = Path(__file__).parents[4] / "docs" / "prompt-stability.md"
    extended = PrefixReport(71204, 71980, 776)
    tools = PrefixReport(412, 72310, 71898, 71568, reason="tools", diverged_at=412)
    shared: dict[str, Any] = {"shared_tokens": 17904, "shared_difference": "header"}
    first = PrefixReport(0, 18230, 18230, reason="first", **shared)
    for report in (extended, tools, first):
        assert describe_prefix(report) in page.read_text("utf-8").splitlines()
