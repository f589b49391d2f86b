"""Watch mode: connect relay, observer, recorder, analysis and display."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from dovetail.access.browser import BrowserPolicy
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
    """Options of watch mode. `policy`: the hosts and origins that may use the relay."""

    record: Path | None = None
    policy: BrowserPolicy | None = None
    limits: CaptureLimits = field(default_factory=CaptureLimits)


class Watcher:
    """Records and analyzes exchanges, and reports on them."""

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
        self.relay = TcpRelay(endpoint, self.observer.observe, options.policy)
        self._unrecorded: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()  # in fix mode: forwarded requests, by reason

    def count_fallback(self, reason: str) -> None:
        """Count a request that fix mode forwarded to the server."""
        count_name(self.fallbacks, reason)

    def start(self) -> None:
        self.observer.start()

    def close(self) -> None:
        """Process the queue, then close everything."""
        self.observer.close()
        self._display.close()
        if self._recorder is not None:
            with suppress(OSError):  # counted already
                self._recorder.close()

    def process(self, exchange: CapturedExchange) -> None:
        """Record, analyze and show a finished exchange."""
        if self._recorder is not None:
            try:
                self._recorder.write(exchange)
            except OSError as error:  # usually a full disk: the exchange is still analyzed
                self._unrecorded[str(error.strerror)] += 1
        analysis = self._analyzer.analyze(exchange)
        with self._lock:
            self.summary.add(analysis)
            self._display.show(analysis, self.summary)

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
        forwarded = {
            f"forwarded to the server: {reason}": count for reason, count in self.fallbacks.items()
        }
        stats = self.relay.stats
        failed_connections = {
            reason: count
            for reason, count in (
                ("cannot connect to the server", stats.unreachable),
                ("refused: foreign host or origin", stats.refused),
            )
            if count
        }
        unobserved = {
            f"not analyzed: {reason}": count for reason, count in self.observer.unobserved.items()
        }
        unrecorded = {
            f"not recorded: {reason}": count for reason, count in self._unrecorded.items()
        }
        return {**failed_connections, **unobserved, **unrecorded, **forwarded}
