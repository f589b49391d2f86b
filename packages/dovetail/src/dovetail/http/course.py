"""What the pipeline tells of one request: its prompt, its replicas, its tokens."""

from time import perf_counter

from dovetail.http.standing import prefix_stats
from dovetail.pipeline.execution import RequestObserver
from dovetail.pipeline.preparation import PreparedRequest
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import PrefixStats
from dovetail_model import Usage


class PipelineTracker:
    """The way of one request through the pipeline. What is counted at once, is."""

    __slots__ = (
        "_cached_reported",
        "_metrics",
        "_model",
        "carried_tokens",
        "migrations",
        "notes",
        "prefix",
        "prepared",
        "prepared_at",
        "replica",
        "usage_by_choice",
    )

    def __init__(self, metrics: Metrics, model: str = "") -> None:
        self._metrics = metrics
        self._model = model
        self._cached_reported = False
        self.prepared: PreparedRequest | None = None
        self.prepared_at: float | None = None
        self.prefix: PrefixStats | None = None
        self.replica: int | None = None  # the last that was asked
        self.migrations = 0
        self.carried_tokens = 0  # tokens that went along
        self.notes: dict[str, None] = {}  # what a client hears without asking
        self.usage_by_choice: dict[int, Usage] = {}  # of each choice, its tokens when it was over

    def create_observer(self) -> RequestObserver:
        return RequestObserver(
            on_prepared=self._on_prepared,
            on_note=self._on_note,
            on_inexact=self._on_inexact,
            on_migrated=self._on_migrated,
            on_upstream_request=self._on_sent_upstream,
            on_replica_assigned=self._on_replica_selected,
            on_choice_finished=self._on_choice_finished,
        )

    def reprefilled_tokens(self, usage: Usage | None) -> int | None:
        """Prompt tokens that had been read before and were read again; None where nobody says."""
        if usage is None or self.prefix is None or not self._cached_reported:
            return None
        return max(0, self.prefix.common - usage.cached_tokens)

    def _on_prepared(self, prepared: PreparedRequest) -> None:
        self.prepared = prepared
        self.prepared_at = perf_counter()
        self.prefix = prefix_stats(prepared)
        failed = prepared.prompt.notes.count("splice_failed")
        self._metrics.count_prompt(self._model, self.prefix, failed)

    def _on_note(self, note: str) -> None:
        """Something that the client demanded and does not get."""
        self.notes[note] = None

    def _on_inexact(self) -> None:
        self._metrics.count_inexact_turn(self._model)

    def _on_migrated(self, carried: int) -> None:
        """Another replica goes on, and is given what was said so far."""
        self.migrations += 1
        self.carried_tokens += carried
        self._metrics.count_migration(self._model, carried)

    def _on_sent_upstream(self, turns: int) -> None:
        """The turns went to an upstream as text: how they stand in its prompt is not known."""
        self._metrics.count_replayed_turns(self._model, {"relayed": turns})

    def _on_replica_selected(self, replica: int) -> None:
        self.replica = replica

    def _on_choice_finished(self, choice: int, usage: Usage, cached_reported: bool) -> None:
        """A choice is over, be it because the client hung up. An upstream's is told by events."""
        self.usage_by_choice[choice] = usage
        self._cached_reported |= cached_reported
