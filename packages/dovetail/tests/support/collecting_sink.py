"""Collect the events of the pipeline, batch by batch."""

from dovetail.pipeline.execution import run_request
from dovetail.pipeline.registry import ModelEntry
from dovetail_model import Event, Request


class RecordingSink:
    """An `EventSink` that records its events and is never full."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Event]]] = []

    def write(self, choice: int, events: list[Event]) -> bool:
        self.batches.append((choice, list(events)))
        return True

    async def drain(self) -> None:
        """Return immediately: the sink is never full."""


async def run_and_collect(entry: ModelEntry, request: Request, call: str = "call") -> list[Event]:
    """Run a request with one choice, and return all its events."""
    sink = RecordingSink()
    await run_request(entry, request, lambda: call, sink)
    return [event for _, events in sink.batches for event in events]
