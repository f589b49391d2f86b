"""The account of one request: what happened to it and when, for metrics, logs and headers."""

from bisect import bisect_left
from itertools import pairwise
from time import perf_counter

from dovetail.http.exchange import Exchange
from dovetail.log import log_request
from dovetail.metrics import GAPS, Gaps, Metrics
from dovetail.preparation import Prepared
from dovetail.request_end import RequestEnd
from dovetail.service import Offered
from dovetail.stability import describe, headers
from dovetail_model import Diagnostic, DovetailError, Event, Failure, Finish, Request, Usage

HUNG_UP = 499  # no status that anybody gets: the client is gone
UNCOUNTED = 64  # batches whose times may wait: counted in one go, each costs a fraction


class Account:
    """Kept from the first byte of a request to the last of its answer."""

    __slots__ = (
        "_endpoint",
        "_ends",
        "_error",
        "_exchange",
        "_first",
        "_gaps",
        "_log_prefix",
        "_metrics",
        "_model",
        "_queued",
        "_request",
        "_status",
        "_times",
        "_told",
        "prepared",
    )

    def __init__(
        self, exchange: Exchange, endpoint: str, metrics: Metrics, *, log_prefix: bool = False
    ) -> None:
        self._exchange = exchange
        self._endpoint = endpoint
        self._metrics = metrics
        self._log_prefix = log_prefix
        self._request: Request | None = None
        self._model = ""
        self._gaps = Gaps()
        self._queued = False
        self._first: float | None = None
        self._ends: list[list[Event]] = []  # of each choice, the last events
        self._error: str | None = None
        self._status: int | None = None
        self._told: dict[str, None] = {}  # what a client hears without asking
        self.prepared: Prepared | None = None
        self._times = [exchange.started]  # when the engine was heard: the last is not forgotten

    def open(self) -> None:
        """The request is counted from now on."""
        self._metrics.began(self._endpoint)

    def asked(self, request: Request, served: Offered) -> None:
        """The request is understood and its model is known."""
        self._request = request
        self._model = served.name
        self._gaps = self._metrics.gaps(served.name)
        self._ends = [[] for _ in range(max(1, request.sampling.n))]
        self._queued = True
        self._metrics.queued(+1)

    def on_prepared(self, prepared: Prepared) -> None:
        """The prompt is made."""
        self.prepared = prepared
        prompt = prepared.prompt
        self._metrics.prompted(
            self._model,
            prepared.diagnosis.reason,
            _replayed(prepared),
            prompt.notes.count("splice_failed"),
        )

    def on_inexact(self) -> None:
        self._metrics.inexact(self._model)

    def on_migrated(self) -> None:
        self._metrics.migrated(self._model)

    def on_relayed(self, turns: int) -> None:
        """The turns went to an upstream as text: how they stand in its prompt is not known."""
        self._metrics.replayed(self._model, {"relayed": turns})

    def on_note(self, note: str) -> None:
        """Something that the client demanded and does not get."""
        self._told[note] = None

    def heard(self, choice: int, events: list[Event]) -> None:
        """More of the answer. Runs for every batch of tokens, so it does next to nothing."""
        self._times.append(perf_counter())
        self._ends[choice] = events
        if (
            len(events) > 1
            or type(events[0]) is Diagnostic
            or self._first is None
            or len(self._times) > UNCOUNTED
        ):
            self._look_closer(events)

    def _look_closer(self, events: list[Event]) -> None:
        if self._first is None:
            self._await_first(events)
        elif len(self._times) > UNCOUNTED:
            self._count_gaps()
        for event in events:
            if type(event) is Diagnostic:
                self._metrics.diagnosed(self._model, event.code)

    def _await_first(self, events: list[Event]) -> None:
        """The true input tokens are told before the model has said anything."""
        del self._times[:-1]
        if len(events) > 1 or type(events[0]) is not Usage:
            self._first = self._times[-1]
            self._leave_queue()

    def _count_gaps(self) -> None:
        """The times between batches, from the first tokens on."""
        times, counts = self._times, self._gaps.counts
        for before, now in pairwise(times):
            counts[bisect_left(GAPS, now - before)] += 1
        self._gaps.sum += times[-1] - times[0]
        del times[:-1]

    @property
    def silent(self) -> bool:
        """Whether the model has said nothing yet."""
        return self._first is None

    @property
    def thinks(self) -> bool:
        """Whether the prompt has opened a thought that the model goes on with."""
        return self.prepared is not None and self.prepared.prompt.in_reasoning

    def silence(self) -> float:
        """Seconds since something was heard."""
        return perf_counter() - self._times[-1]

    @property
    def failure(self) -> Failure | None:
        """The failure that the answer ended with, if it did."""
        ends = (events[-1] for events in self._ends if events)
        return next((end for end in ends if isinstance(end, Failure)), None)

    def headers(self) -> list[tuple[str, str]]:
        """What the client asked to be told about its request."""
        found: list[tuple[str, str]] = []
        if self.prepared is not None and self._exchange.wants("prefix"):
            found += headers(self.prepared.diagnosis)
        notes = [*self._told, *(self._notes() if self._exchange.wants("notes") else ())]
        if notes or self._exchange.wants("notes"):
            found.append(("x-dovetail-diagnostics", ", ".join(notes)))
        return found

    def _notes(self) -> list[str]:
        """What was done to the request that its sender may not expect."""
        notes = list(dict.fromkeys(self.prepared.prompt.notes)) if self.prepared else []
        if self._request is not None:
            notes += [f"ignored:{path}" for path in self._request.ignored]
        return notes

    def failed(self, error: DovetailError, status: int) -> None:
        self._error, self._status = error.kind, status

    def hung_up(self) -> None:
        self._status = HUNG_UP

    def close(self) -> None:
        """The request is over."""
        self._count_gaps()
        self._leave_queue()
        end = self._end()
        self._metrics.ended(end)
        log_request(end)

    def _leave_queue(self) -> None:
        if self._queued:
            self._queued = False
            self._metrics.queued(-1)

    def _end(self) -> RequestEnd:
        exchange, request = self._exchange, self._request
        diagnosis = self.prepared.diagnosis if self.prepared is not None else None
        identity = request.identity if request is not None else None
        return RequestEnd(
            id=exchange.request_id,
            endpoint=self._endpoint,
            status=self._status or exchange.status or HUNG_UP,
            duration=perf_counter() - exchange.started,
            model=self._model,
            asked=request.model if request is not None else "",
            stream=request is not None and request.stream,
            tenant=exchange.tenant,
            session=identity.session if identity is not None else None,
            agent=identity.agent if identity is not None else None,
            usage=self._usage(),
            first_token=None if self._first is None else self._first - exchange.started,
            finish=self._finish(),
            error=self._error,
            disconnected=self._status == HUNG_UP,
            prefix=describe(diagnosis) if diagnosis and self._log_prefix else None,
        )

    def _finish(self) -> str | None:
        """Why the answer ended; of several choices, the first one's reason."""
        if self.failure is not None:
            return "error"
        ends = (events[-1] for events in self._ends if events)
        return next((end.reason for end in ends if isinstance(end, Finish)), None)

    def _usage(self) -> Usage | None:
        """The tokens of all choices. Their prompt is one, and counted once."""
        told = [e for events in self._ends for e in events[-2:] if isinstance(e, Usage)]
        if not told:
            return self._prompt_alone()
        return Usage(
            input_tokens=max(usage.input_tokens for usage in told),
            output_tokens=sum(usage.output_tokens for usage in told),
            cached_tokens=min(usage.cached_tokens for usage in told),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in told),
        )

    def _prompt_alone(self) -> Usage | None:
        """What is known of an answer that nobody heard the end of."""
        if self.prepared is None or self._first is None:
            return None
        return Usage(input_tokens=len(self.prepared.prompt.ids))


def _replayed(prepared: Prepared) -> dict[str, int]:
    """How the assistant turns stand in the prompt, from the first that was not there before."""
    prompt, turns = prepared.prompt, prepared.request.turns
    start = prompt.recalled.anchor or 0
    end = len(turns) - (1 if turns and turns[-1].role == "assistant" else 0)
    spoken = sum(turns[at].role == "assistant" for at in range(start, end))
    exact, written = len(prompt.exact | prompt.kept), len(prompt.written)
    return {"exact": exact, "written": written, "natural": max(0, spoken - exact - written)}
