"""Properties of the routing policies: pure decisions over snapshots."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.routing.policy import (
    MAX_QUEUE_DIFFERENCE_TOKENS,
    OVERLOAD_FACTOR,
    POLICIES,
    Policy,
    ReplicaSnapshot,
    RequestSnapshot,
    select_by_kv,
    select_by_rotation,
    select_by_session,
    select_min_load,
)

TOKENS = st.integers(0, 200_000)


@st.composite
def replicas(draw: st.DrawFn, min_size: int = 1) -> list[ReplicaSnapshot]:
    indexes = draw(st.lists(st.integers(0, 50), min_size=min_size, max_size=8, unique=True))
    return [
        ReplicaSnapshot(
            index, draw(TOKENS), draw(TOKENS), draw(TOKENS), draw(TOKENS), draw(TOKENS),
            draw(st.booleans()),
        )
        for index in indexes
    ]  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> RequestSnapshot:
    return RequestSnapshot(
        draw(st.integers(200_000, 400_000)),
        draw(st.integers(0, 1000)),
        draw(st.none() | st.text(max_size=5)),
        draw(st.none() | st.integers(0, 50)),
        draw(st.booleans()),
        draw(st.booleans()),
    )


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@settings(max_examples=40)
@given(request=requests(), found=replicas())
def test_a_policy_selects_a_candidate_and_is_deterministic(
    policy: Policy, request: RequestSnapshot, found: list[ReplicaSnapshot]
) -> None:
    decision = policy(request, found)
    assert decision.index in {one.index for one in found}
    assert policy(request, list(found)) == decision


@pytest.mark.parametrize("policy", [select_by_kv, select_by_session, select_min_load])
@settings(max_examples=40)
@given(request=requests(), found=replicas())
def test_the_order_of_replicas_does_not_matter(
    policy: Policy, request: RequestSnapshot, found: list[ReplicaSnapshot]
) -> None:
    assert policy(request, found) == policy(request, found[::-1])


@pytest.mark.parametrize("policy", [select_by_kv, select_by_session, select_min_load])
@settings(max_examples=40)
@given(request=requests(), found=replicas(min_size=2))
def test_replicas_in_backoff_are_avoided(
    policy: Policy, request: RequestSnapshot, found: list[ReplicaSnapshot]
) -> None:
    in_backoff = {one.index for one in found if one.in_backoff}
    if len(in_backoff) < len(found):
        assert policy(request, found).index not in in_backoff


@settings(max_examples=40)
@given(request=requests(), found=replicas(min_size=2))
def test_a_session_leaves_its_home_only_for_a_stated_reason(
    request: RequestSnapshot, found: Sequence[ReplicaSnapshot]
) -> None:
    decision = select_by_kv(request, found)
    home = next((one for one in found if one.index == request.home), None)
    selected = next(one for one in found if one.index == decision.index)
    if decision.reason == "home":
        assert decision.index == request.home
    elif decision.reason == "new":
        assert request.home is None
    elif decision.reason == "lost":
        assert home is None or home.in_backoff
    elif decision.reason == "evicted":
        assert home is not None
        assert home.overlap_tokens - selected.overlap_tokens < request.prompt_tokens / 10
    else:
        assert decision.reason == "overloaded"
        assert home is not None
        saved = home.queued_tokens - selected.queued_tokens
        reprefilled = max(0, home.overlap_tokens - selected.overlap_tokens)
        assert saved > OVERLOAD_FACTOR * reprefilled + MAX_QUEUE_DIFFERENCE_TOKENS


def test_a_new_session_goes_to_its_prefix_unless_that_replica_is_busy() -> None:
    request = RequestSnapshot(30_000)
    cached = ReplicaSnapshot(0, overlap_tokens=20_000, recent_tokens=15_000)
    assert select_by_kv(request, [cached, ReplicaSnapshot(1)]).index == 0
    busy = ReplicaSnapshot(0, overlap_tokens=20_000, queued_tokens=25_000)
    assert select_by_kv(request, [busy, ReplicaSnapshot(1)]).index == 1


def test_expected_output_counts_as_load() -> None:
    request = RequestSnapshot(1000)
    found = [ReplicaSnapshot(0, output_tokens=4000), ReplicaSnapshot(1, output_tokens=100)]
    assert select_by_kv(request, found).index == 1
    assert select_min_load(request, found).index == 1


def test_without_an_index_sessions_stay_at_home() -> None:
    found = [ReplicaSnapshot(0, recent_tokens=90_000), ReplicaSnapshot(1)]
    known = RequestSnapshot(50_000, session="a", home=0)
    assert select_by_kv(known, found).reason == "evicted"
    unknown = RequestSnapshot(50_000, session="a", home=0, overlaps_known=False)
    assert select_by_kv(unknown, found).index == 0


def test_processes_that_do_not_see_each_other_select_the_same_replica() -> None:
    def select(loads: Sequence[int]) -> int:
        found = [ReplicaSnapshot(i, recent_tokens=load) for i, load in enumerate(loads)]
        return select_by_kv(RequestSnapshot(5000, session="s", consistent=True), found).index

    assert len({select(loads) for loads in ([0, 0, 0], [9000, 0, 4000], [0, 8000, 12_000])}) == 1


def test_processes_agree_although_replicas_were_added_in_another_order() -> None:
    """A process that was started later has other numbers for the same replicas."""

    def select(session: str, names: Sequence[str]) -> str:
        found = [ReplicaSnapshot(index, name=name) for index, name in enumerate(names)]
        request = RequestSnapshot(5000, session=session, consistent=True)
        return names[select_by_kv(request, found).index]

    sessions = [f"s{number}" for number in range(20)]
    selected = [select(one, ["http://a", "http://b", "http://c"]) for one in sessions]
    assert selected == [select(one, ["http://c", "http://a", "http://b"]) for one in sessions]
    assert len(set(selected)) == 3


def test_rotation_uses_every_replica() -> None:
    found = [ReplicaSnapshot(index) for index in (3, 5, 8)]
    selected = [select_by_rotation(RequestSnapshot(1, number), found).index for number in range(6)]
    assert selected == [3, 5, 8, 3, 5, 8]
