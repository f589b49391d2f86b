"""An answer in one piece: the fold of the same events that a stream would show."""

import time
from contextlib import aclosing

from dovetail.http.account import Account
from dovetail.http.ids import new_id
from dovetail.pipeline import Answer
from dovetail_model import Fold, Request, error_of
from dovetail_protocols import Codec


async def collect(answer: Answer, request: Request, codec: Codec, account: Account) -> bytes:
    """The body. An answer that broke is an error, never a short answer."""
    folds = [Fold() for _ in range(max(1, request.sampling.n))]
    async with aclosing(answer):
        async for choice, events in answer:
            account.heard(choice, events)
            add = folds[choice].add
            for event in events:
                add(event)
    messages = [fold.message() for fold in folds]
    for message in messages:
        if message.failure is not None:
            raise error_of(message.failure)
    return codec.encode_message(request, messages, new_id, time.time)
