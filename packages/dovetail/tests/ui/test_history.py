"""Recent sessions in bounded memory, their trees, and their merging over worker processes."""

import sys
from types import FrameType

from simulated_sessions import SimulatedSession

from dovetail.telemetry.record import RequestContents, RequestRecord, StartedRequest
from dovetail.ui.data import merge_sessions
from dovetail.ui.history import MAX_MEMBERS, RequestHistory

NOTHING = RequestContents()


def record(history: RequestHistory, session: SimulatedSession, began: float) -> RequestRecord:
    made = session.turn(began)
    history.record_request(made, NOTHING)
    return made


def started(session: str, parent: str | None = None) -> StartedRequest:
    return StartedRequest(
        at=1.0, tenant="", model="m", session=session, parent=parent, agent=None, harness="pi"
    )


def child_record(session: str, parent: str, began: float = 2.0) -> RequestRecord:
    return RequestRecord(
        id=session, endpoint="messages", status=200, duration=1.0, began=began, model="m",
        session=session, parent=parent, decoded=0.1,
    )  # fmt: skip


def test_last_sessions_are_stored() -> None:
    history = RequestHistory(max_sessions=3)
    for number in range(5):
        record(history, SimulatedSession(f"s{number}"), float(number))
    assert [one.id for one in history.newest((), 10)] == ["s4", "s3", "s2"]
    assert list(history.find("", "s0")) == []


def test_memory_is_bounded_by_bytes_and_by_turns() -> None:
    history = RequestHistory(max_bytes=20_000, max_turns_per_session=5)
    for number in range(40):
        record(history, SimulatedSession(f"s{number}"), float(number))
        assert history.held_bytes <= 20_000
    assert 1 < len(history) < 40
    one = SimulatedSession("long")
    for number in range(200):
        record(history, one, 100.0 + number)
    ((totals, turns),) = history.find("", "long")
    assert totals.requests == 200
    assert totals.stored == len(turns) == 5
    assert turns[-1].record.began == 299.0


def test_one_session_over_the_limit_loses_its_oldest_turns() -> None:
    history = RequestHistory(max_bytes=5_000)
    one = SimulatedSession("only")
    for number in range(50):
        record(history, one, float(number))
    ((totals, turns),) = history.find("", "only")
    assert history.held_bytes <= 5_000
    assert 0 < len(turns) == totals.stored < 50
    assert turns[-1].record.began == 49.0


def test_subagents_belong_to_the_tree_of_their_parent() -> None:
    history = RequestHistory()
    history.start_request(started("root"))  # still runs when its subagent finishes
    history.record_request(child_record("child", "root"), NOTHING)
    history.record_request(child_record("grandchild", "child"), NOTHING)
    (tree,) = history.newest((), 10)
    assert (tree.id, tree.members, tree.requests) == ("root", {"root", "child", "grandchild"}, 2)
    assert tree.running == 0 or tree.id == "root"
    assert next(history.find("", "grandchild"))[0].id == "root"


def test_members_of_discarded_trees_are_forgotten() -> None:
    history = RequestHistory(max_sessions=2)
    for number in range(10):
        history.start_request(started(f"s{number}"))
        for child in range(MAX_MEMBERS + 10):
            history.record_request(child_record(f"s{number}.{child}", f"s{number}"), NOTHING)
    assert len(history) == 2
    assert len(history._roots) <= 2 * MAX_MEMBERS


def test_running_requests_are_counted() -> None:
    history = RequestHistory()
    history.start_request(started("s"))
    assert history.newest(("running",), 1)[0].running == 1
    history.record_request(child_record("s", "s"), NOTHING)
    assert history.newest(("idle",), 1)[0].running == 0


def test_search_finds_names_in_any_order() -> None:
    history = RequestHistory()
    for number in range(8):
        record(history, SimulatedSession(f"s{number}", seed=number), float(number))
    found = history.newest(("codex", "s5"), 10)
    assert [one.id for one in found] == ["s5"]
    assert history.count(("codex",)) == 2
    assert history.count(("nothing",)) == 0


def test_texts_are_stored_only_with_payloads() -> None:
    contents = RequestContents(body=b"secret", divergence=("a", "b", "c"))
    for payloads in (False, True):
        history = RequestHistory(payloads=payloads)
        history.record_request(SimulatedSession("s").turn(1.0), contents)
        ((_, (turn,)),) = history.find("", "s")
        assert (turn.request == "secret") is payloads
        assert (turn.divergence is not None) is payloads


def test_tenants_are_separate() -> None:
    history = RequestHistory()
    record(history, SimulatedSession("s"), 1.0)
    assert list(history.find("other", "s")) == []


def test_parts_of_workers_are_merged() -> None:
    """A session whose requests two workers served, and a subagent that a third one served."""
    first, second, third = RequestHistory(), RequestHistory(), RequestHistory()
    session = SimulatedSession("s")
    total = sum(
        (record(history, session, at).usage or NotImplemented).output_tokens
        for at, history in ((1.0, first), (20.0, second), (40.0, first))
    )
    third.record_request(child_record("child", "s", 60.0), NOTHING)
    parts = [one for history in (third, first, second) for one in history.newest((), 10)]
    (merged,) = merge_sessions(parts)
    assert (merged.id, merged.requests, merged.stored) == ("s", 4, 4)
    assert merged.output_tokens == total
    assert merged.members == {"s", "child"}
    assert (merged.began, merged.last) == (1.0, 61.0)
    assert first.newest((), 1)[0].requests == 2  # the originals are unchanged
    assert next(third.find("", "s"))[0].id == "child"


def calls_of_an_update(sessions: int) -> int:
    """Count the calls that record a request and list the newest sessions."""
    history = RequestHistory()
    for number in range(sessions):
        record(history, SimulatedSession(f"s{number}"), float(number))
    made = SimulatedSession(f"s{sessions - 1}").turn(1000.0)
    calls = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        history.record_request(made, NOTHING)
        history.newest((), 50)
        history.count(())
    finally:
        sys.setprofile(None)
    return calls


def test_work_of_the_server_does_not_depend_on_the_number_of_sessions() -> None:
    assert calls_of_an_update(50) == calls_of_an_update(500) > 0
