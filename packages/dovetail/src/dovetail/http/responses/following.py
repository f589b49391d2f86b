"""The stream of a response for whoever follows it, whether it is made here or elsewhere."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from dovetail.http.exchange import Exchange, end_of
from dovetail.http.response import HEADERS, SSE
from dovetail.http.responses.run import PIECE, Frames, Key
from dovetail.net.disconnect import DisconnectGuard

_NUMBER = re.compile(rb'"sequence_number":(\d+)')


class Others(Protocol):
    """The other processes of this server. Of a response, one of them at most is at work."""

    async def follow(self, key: Key, after: int) -> AsyncGenerator[bytes] | None:
        """The stream of a response, from behind a frame on. None: it is at hand nowhere.

        Where its process falls it raises: what is not whole must not look so. It is to be closed.
        """

    async def cancel(self, key: Key) -> bool:
        """Returns when it is called off and in the store. False: nobody works on it."""

    async def forget(self, key: Key) -> None:
        """Has them forget what they hold of a response that was deleted."""


class Alone:
    """There are no others."""

    async def follow(self, key: Key, after: int) -> AsyncGenerator[bytes] | None:
        return None

    async def cancel(self, key: Key) -> bool:
        return False

    async def forget(self, key: Key) -> None:
        return None


async def pieces(frames: Frames, after: int = -1) -> AsyncGenerator[bytes]:
    """The frames with a higher number, a little at a time.

    What is not taken yet stays with the frames: there may be many who follow, and they share them.
    """
    at = 0
    while at < len(frames.all) or not frames.over:
        if at == len(frames.all):
            await frames.more()
            continue
        end = frames.piece(at)
        body = b"".join(_behind(b"".join(frames.all[at:end]), after))
        at = end
        for start in range(0, len(body), PIECE):
            yield body[start : start + PIECE]


async def show(exchange: Exchange, stream: AsyncGenerator[bytes]) -> None:
    """A stream to whoever stays to see it, no more at a time than is read."""
    async with aclosing(stream):
        await exchange.begin(200, SSE, HEADERS)
        async with DisconnectGuard(exchange.receive) as lifeline:
            async for part in stream:
                await exchange.send({"type": "http.response.body", "body": part, "more_body": True})
            lifeline.release()
    await exchange.send(end_of())


def _behind(frames: bytes, after: int) -> list[bytes]:
    """The frames with a higher number. They are in order, so mostly it is all or none."""
    first = _NUMBER.search(frames)
    if after < 0 or (first is not None and int(first[1]) > after):
        return [frames]
    found: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        number = _NUMBER.search(frame)
        if number is not None and int(number[1]) > after:
            found.append(frame + b"\n\n")
    return found
