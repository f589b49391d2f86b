"""Replay a trace on simulated replicas: an event queue, one virtual clock, the server's router."""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from dovetail.routing.policy import POLICIES, PolicyName
from dovetail.routing.prefix_index import ApproximateIndex, BlockCache
from dovetail.routing.router import Assignment, RoutedRequest, Router
from dovetail.simulate.replica_cache import ReplicaCache
from dovetail.simulate.trace import RequestTrace, TraceRequest


@dataclass(frozen=True)
class ReplicaModel:
    """A simple model of one replica.

    `blocks`: blocks of its KV cache, each with as many tokens as those of the trace.
    `prefill_tokens_per_second`: prompts are prefilled one after the other at this rate.
    `decode_seconds`: the time of one output token.
    `caches_output`: generated tokens are in the cache when the session's next prompt arrives. They
    are, if the prompt contains them unchanged.
    """

    blocks: int
    prefill_tokens_per_second: float = 10_000.0
    decode_seconds: float = 0.02
    caches_output: bool = False


@dataclass(frozen=True)
class SimulatedRequest:
    """What happened to one request."""

    replica: int
    prompt_tokens: int
    cached_tokens: int
    ttft_seconds: float


@dataclass
class SimulationResult:
    """What happened to all requests of a trace under one policy.

    `decisions`: the number of decisions by reason.
    """

    policy: str
    replicas: int
    requests: list[SimulatedRequest] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that were cached."""
        total = sum(one.prompt_tokens for one in self.requests)
        return sum(one.cached_tokens for one in self.requests) / total if total else 0.0

    @property
    def prefilled_tokens(self) -> list[int]:
        """The prompt tokens that each replica computed."""
        sums = [0] * self.replicas
        for one in self.requests:
            sums[one.replica] += one.prompt_tokens - one.cached_tokens
        return sums

    @property
    def balance(self) -> float:
        """The prefilled tokens of the replica with the most, relative to the mean."""
        sums = self.prefilled_tokens
        return max(sums) * len(sums) / sum(sums) if any(sums) else 1.0

    @property
    def moved_sessions(self) -> int:
        """How often a session with a home was sent to another replica."""
        return sum(self.decisions.get(reason, 0) for reason in ("lost", "evicted", "overloaded"))

    def ttft(self, quantile: float) -> float:
        """Return a quantile of the time to first token in seconds."""
        times = sorted(one.ttft_seconds for one in self.requests)
        return times[min(len(times) - 1, int(quantile * len(times)))] if times else 0.0


class _SimulatedReplica:
    """A replica: its KV cache, its queue, and the time until which it prefills."""

    __slots__ = ("cache", "prefill_until", "queue")

    def __init__(self, blocks: int) -> None:
        self.cache = ReplicaCache(blocks)
        self.queue: deque[_QueuedRequest] = deque()
        self.prefill_until = 0.0


class Simulation:
    """One replay of a trace under one policy.

    A request of a session is sent at its time in the trace, but not before the previous one has
    finished. It waits in its replica until the requests before it are prefilled and there are
    blocks for its prompt and its output.
    """

    def __init__(
        self, trace: RequestTrace, replicas: int, model: ReplicaModel, policy: PolicyName
    ) -> None:
        self._trace = trace
        self._model = model
        self._replicas = [_SimulatedReplica(model.blocks) for _ in range(replicas)]
        self._router = Router(POLICIES[policy])
        self._index = ApproximateIndex(trace.block_tokens, model.blocks)
        self._available = [(index, False) for index in range(replicas)]
        self._events: list[tuple[float, int, object]] = []
        self._numbers = count()
        self._waiting: dict[str, list[TraceRequest]] = {}  # requests of sessions that are busy
        self._generated = _generated_blocks(trace) if model.caches_output else {}
        self._result = SimulationResult(policy, replicas)

    def run(self) -> SimulationResult:
        """Replay the trace."""
        for request in self._trace.requests:
            self._schedule(request.time, request)
        while self._events:
            now, _, event = heapq.heappop(self._events)
            match event:
                case TraceRequest():
                    self._arrive(event, now)
                case _Prefilled():
                    event.assignment.finish_prefill()
                case _Finished():
                    self._finish(event, now)
                case _SimulatedReplica():
                    self._start_queued(event, now)
        self._result.decisions = {str(one): n for one, n in self._router.decisions.items()}
        return self._result

    def _schedule(self, time: float, event: object) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _arrive(self, request: TraceRequest, now: float) -> None:
        session = request.session
        if session is not None:
            waiting = self._waiting.get(session)
            if waiting is not None:
                waiting.append(request)
                return
            self._waiting[session] = []
        self._send(request, now)

    def _send(self, request: TraceRequest, now: float) -> None:
        """Route a request as the server does, and queue it in the replica."""
        assignment = self._router.assign(
            RoutedRequest(request.prompt_tokens, request.session, request.output_tokens),
            self._available,
            self._index.overlaps(request.blocks),
            now,
        )
        self._index.record(assignment.replica, request.blocks)
        size = self._trace.block_tokens
        complete = -(-(request.prompt_tokens + request.output_tokens) // size)
        unshared = complete - len(request.blocks)
        replica = self._replicas[assignment.replica]
        replica.queue.append(_QueuedRequest(assignment, request, now, unshared))
        self._start_queued(replica, now)

    def _start_queued(self, replica: _SimulatedReplica, now: float) -> None:
        """Start the next request of a replica, if it does not prefill and has the blocks."""
        if not replica.queue or now < replica.prefill_until:
            return
        queued, model = replica.queue[0], self._model
        request = queued.request
        cached_blocks = replica.cache.pin(request.blocks, queued.unshared_blocks)
        if cached_blocks is None:
            return
        replica.queue.popleft()
        cached = cached_blocks * self._trace.block_tokens
        computed = request.prompt_tokens - cached
        replica.prefill_until = now + computed / model.prefill_tokens_per_second
        first_token = replica.prefill_until + model.decode_seconds
        ttft = first_token - queued.arrived
        self._result.requests.append(
            SimulatedRequest(queued.assignment.replica, request.prompt_tokens, cached, ttft)
        )
        self._schedule(replica.prefill_until, replica)
        self._schedule(first_token, _Prefilled(queued.assignment))
        end = first_token + max(0, request.output_tokens - 1) * model.decode_seconds
        self._schedule(end, _Finished(queued))

    def _finish(self, event: "_Finished", now: float) -> None:
        queued = event.queued
        request, assignment = queued.request, queued.assignment
        assignment.finish(request.output_tokens)
        generated = self._generated.get(id(request), ())
        replica = self._replicas[assignment.replica]
        replica.cache.unpin(request.blocks, queued.unshared_blocks, generated)
        if generated:
            self._index.record(assignment.replica, generated)
        self._start_queued(replica, now)
        if request.session is not None:
            waiting = self._waiting[request.session]
            if waiting:
                self._send(waiting.pop(0), now)
            else:
                del self._waiting[request.session]


@dataclass(frozen=True, slots=True)
class _QueuedRequest:
    """A request in a replica. `unshared_blocks`: its blocks without those of the trace."""

    assignment: Assignment
    request: TraceRequest
    arrived: float
    unshared_blocks: int


@dataclass(frozen=True, slots=True)
class _Prefilled:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class _Finished:
    queued: _QueuedRequest


def ideal_hit_rate(trace: RequestTrace) -> float:
    """Return the hit rate of one replica with unlimited memory."""
    cache = BlockCache(1 << 60)
    cached = 0
    for request in trace.requests:
        cached += cache.match(request.blocks) * trace.block_tokens
        cache.store(request.blocks)
    return cached / trace.prompt_tokens if trace.prompt_tokens else 0.0


def _generated_blocks(trace: RequestTrace) -> dict[int, tuple[int, ...]]:
    """Return the prompt with its output for each request whose session continues it exactly.

    The ids of generated blocks are those that the next prompt of the session has in their place.
    """
    found: dict[int, tuple[int, ...]] = {}
    for request, following in _successors(trace):
        complete = (request.prompt_tokens + request.output_tokens) // trace.block_tokens
        known = len(request.blocks)
        if following.blocks[:known] == request.blocks:
            found[id(request)] = following.blocks[: max(known, complete)]
    return found


def _successors(trace: RequestTrace) -> Iterator[tuple[TraceRequest, TraceRequest]]:
    last: dict[str, TraceRequest] = {}
    for request in trace.requests:
        if request.session is not None:
            if request.session in last:
                yield last[request.session], request
            last[request.session] = request
