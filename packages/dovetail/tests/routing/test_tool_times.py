"""Learned tool times: keys, quantiles, decay, bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.routing.tool_times import (
    HALF_LIFE_SECONDS,
    MAX_KEYS,
    ToolTimes,
    tool_time_key,
)

PYTEST, LS, READ = ("Bash", "pytest"), ("Bash", "ls"), ("Read", "")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ('{"command":"pytest -q tests"}', "pytest"),
        ('{"command":"cd /repo && LANG=C /usr/bin/make -j2 test"}', "make"),
        ('{"command":["bash","-lc","cargo build"]}', "cargo"),
        ('{"cmd":"./run=fast.sh"}', "run=fast.sh"),
        ('{"command":"cd /repo"}', ""),
        ('{"command":{"a":1}}', ""),
        ('{"file_path":"/a b/c"}', ""),
        ('{"command":', ""),
        ("[1]", ""),
        ("", ""),
        ('{"command":[1]}', ""),
    ],
)
def test_key_of_a_call(arguments: str, word: str) -> None:
    assert tool_time_key("Bash", arguments) == ("Bash", word)


@given(st.text(), st.text() | st.binary())
def test_any_arguments_have_a_key(name: str, arguments: str | bytes) -> None:
    assert tool_time_key(name, arguments)[0] == name


def learned(**seconds: list[float]) -> ToolTimes:
    times = ToolTimes()
    for word, values in seconds.items():
        for value in values:
            times.observe([("Bash", word)], value, 0.0)
    return times


def test_commands_of_a_tool_differ() -> None:
    times = learned(pytest=[60.0] * 20, ls=[0.2] * 20)
    assert (times.quantile([LS], 0.95, 0.0) or 0) < 1
    assert 60 <= (times.quantile([PYTEST], 0.5, 0.0) or 0) < 90
    assert times.quantile([LS, PYTEST], 0.5, 0.0) == times.quantile([PYTEST], 0.5, 0.0)


def test_unknown_commands_are_estimated_from_the_tool_and_unknown_tools_not_at_all() -> None:
    times = learned(pytest=[60.0] * 20)
    assert times.quantile([("Bash", "tox")], 0.5, 0.0) == times.quantile([PYTEST], 0.5, 0.0)
    assert times.quantile([READ], 0.5, 0.0) is None
    assert times.quantile([READ, PYTEST], 0.5, 0.0) is None
    assert times.quantile([], 0.5, 0.0) is None


def test_slowest_of_parallel_calls_is_responsible() -> None:
    times = learned(pytest=[60.0] * 20)
    for _ in range(20):
        times.observe([READ], 0.2, 0.0)
    before = times.quantile([READ], 0.95, 0.0)
    for _ in range(20):
        times.observe([READ, PYTEST], 60.0, 0.0)
    assert times.quantile([READ], 0.95, 0.0) == before


def test_change_is_noticed_after_a_few_calls() -> None:
    times = learned(pytest=[1.0] * 200)
    for _ in range(20):
        times.observe([PYTEST], 100.0, 0.0)
    assert (times.quantile([PYTEST], 0.5, 0.0) or 0) >= 100


def test_old_observations_lose_their_weight() -> None:
    times = learned(pytest=[60.0] * 20)
    assert times.quantile([PYTEST], 0.5, HALF_LIFE_SECONDS) is not None
    assert times.quantile([PYTEST], 0.5, 20 * HALF_LIFE_SECONDS) is None


def test_number_of_keys_is_bounded() -> None:
    times = ToolTimes()
    for number in range(MAX_KEYS + 100):
        times.observe([("Bash", str(number))], 1.0, 0.0)
    assert len(times) <= MAX_KEYS


@given(st.lists(st.floats(0, 4000), min_size=3, max_size=30), st.floats(0.01, 1))
def test_quantile_is_within_the_observed_range_rounded_up(values: list[float], q: float) -> None:
    times = ToolTimes()
    for value in values:
        times.observe([READ], value, 0.0)
    found = times.quantile([READ], q, 0.0)
    assert found is not None
    assert min(values) <= found <= max(0.1, max(values) * 2**0.5 * 1.001)
