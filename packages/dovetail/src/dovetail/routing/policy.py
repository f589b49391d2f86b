"""Policies that select a replica. Each is a pure decision over snapshots.

The server and `dovetail simulate` use the same policies. All loads are in tokens, so that a prompt
of 100,000 tokens counts more than a title request.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

#: Why a replica was selected: the session's home; a session without a home; a home that is not
#: available; a home that no longer holds the prefix; a home with a long queue; or the rotation.
Reason = Literal["home", "new", "lost", "evicted", "overloaded", "rotation"]
REASONS: tuple[Reason, ...] = ("home", "new", "lost", "evicted", "overloaded", "rotation")
PolicyName = Literal["kv", "session", "least-loaded", "round-robin"]

#: A home whose prefix is less than this share of the prompt longer than elsewhere is not worth
#: returning to: the load decides.
MIN_HOME_ADVANTAGE = 0.1
#: Shorter prompts stay at home, because moving them saves nothing.
MIN_MOVED_TOKENS = 1024
#: A session leaves its home if the queue there is longer by this many tokens, in addition to
#: `OVERLOAD_FACTOR` times what would be prefilled again elsewhere.
MAX_QUEUE_DIFFERENCE_TOKENS = 16_384
OVERLOAD_FACTOR = 2
#: The cost of an expected output token, in prefill tokens. A decode step of a full batch takes
#: about as long as the prefill of a few tokens per sequence.
OUTPUT_TOKEN_COST = 4
#: Processes that do not see each other's load consider replicas as equal up to this cost.
CONSISTENT_TOLERANCE_TOKENS = 16_384
CONSISTENT_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """A request that needs a replica.

    `prompt_tokens`: the length of its prompt.
    `sequence`: the number of the request, which round robin uses.
    `session`: the key of its session, if it is known.
    `home`: the index of the session's home; None if it has none.
    `consistent`: other processes, which do not see this one's load, must select the same replica.
    `overlaps_known`: False if it is not known what the replicas have cached.
    """

    prompt_tokens: int
    sequence: int = 0
    session: str | None = None
    home: int | None = None
    consistent: bool = False
    overlaps_known: bool = True

    @property
    def may_leave_home(self) -> bool:
        """Whether the session may move although its home is available and not overloaded."""
        return (
            self.overlaps_known and not self.consistent and self.prompt_tokens >= MIN_MOVED_TOKENS
        )


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """The state of a replica when a request arrives.

    `index`: the number of the replica.
    `overlap_tokens`: the leading tokens of the prompt that are in the replica's KV cache.
    `queued_tokens`: prompt tokens of its active requests that it has not prefilled yet.
    `output_tokens`: expected output tokens of its active requests.
    `recent_tokens`: prompt tokens that it prefilled recently; older ones count less.
    `resident_tokens`: prompt tokens of the sessions that live there; idle sessions count less. They
    occupy the KV cache and predict further requests.
    `in_backoff`: it was just overloaded or failed.
    `name`: identifies it in all processes, unlike `index` after replicas were added and removed.
    """

    index: int
    overlap_tokens: int = 0
    queued_tokens: int = 0
    output_tokens: int = 0
    recent_tokens: float = 0.0
    resident_tokens: float = 0.0
    in_backoff: bool = False
    name: str = ""

    @property
    def load_tokens(self) -> float:
        """The load without the request that is being routed."""
        return (
            self.queued_tokens
            + OUTPUT_TOKEN_COST * self.output_tokens
            + self.recent_tokens
            + self.resident_tokens
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """The index of the selected replica and the reason."""

    index: int
    reason: Reason


#: Selects one of the replicas that are available. There is at least one.
Policy = Callable[[RequestSnapshot, Sequence[ReplicaSnapshot]], Decision]


def select_by_kv(request: RequestSnapshot, replicas: Sequence[ReplicaSnapshot]) -> Decision:
    """Select the session's home while it is worth it, else the lowest prefill cost and load."""
    best = _cheapest(request, replicas, lambda one: _prefill_cost(request, one))
    home = _home(request, replicas)
    if home is None:
        return Decision(best.index, "new" if request.home is None else "lost")
    if best.index == home.index:
        return Decision(home.index, "home")
    advantage = home.overlap_tokens - best.overlap_tokens
    if request.may_leave_home and advantage < MIN_HOME_ADVANTAGE * request.prompt_tokens:
        return Decision(best.index, "evicted")
    reprefilled = max(0, advantage) if request.overlaps_known else request.prompt_tokens
    queue_difference = home.queued_tokens - best.queued_tokens
    if queue_difference > OVERLOAD_FACTOR * reprefilled + MAX_QUEUE_DIFFERENCE_TOKENS:
        return Decision(best.index, "overloaded")
    return Decision(home.index, "home")


def select_by_session(request: RequestSnapshot, replicas: Sequence[ReplicaSnapshot]) -> Decision:
    """Select the session's home, else the lowest load. Prefixes are not considered."""
    home = _home(request, replicas)
    if home is not None:
        return Decision(home.index, "home")
    best = _cheapest(request, replicas, lambda one: one.load_tokens)
    return Decision(best.index, "new" if request.home is None else "lost")


def select_min_load(request: RequestSnapshot, replicas: Sequence[ReplicaSnapshot]) -> Decision:
    """Select the replica with the fewest tokens of active requests."""
    best = _cheapest(
        request, replicas, lambda one: one.queued_tokens + OUTPUT_TOKEN_COST * one.output_tokens
    )
    return Decision(best.index, "new")


def select_by_rotation(request: RequestSnapshot, replicas: Sequence[ReplicaSnapshot]) -> Decision:
    """Select the replicas in turn."""
    return Decision(replicas[request.sequence % len(replicas)].index, "rotation")


POLICIES: Mapping[PolicyName, Policy] = {
    "kv": select_by_kv,
    "session": select_by_session,
    "least-loaded": select_min_load,
    "round-robin": select_by_rotation,
}


def _home(request: RequestSnapshot, replicas: Sequence[ReplicaSnapshot]) -> ReplicaSnapshot | None:
    """Return the session's home, if it is available and not in backoff."""
    for one in replicas:
        if one.index == request.home:
            return None if one.in_backoff else one
    return None


def _prefill_cost(request: RequestSnapshot, replica: ReplicaSnapshot) -> float:
    return request.prompt_tokens - replica.overlap_tokens + replica.load_tokens


def _cheapest(
    request: RequestSnapshot,
    replicas: Sequence[ReplicaSnapshot],
    cost: Callable[[ReplicaSnapshot], float],
) -> ReplicaSnapshot:
    """Return the replica with the lowest cost; those in backoff only if all are.

    With `consistent`, the hash of the session decides among replicas with similar costs. It selects
    the same one in every process.
    """
    usable = [one for one in replicas if not one.in_backoff] or replicas
    best = min(usable, key=lambda one: (cost(one), one.index))
    if request.session is None or not request.consistent:
        return best
    session = request.session
    limit = CONSISTENT_FACTOR * cost(best) + CONSISTENT_TOLERANCE_TOKENS
    similar = [one for one in usable if cost(one) <= limit]
    return max(similar, key=lambda one: _affinity_hash(session, one))


def _affinity_hash(session: str, replica: ReplicaSnapshot) -> bytes:
    """Return a replica's weight for a session (rendezvous hashing), the same in every process."""
    key = f"{replica.name or replica.index} {session}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(key, digest_size=8).digest()
