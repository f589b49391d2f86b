"""One replica of a model: its engine, its load, and whether it accepts requests.

A failed replica receives no requests until it has recovered. If its engine is a child process of
this server, it is restarted; a remote server is polled until it responds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from dovetail.engines.engine import (
    EngineCapabilities,
    EngineHealth,
    TokenDelta,
    TokenEngine,
    TokenSink,
    check_health,
)
from dovetail.net.open_files import FileShortage, engine_connections
from dovetail_model import DovetailError, EngineError, EngineTimeout, EngineUnavailable

BACKOFF_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HealthCheckOptions:
    """When and how the health of replicas is checked.

    `timeout_seconds`: how long a replica may take to respond to a health check.
    `recovery_delays_seconds`: the delay before each check of a replica that is down; the last one
    is repeated.
    `supervised_recovery_delays_seconds`: the same for an engine that another process restarts,
    where a check is cheap.
    `stall_timeout_seconds`: how long a replica with active requests may emit no tokens before its
    health is checked.
    `stall_check_interval_seconds`: the time between two searches for stalled replicas.
    """

    timeout_seconds: float = 3.0
    recovery_delays_seconds: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
    supervised_recovery_delays_seconds: tuple[float, ...] = (0.0, 0.1, 0.2, 0.5, 1.0)
    stall_timeout_seconds: float = 30.0
    stall_check_interval_seconds: float = 10.0


DEFAULT_HEALTH_CHECKS = HealthCheckOptions()


class Replica:
    """An engine with its index in the pool, its availability and its active requests.

    `url`: the URL of a remote engine.
    `failure`: why it does not accept requests; None if it does.
    `on_failed`: called when it stops accepting requests.
    `on_recovered`: called when it accepts requests again after a failure.
    """

    __slots__ = (
        "_health_checks",
        "_idle",
        "_running",
        "active_requests",
        "engine",
        "failure",
        "index",
        "is_available",
        "last_activity",
        "last_rejection",
        "on_failed",
        "on_recovered",
        "recovery_task",
        "restarts",
        "url",
    )

    def __init__(
        self,
        engine: TokenEngine,
        index: int,
        health_checks: HealthCheckOptions = DEFAULT_HEALTH_CHECKS,
        url: str | None = None,
    ) -> None:
        self.engine = engine
        self.index = index
        self.url = url
        self.on_failed: Callable[[Replica], None] = lambda replica: None
        self.on_recovered: Callable[[Replica], None] = lambda replica: None
        self._idle: asyncio.Event | None = None  # set while no request is active; see wait_idle
        self._health_checks = health_checks
        self.is_available = True
        self.failure: str | None = None
        self.active_requests = 0
        self.last_activity = 0.0  # when it last started a request or emitted tokens
        self.restarts = 0
        self.last_rejection = float("-inf")  # when it last was overloaded or failed
        self._running = True
        self.recovery_task: asyncio.Task[None] | None = None  # done when the replica has recovered

    async def start(self) -> DovetailError | None:
        """Start the engine. Return the error if it cannot be started."""
        self._running = True
        try:
            await self.engine.start()
        except Exception as error:
            return _to_dovetail_error(error)
        return None

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count one generation while it runs. An engine failure marks the replica as down."""
        self.active_requests += 1
        self.last_activity = monotonic()
        try:
            yield
        except (EngineUnavailable, EngineTimeout) as fault:
            self.mark_down(fault)
            raise
        except FileShortage:
            raise  # not a fault of the replica
        except EngineError:
            self.last_rejection = monotonic()
            raise
        finally:
            self.active_requests -= 1
            if self._idle is not None and not self.active_requests:
                self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request is active, for a replica that gets no new ones."""
        if self.active_requests:
            self._idle = asyncio.Event()
            await self._idle.wait()

    @property
    def in_backoff(self) -> bool:
        """Whether other replicas are preferred because this one was just overloaded or failed."""
        return monotonic() - self.last_rejection < BACKOFF_SECONDS

    def mark_down(self, error: DovetailError) -> None:
        """Mark the replica as down and start its recovery."""
        if not self._running:
            return  # the replica was stopped while requests were running
        self.failure = _reason(error)
        if self.is_available:
            _log.warning("replica_failed", extra=self._log_fields(error))
            self.is_available = False
            self.on_failed(self)
        if self.recovery_task is None or self.recovery_task.done():
            self.recovery_task = asyncio.create_task(self._recover())

    async def health(self) -> EngineHealth:
        return await check_health(self.engine, self._health_checks.timeout_seconds)

    async def check_stalled(self) -> None:
        """Mark the replica as down if it has requests, emits no tokens and fails its health check.

        Its requests fail with an error and are migrated to other replicas.
        """
        if (
            not (self.is_available and self.active_requests)
            or monotonic() - self.last_activity < self._health_checks.stall_timeout_seconds
        ):
            return
        if (await self.health()).ready or (await self.health()).ready:
            self.last_activity = monotonic()
            return
        if engine_connections.had_shortage:
            return  # the checks may have failed in this process
        self.mark_down(EngineUnavailable("the replica emits no tokens and fails its health check"))
        await self.engine.stop()

    async def stop(self) -> None:
        self._running = False
        if self.recovery_task is not None:
            self.recovery_task.cancel()
            await asyncio.gather(self.recovery_task, return_exceptions=True)
        await self.engine.stop()

    async def _recover(self) -> None:
        """Try to restart the replica, with increasing delays, until it is ready."""
        delays = (
            self._health_checks.supervised_recovery_delays_seconds
            if self.engine.capabilities.supervised_elsewhere
            else self._health_checks.recovery_delays_seconds
        )
        for attempt in range(1 << 30):
            await asyncio.sleep(delays[min(attempt, len(delays) - 1)])
            try:
                await self._restart()
            except Exception as error:
                fault = _to_dovetail_error(error)
                self.failure = _reason(fault)
                _log.info("replica_recovery_failed", extra=self._log_fields(fault))
                continue
            self.is_available, self.failure = True, None
            self.on_recovered(self)
            _log.warning("replica_recovered", extra=self._log_fields(None))
            return

    async def _restart(self) -> None:
        """Restart a local process that has exited, or reconnect to a remote server."""
        if self.engine.capabilities.local:
            if (await self.health()).ready:
                return
            self.restarts += 1
            await self.engine.stop()
        await self.engine.start()
        state = await self.health()
        if not state.ready:
            raise EngineUnavailable(state.detail or "not ready")

    def _log_fields(self, error: DovetailError | None) -> dict[str, object]:
        reason = {} if error is None else {"reason": _reason(error)}
        return {"fields": {"engine": self.engine.name, "replica": self.index, **reason}}


class TrackedSink:
    """Forwards deltas to another sink and records what the router and the stall check use.

    `output_tokens`: the number of tokens so far.
    `is_finished`: whether the engine sent the finish reason.
    """

    __slots__ = ("_on_first", "_push", "_replica", "drain", "is_finished", "output_tokens")

    def __init__(
        self, replica: Replica, sink: TokenSink, on_first_token: Callable[[], None]
    ) -> None:
        self._replica = replica
        self._push = sink.push
        self._on_first: Callable[[], None] | None = on_first_token
        self.drain = sink.drain
        self.output_tokens = 0
        self.is_finished = False

    def push(self, delta: TokenDelta) -> bool:
        self._replica.last_activity = monotonic()
        self.output_tokens += len(delta.ids)
        if self._on_first is not None:
            self._on_first()
            self._on_first = None
        if delta.finish is not None:
            self.is_finished = True
        return self._push(delta)


def shared_capabilities(supported: Sequence[EngineCapabilities]) -> EngineCapabilities:
    """Return the capabilities that the engines of one model share."""
    first, *others = supported
    if not others:
        return first
    lengths = [one.context_length for one in supported if one.context_length is not None]
    return EngineCapabilities(
        constraints=tuple(
            syntax
            for syntax in first.constraints
            if all(syntax in other.constraints for other in others)
        ),
        logprobs=all(one.logprobs for one in supported),
        cached_tokens=all(one.cached_tokens for one in supported),
        context_length=min(lengths, default=None),
        sampling=frozenset.intersection(*(one.sampling for one in supported)),
        local=first.local,
        constrains_after_reasoning=any(one.constrains_after_reasoning for one in supported),
    )


def _reason(error: DovetailError) -> str:
    return error.log_message or error.message


def _to_dovetail_error(error: Exception) -> DovetailError:
    """Wrap exceptions of third-party engines."""
    if isinstance(error, DovetailError):
        return error
    return EngineUnavailable(f"{type(error).__name__}: {error}")
