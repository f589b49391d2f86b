"""Run an experiment: all pairs that are not finished, several at the same time if wanted."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec

from dovetail.compare.differences import (
    SessionRequest,
    find_difference,
    name_scratch_folder,
)
from dovetail.compare.endpoints import ProfileEndpoint
from dovetail.compare.harness_runs import (
    HarnessProgram,
    HarnessRequest,
    HarnessResult,
    remove_folder,
    run_harness,
)
from dovetail.compare.measurement import (
    decode_exchanges,
    describe_failure,
    measure_run,
    to_session_requests,
)
from dovetail.compare.planning import PlannedPair, PlannedRun
from dovetail.compare.records import ProfileName, RunRecord
from dovetail.compare.store import ExperimentStore, RunKey
from dovetail.compare.task_set import CheckError, CodingTask, CompareError
from dovetail.net.http_client import Endpoint
from dovetail.watch.decoder import DecodedExchange
from dovetail.watch.exchange import CapturedExchange
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.relay import TcpRelay

MAX_ATTEMPTS = 3
_DEBUG_HEADERS = {"x-dovetail-debug": "prefix"}


class RunAbortedError(CompareError):
    """Raised if the experiment cannot be continued; finished runs are stored."""


class EndpointFailedError(RunAbortedError):
    """Raised if the endpoint of a profile fails in every attempt of a run."""


class _RunFailedError(Exception):
    """Raised if a run cannot be measured because of its endpoint."""


ProgressCallback = Callable[[RunRecord], None]
"""Called with the record of each finished run."""


@dataclass
class ExperimentRunner:
    """Runs the pairs of an experiment. `finished` are the completed runs by their key."""

    program: HarnessProgram
    tasks: Mapping[str, CodingTask]
    endpoints: Mapping[ProfileName, ProfileEndpoint]
    store: ExperimentStore
    finished: dict[RunKey, RunRecord]
    progress: ProgressCallback
    retry_delay_seconds: float = 2.0
    _restart_lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    async def run(self, pairs: Sequence[PlannedPair], jobs: int) -> None:
        """Run what is not finished. Raises RunAbortedError; finished runs are stored."""
        remaining = (pair for pair in pairs if not all(one.key in self.finished for one in pair))
        workers = [asyncio.create_task(self._work(remaining)) for _ in range(jobs)]
        try:
            await asyncio.gather(*workers)
        except OSError as error:
            raise RunAbortedError(f"a run could not be prepared or stored: {error}") from error
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, remaining: Iterator[PlannedPair]) -> None:
        for pair in remaining:
            for planned in pair:
                if planned.key not in self.finished:
                    other = pair[1] if planned is pair[0] else pair[0]
                    await self._run_once(planned, other)

    async def _run_once(self, planned: PlannedRun, other: PlannedRun) -> None:
        record, requests = await self._run_with_retries(planned)
        if record.status == "completed":
            self.store.write_requests(planned.name, requests)
            self._add_record(record, other, requests)
        else:
            self.store.append(record)
        self.progress(record)

    def _add_record(
        self, record: RunRecord, other: PlannedRun, requests: Sequence[SessionRequest]
    ) -> None:
        """Store a record, and with profile b the difference between the two runs of the pair."""
        before = self.finished.get(other.key)
        stored = self.store.read_requests(other.name) if before is not None else None
        if before is not None and stored is not None and record.profile == "b":
            difference = find_difference(stored, requests)
            record = msgspec.structs.replace(record, difference=difference)
        self.store.append(record)
        self.finished[(record.task, record.repetition, record.profile)] = record
        if before is not None and stored is not None and record.profile == "a":
            difference = find_difference(requests, stored)
            if difference is not None:
                self.finished[other.key] = msgspec.structs.replace(before, difference=difference)
                self.store.append(self.finished[other.key])

    async def _run_with_retries(
        self, planned: PlannedRun
    ) -> tuple[RunRecord, list[SessionRequest]]:
        endpoint, problem = self.endpoints[planned.profile], ""
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                await asyncio.sleep(self.retry_delay_seconds)
            try:
                async with self._restart_lock:
                    await asyncio.to_thread(endpoint.restart_if_dead)
                return await self._run(planned, endpoint)
            except (_RunFailedError, CompareError) as error:
                problem = str(error)
        self.store.append(_failed_record(planned, problem))
        raise EndpointFailedError(
            f"{endpoint.describe()} failed {MAX_ATTEMPTS} times in task {planned.task!r}: {problem}"
        )

    async def _run(
        self, planned: PlannedRun, endpoint: ProfileEndpoint
    ) -> tuple[RunRecord, list[SessionRequest]]:
        task = self.tasks[planned.task]
        folder = _create_scratch()
        log_path = self.store.log_dir / f"{planned.name}.log"
        try:
            task.copy_workspace(folder / "work")
            request = HarnessRequest(
                self.program, endpoint.profile, endpoint.target, task, folder, planned.seed
            )
            result, exchanges = await _run_observed(request, log_path)
            problem = _find_failure(result, exchanges, log_path)
            if problem is not None:
                raise _RunFailedError(problem)
            record = await _build_record(planned, request, result, exchanges)
            return record, to_session_requests(exchanges, name_scratch_folder(folder))
        finally:
            remove_folder(folder)


def _create_scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="dovetail-compare-")).resolve()


async def _run_observed(
    request: HarnessRequest, log_path: Path
) -> tuple[HarnessResult, list[DecodedExchange]]:
    """Run the harness behind a relay that captures its exchanges with the endpoint."""
    captured: list[CapturedExchange] = []
    observer = TrafficObserver(captured.append)
    endpoint = Endpoint.parse(request.target.address)
    relay = TcpRelay(endpoint, observer.observe, headers=_DEBUG_HEADERS)
    observer.start()
    try:
        address = await relay.listen("127.0.0.1", 0) + endpoint.base
        target = replace(request.target, address=address)
        result = await run_harness(replace(request, target=target), log_path)
    finally:
        await relay.close()
        await asyncio.to_thread(observer.close)
    if relay.stats.unreachable:
        raise _RunFailedError(f"cannot connect to {endpoint}")
    if observer.unobserved:
        reasons = ", ".join(observer.unobserved)
        raise _RunFailedError(f"the traffic of the harness could not be observed: {reasons}")
    return result, decode_exchanges(captured)


def _find_failure(
    result: HarnessResult, exchanges: Sequence[DecodedExchange], log_path: Path
) -> str | None:
    """Return why a run cannot be measured, if so: a failure of the endpoint or of the harness."""
    problem = describe_failure(exchanges)
    has_response = any(one.response.first_token is not None for one in exchanges)
    if problem is None or (result.status is None and has_response):
        return None  # the time limit ended the harness, and with it the last exchange
    status = "" if not result.status else f"; the harness exited with status {result.status}"
    return f"{problem}{status} (log: {log_path})"


async def _build_record(
    planned: PlannedRun,
    request: HarnessRequest,
    result: HarnessResult,
    exchanges: Sequence[DecodedExchange],
) -> RunRecord:
    measures = asdict(measure_run(exchanges))
    record = RunRecord(
        **asdict(planned), status="completed", wall_seconds=result.seconds, **measures
    )
    try:
        problem = await request.task.check(request.work_dir)
    except CheckError as error:
        return msgspec.structs.replace(record, status="failed", problem=str(error))
    if problem is None:
        return msgspec.structs.replace(record, solved=True)
    if result.status is None:
        limit = request.task.timeout_seconds
        problem = f"the harness did not finish within {limit:g} seconds ({problem})"
    elif result.status:
        problem = f"the harness exited with status {result.status} ({problem})"
    return msgspec.structs.replace(record, problem=problem)


def _failed_record(planned: PlannedRun, problem: str) -> RunRecord:
    return RunRecord(**asdict(planned), status="failed", problem=problem)
