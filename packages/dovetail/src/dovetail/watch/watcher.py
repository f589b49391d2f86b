"""Watch mode as a whole: relay, observer, recorder, and where it is told."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from dovetail.net.http_client import Endpoint
from dovetail.watch.analysis import TrafficSummary, count_name
from dovetail.watch.analyzer import ExchangeAnalyzer
from dovetail.watch.capture import CaptureLimits
from dovetail.watch.exchange import CapturedExchange, ExchangeRecorder
from dovetail.watch.observer import TrafficObserver
from dovetail.watch.reference_model import ReferenceModels
from dovetail.watch.relay import TcpRelay
from dovetail.watch.report import WatchDisplay, format_summary, to_summary_json


@dataclass(frozen=True)
class WatchOptions:
    """What can be set about watching."""

    record: Path | None = None
    limits: CaptureLimits = field(default_factory=CaptureLimits)


class Watcher:
    """Looks at exchanges, keeps the sums, and tells."""

    def __init__(
        self,
        endpoint: Endpoint,
        references: ReferenceModels,
        display: WatchDisplay,
        options: WatchOptions | None = None,
    ) -> None:
        options = options or WatchOptions()
        self.summary = TrafficSummary()
        self._display = display
        self._analyzer = ExchangeAnalyzer(references)
        self._recorder = ExchangeRecorder(options.record, str(endpoint)) if options.record else None
        self._lock = Lock()
        self.observer = TrafficObserver(self.process, options.limits, self._analyzer.close)
        self.relay = TcpRelay(endpoint, self.observer.observe)
        self._unrecorded: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()  # in fix mode: requests that were passed on

    def count_fallback(self, reason: str) -> None:
        """In fix mode: a request was passed on to the server."""
        count_name(self.fallbacks, reason)

    def start(self) -> None:
        self.observer.start()

    def close(self) -> None:
        """Looks at what is left, then lets go of everything."""
        self.observer.close()
        self._display.close()
        if self._recorder is not None:
            with suppress(OSError):  # counted already
                self._recorder.close()

    def process(self, exchange: CapturedExchange) -> None:
        """An exchange that has ended."""
        if self._recorder is not None:
            try:
                self._recorder.write(exchange)
            except OSError as error:  # a full disk, as a rule: what is said is still looked at
                self._unrecorded[str(error.strerror)] += 1
        verdict = self._analyzer.analyze(exchange)
        with self._lock:
            self.summary.add(verdict)
            self._display.show(verdict, self.summary)

    def format_report(self) -> str:
        with self._lock:
            return format_summary(
                self.summary, self._unobserved_counts(), self.observer.other_exchanges
            )

    def build_report_json(self) -> dict[str, object]:
        with self._lock:
            return to_summary_json(
                self.summary, self._unobserved_counts(), self.observer.other_exchanges
            )

    def _unobserved_counts(self) -> dict[str, int]:
        passed = {f"passed on to the server: {why}": n for why, n in self.fallbacks.items()}
        missed = self.relay.stats.unreachable
        lost = {"no connection to the server": missed} if missed else {}
        unseen = {f"not looked at: {why}": n for why, n in self.observer.unobserved.items()}
        unsaved = {f"not recorded: {why}": n for why, n in self._unrecorded.items()}
        return {**lost, **unseen, **unsaved, **passed}
