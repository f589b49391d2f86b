"""Callbacks with which the HTTP layer observes a request."""

from collections.abc import Callable
from dataclasses import dataclass

from dovetail.pipeline.preparation import PreparedRequest
from dovetail.pipeline.recovery import RecoveryKind
from dovetail_model import ServerToolKind, Usage


@dataclass(frozen=True)
class RequestObserver:
    """Callbacks of a request for metrics, logs and headers.

    `on_next_turn`: a further model turn of the same response is prepared, after server tools ran.
    `on_server_call`: a server tool ran; with its outcome (`ok` or an error code) and its seconds.
    """

    on_prepared: Callable[[PreparedRequest], None] = lambda prepared: None
    on_next_turn: Callable[[PreparedRequest], None] = lambda prepared: None
    on_server_call: Callable[[ServerToolKind, str, float], None] = lambda kind, outcome, s: None
    on_note: Callable[[str], None] = lambda note: None
    on_inexact: Callable[[], None] = lambda: None
    on_migrated: Callable[[int], None] = lambda carried: None
    on_recovered: Callable[[RecoveryKind, int, int], None] = lambda kind, inserted, dropped: None
    on_upstream_request: Callable[[int], None] = lambda turns: None
    on_replica_assigned: Callable[[int], None] = lambda replica: None
    on_choice_finished: Callable[[int, Usage, bool], None] = lambda choice, usage, cached_known: (
        None
    )
