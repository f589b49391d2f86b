"""Load accounting and session homes of the router."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.routing.policy import select_by_kv
from dovetail.routing.router import LOAD_HALF_LIFE_SECONDS, RoutedRequest, Router

BOTH = [(0, False), (1, False)]


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", None]),
            st.integers(0, 50_000),
            st.booleans(),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_load_returns_to_zero(steps: list[tuple[str | None, int, bool, bool]]) -> None:
    router = Router(select_by_kv)
    assignments = []
    for now, (session, tokens, prefilled, finished) in enumerate(steps):
        one = router.assign(RoutedRequest(tokens, session), BOTH, {}, now)
        if prefilled:
            one.finish_prefill()
        if finished:
            one.finish(100)
        assignments.append(one)
    for one in assignments:
        one.finish()
        one.finish()  # a second call changes nothing
    for index in (0, 1):
        load = router.load(index)
        assert (load.queued_tokens, load.output_tokens) == (0, 0)
        assert load.recent.at(len(steps)) >= 0
        assert load.resident.at(len(steps)) >= 0


def test_queued_tokens_are_those_that_are_not_cached() -> None:
    router = Router()
    one = router.assign(RoutedRequest(10_000, "a", 50), BOTH, {0: 8000}, 0.0)
    assert router.load(one.replica).queued_tokens == 2000
    assert router.load(one.replica).output_tokens == 50
    one.finish_prefill()
    assert router.load(one.replica).queued_tokens == 0


def test_output_without_prediction_is_learned_and_limited() -> None:
    router = Router()
    for _ in range(200):
        router.assign(RoutedRequest(10), BOTH, {}, 0.0).finish(1000)
    one = router.assign(RoutedRequest(10), BOTH, {}, 0.0)
    assert 950 < router.load(one.replica).output_tokens <= 1000
    one.finish()
    one = router.assign(RoutedRequest(10, max_tokens=7), BOTH, {}, 0.0)
    assert router.load(one.replica).output_tokens == 7


def test_idle_sessions_lose_weight_and_ended_ones_have_none() -> None:
    router = Router()
    replica = router.assign(RoutedRequest(8000, "a"), BOTH, {}, 0.0).replica
    load = router.load(replica)
    assert load.resident.at(LOAD_HALF_LIFE_SECONDS) == 4000
    router.release_session("a", LOAD_HALF_LIFE_SECONDS)
    assert load.resident.at(LOAD_HALF_LIFE_SECONDS) == 0
    assert router.home("a") is None


def test_session_moves_if_its_home_lost_the_prefix() -> None:
    router = Router()
    home = router.assign(RoutedRequest(20_000, "a"), BOTH, {}, 0.0).replica
    router.load(home).queued_tokens = 0
    for number in range(3):
        router.assign(RoutedRequest(20_000, f"x{number}"), [(home, False)], {}, 0.0).finish()
    stayed = router.assign(RoutedRequest(21_000, "a"), BOTH, {home: 20_000}, 0.0)
    assert (stayed.replica, stayed.reason) == (home, "home")
    moved = router.assign(RoutedRequest(22_000, "a"), BOTH, {}, 0.0)
    assert (moved.replica, moved.reason) == (1 - home, "evicted")
    assert router.home("a") == 1 - home
    assert router.decisions == {"new": 4, "home": 1, "evicted": 1}
