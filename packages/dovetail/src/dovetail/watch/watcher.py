"""Watch mode as a whole: relay, observer, recorder, and where it is told."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from dovetail.net.http_client import Endpoint
from dovetail.watch.analysis import Summary, tally
from dovetail.watch.analyzer import Analyst
from dovetail.watch.capture import Limits
from dovetail.watch.exchange import Exchange
from dovetail.watch.observer import Tee
from dovetail.watch.recording import Recorder
from dovetail.watch.reference_model import Lenses
from dovetail.watch.relay import Relay
from dovetail.watch.report import as_json, summary_text
from dovetail.watch.screen import Screen


@dataclass(frozen=True)
class Options:
    """What can be set about watching."""

    record: Path | None = None
    limits: Limits = field(default_factory=Limits)


class Watching:
    """Looks at exchanges, keeps the sums, and tells."""

    def __init__(
        self, endpoint: Endpoint, lenses: Lenses, screen: Screen, options: Options | None = None
    ) -> None:
        options = options or Options()
        self.summary = Summary()
        self._screen = screen
        self._analyst = Analyst(lenses)
        self._recorder = Recorder(options.record, str(endpoint)) if options.record else None
        self._lock = Lock()
        self.tee = Tee(self.take, options.limits, self._analyst.close)
        self.relay = Relay(endpoint, self.tee.sees)
        self._unrecorded: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()  # in fix mode: requests that were passed on

    def fell_back(self, reason: str) -> None:
        """In fix mode: a request was passed on to the server."""
        tally(self.fallbacks, reason)

    def start(self) -> None:
        self.tee.start()

    def close(self) -> None:
        """Looks at what is left, then lets go of everything."""
        self.tee.close()
        self._screen.close()
        if self._recorder is not None:
            with suppress(OSError):  # counted already
                self._recorder.close()

    def take(self, exchange: Exchange) -> None:
        """An exchange that has ended."""
        if self._recorder is not None:
            try:
                self._recorder.add(exchange)
            except OSError as error:  # a full disk, as a rule: what is said is still looked at
                self._unrecorded[str(error.strerror)] += 1
        verdict = self._analyst.look(exchange)
        with self._lock:
            self.summary.add(verdict)
            self._screen.show(verdict, self.summary)

    def report(self) -> str:
        with self._lock:
            return summary_text(self.summary, self._unobserved(), self.tee.others)

    def report_json(self) -> dict[str, object]:
        with self._lock:
            return as_json(self.summary, self._unobserved(), self.tee.others)

    def _unobserved(self) -> dict[str, int]:
        passed = {f"passed on to the server: {why}": n for why, n in self.fallbacks.items()}
        missed = self.relay.traffic.unreachable
        lost = {"no connection to the server": missed} if missed else {}
        unseen = {f"not looked at: {why}": n for why, n in self.tee.unobserved.items()}
        unsaved = {f"not recorded: {why}": n for why, n in self._unrecorded.items()}
        return {**lost, **unseen, **unsaved, **passed}
