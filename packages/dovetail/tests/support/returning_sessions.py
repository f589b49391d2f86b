"""Sessions that return while another turn waits, which shows whether holding their places pays."""

from dovetail.routing.session_holds import MIN_RETURNS
from dovetail.routing.session_scheduler import SessionScheduler
from dovetail.routing.session_turns import Turn, TurnArrival, TurnEnd

BASH = (("Bash", "ls"),)
#: The measured rate of prefill.
TOKENS_PER_SECOND = 100.0


def measure_prefill(one: SessionScheduler) -> None:
    """Let the scheduler measure the rate of prefill, with more tokens than it assumes."""
    rate, seconds = one.prefill_rate, 1_000 / TOKENS_PER_SECOND
    for number in range(100):
        start = rate.start(-seconds * number)
        rate.observe(rate.end(start, start + seconds), 1_000)


def arrive(one: SessionScheduler, session: str, tokens: int, now: float) -> Turn:
    return one.arrive(TurnArrival(session, tokens), now)


def return_often(
    one: SessionScheduler,
    gap: float,
    now: float,
    times: int = MIN_RETURNS,
    end: TurnEnd = TurnEnd(100, BASH),  # noqa: B008 - frozen
) -> float:
    """Let a session of 100 tokens return after the same gap, each time while a turn waits.

    Returns the time after its last turn.
    """
    for _ in range(times + 1):
        large = arrive(one, "large", (one.capacity_tokens or 0) + 1, now)
        waiting = arrive(one, "waiting", (one.capacity_tokens or 0), now)
        turn = arrive(one, "back", 100, now)
        one.cancel(waiting, now)
        one.cancel(large, now)
        one.admit(now)
        assert turn.state == "running"
        one.finish(turn, end, now + 1.0)
        now += 1.0 + gap
    return now - gap


def suspend(one: SessionScheduler, now: float = 0.0) -> float:
    """Suspend scheduling. Return the time after the last turn."""
    measure_prefill(one)
    now = return_often(one, 300.0, now, end=TurnEnd(100, waits_for_user=True))
    assert one.is_suspended
    return now
