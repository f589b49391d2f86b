"""An answer in one piece: the fold of the same events that a stream would show."""

import time

from dovetail.http.ids import AnswerIds
from dovetail.http.tracker import Account
from dovetail_model import Event, Fold, Request, error_of
from dovetail_protocols import Codec


class Whole:
    """Folds an answer while it comes."""

    __slots__ = ("_account", "_codec", "_folds", "_request")

    def __init__(self, request: Request, codec: Codec, account: Account) -> None:
        self._request = request
        self._codec = codec
        self._account = account
        self._folds = [Fold() for _ in range(max(1, request.sampling.n))]

    def hear(self, choice: int, events: list[Event]) -> bool:
        self._account.heard(choice, events)
        add = self._folds[choice].add
        for event in events:
            add(event)
        return True

    async def room(self) -> None:
        """There always is."""

    def body(self) -> bytes:
        """The body. An answer that broke is an error, never a short answer."""
        messages = [fold.message() for fold in self._folds]
        for message in messages:
            if message.failure is not None:
                raise error_of(message.failure)
        ids = AnswerIds(self._request.identity.answer)
        return self._codec.encode_message(self._request, messages, ids, time.time)
