"""The answer of the pipeline, kept batch by batch."""

from dovetail.pipeline.execution import run_request
from dovetail.pipeline.registry import ModelEntry
from dovetail_model import Event, Request


class RecordingSink:
    """An audience that keeps what it hears, and always has room."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Event]]] = []

    def write(self, choice: int, events: list[Event]) -> bool:
        self.batches.append((choice, list(events)))
        return True

    async def drain(self) -> None:
        """There always is."""


async def run_and_collect(served: ModelEntry, request: Request, call: str = "call") -> list[Event]:
    """All events of an answer with one choice."""
    audience = RecordingSink()
    await run_request(served, request, lambda: call, audience)
    return [event for _, events in audience.batches for event in events]
