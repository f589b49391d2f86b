"""An answer in one piece: the fold of the same events that a stream would show."""

import time

from dovetail.http.ids import ResponseIds
from dovetail.http.tracker import RequestTracker
from dovetail_model import Event, Fold, Request, error_from_failure
from dovetail_protocols import Codec


class BufferedResponse:
    """Folds an answer while it comes."""

    __slots__ = ("_tracker", "_codec", "_folds", "_request")

    def __init__(self, request: Request, codec: Codec, account: RequestTracker) -> None:
        self._request = request
        self._codec = codec
        self._tracker = account
        self._folds = [Fold() for _ in range(max(1, request.sampling.n))]

    def write(self, choice: int, events: list[Event]) -> bool:
        self._tracker.on_events(choice, events)
        add = self._folds[choice].add
        for event in events:
            add(event)
        return True

    async def drain(self) -> None:
        """There always is."""

    def encode_body(self) -> bytes:
        """The body. An answer that broke is an error, never a short answer."""
        messages = [fold.message() for fold in self._folds]
        for message in messages:
            if message.failure is not None:
                raise error_from_failure(message.failure)
        ids = ResponseIds(self._request.identity.answer)
        return self._codec.encode_message(self._request, messages, ids, time.time)
