"""The stream of a response for whoever follows it, whether it is made here or elsewhere."""

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from dovetail.http.exchange import ApiExchange, final_body_message
from dovetail.http.response import EVENT_STREAM_TYPE, STREAM_HEADERS
from dovetail.http.responses.run import CHUNK_BYTES, FrameLog, ResponseKey
from dovetail.net.disconnect import DisconnectGuard

_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')


class ResponsePeers(Protocol):
    """The other processes of this server. Of a response, one of them at most is at work."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """The stream of a response, from behind a frame on. None: it is at hand nowhere.

        Where its process falls it raises: what is not whole must not look so. It is to be closed.
        """

    async def cancel(self, key: ResponseKey) -> bool:
        """Returns when it is called off and in the store. False: nobody works on it."""

    async def forget(self, key: ResponseKey) -> None:
        """Has them forget what they hold of a response that was deleted."""


class NoResponsePeers:
    """There are no others."""

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        return None

    async def cancel(self, key: ResponseKey) -> bool:
        return False

    async def forget(self, key: ResponseKey) -> None:
        return None


async def read_chunks(frames: FrameLog, after: int = -1) -> AsyncGenerator[bytes]:
    """The frames with a higher number, a little at a time.

    What is not taken yet stays with the frames: there may be many who follow, and they share them.
    """
    at = 0
    while at < len(frames.chunks) or not frames.ended:
        if at == len(frames.chunks):
            await frames.wait()
            continue
        end = frames.batch_end(at)
        body = b"".join(_frames_after(b"".join(frames.chunks[at:end]), after))
        at = end
        for start in range(0, len(body), CHUNK_BYTES):
            yield body[start : start + CHUNK_BYTES]


async def send_stream(exchange: ApiExchange, stream: AsyncGenerator[bytes]) -> None:
    """A stream to whoever stays to see it, no more at a time than is read."""
    async with aclosing(stream):
        await exchange.start(200, EVENT_STREAM_TYPE, STREAM_HEADERS)
        async with DisconnectGuard(exchange.receive) as lifeline:
            async for part in stream:
                await exchange.send({"type": "http.response.body", "body": part, "more_body": True})
            lifeline.release()
    await exchange.send(final_body_message())


def _frames_after(frames: bytes, after: int) -> list[bytes]:
    """The frames with a higher number. They are in order, so mostly it is all or none."""
    first = _SEQUENCE_NUMBER.search(frames)
    if after < 0 or (first is not None and int(first[1]) > after):
        return [frames]
    found: list[bytes] = []
    for frame in frames.split(b"\n\n"):
        number = _SEQUENCE_NUMBER.search(frame)
        if number is not None and int(number[1]) > after:
            found.append(frame + b"\n\n")
    return found
