"""Hints and options in `nvext` and headers."""

import pytest

from dovetail_model import Hints
from dovetail_protocols.hints import read_nvext


def test_hints() -> None:
    found = read_nvext(
        {
            "agent_hints": {
                "priority": 3,
                "osl": 100,
                "latency_sensitivity": 0.5,
                "speculative_prefill": True,
                "mood": "good",
            },
            "cache_salt": "x",
            "max_thinking_tokens": 50,
            "extra_fields": ["reasoning_segments", 4],
            "annotations": ["a"],
            "surprise": 1,
        },
        {"x-dynamo-request-strict-priority": "7"},
    )
    assert found.hints == Hints(3, 7, 100, 0.5, True, "x")
    assert found.extra_fields == {"reasoning_segments"}
    assert found.max_thinking_tokens == 50


DISPATCHES: list[tuple[object, dict[str, str], set[str]]] = [
    (None, {}, set()),
    (["tools"], {}, {"tools"}),
    (True, {}, {"tools", "reasoning"}),
    ("reasoning", {}, {"reasoning"}),
    (["tools"], {"x-dovetail-dispatch": "reasoning"}, {"reasoning"}),
    (None, {"x-dovetail-dispatch": "tools, Reasoning, sounds"}, {"tools", "reasoning"}),
    (5, {}, set()),
]


@pytest.mark.parametrize(("field", "headers", "expected"), DISPATCHES)
def test_requested_dispatch_channels(
    field: object, headers: dict[str, str], expected: set[str]
) -> None:
    assert read_nvext({"dispatch": field}, headers).hints.dispatch == expected
