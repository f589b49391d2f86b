"""What an application asks of its siblings, and what it answers them."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from dovetail.http.app import App
from dovetail.http.responses.following import read_chunks
from dovetail.http.responses.run import ResponseKey
from dovetail.server.numbers import Numbers
from dovetail.server.worker_peers import BrokenOff, Question, Siblings, begun
from dovetail_model import RateLimited

MOST_FOLLOWED = 256  # streams of siblings that are shown by one process
MOST_OF_ONE = 64  # of one tenant
RETRY_AFTER = 5.0  # seconds
LONGEST_END = 30.0  # seconds for a run to end that was called off

FOLLOW, CANCEL, FORGET = "follow", "cancel", "forget"


@asynccontextmanager
async def joined(app: App, folder: Path, number: int, count: int) -> AsyncIterator[None]:
    """Makes an application one of `count` that serve together, for as long as the block lasts."""
    siblings = Siblings(folder, number, count)
    app.render_metrics = Numbers(app.metrics.registry, siblings).render
    app.background.peers = _Others(siblings)
    _Answers(app).offer(siblings)
    await siblings.open()
    try:
        yield
    finally:
        await siblings.close()


class _Others:
    """What is asked about responses."""

    def __init__(self, siblings: Siblings) -> None:
        self._siblings = siblings
        self._followed: Counter[str] = Counter()  # by tenant

    async def follow(self, key: ResponseKey, after: int) -> AsyncGenerator[bytes] | None:
        """The stream of a response that one of them makes, or made a while ago."""
        followed = self._followed
        if followed.total() >= MOST_FOLLOWED or followed[key[0]] >= MOST_OF_ONE:
            raise RateLimited("Too many streams are followed.", retry_after=RETRY_AFTER)
        return await begun(self._shown(Question(FOLLOW, *key, after)))

    async def cancel(self, key: ResponseKey) -> bool:
        """Whether one of them has called it off, and has seen it to its end."""
        found = await self._siblings.find(Question(CANCEL, *key))
        if found is None:
            return False
        try:
            async with asyncio.timeout(LONGEST_END), aclosing(found):
                async for _ in found:
                    pass
        except (BrokenOff, TimeoutError):
            return False
        return True

    async def forget(self, key: ResponseKey) -> None:
        """Has them let go of a response that was deleted, and waits until they have."""
        await self._siblings.ask(Question(FORGET, *key), LONGEST_END)

    async def _shown(self, question: Question) -> AsyncGenerator[bytes]:
        self._followed[question.tenant] += 1
        try:
            if (found := await self._siblings.find(question)) is None:
                return
            async with aclosing(found):
                yield b""
                async for part in found:
                    yield part
        finally:
            self._followed[question.tenant] -= 1
            self._followed += Counter()  # without those that follow none


class _Answers:
    """What is answered about responses. First comes an empty frame, from the one that has it."""

    def __init__(self, app: App) -> None:
        self._app = app

    def offer(self, siblings: Siblings) -> None:
        siblings.offer(FOLLOW, self._follow)
        siblings.offer(CANCEL, self._cancel)
        siblings.offer(FORGET, self._forget)

    async def _follow(self, question: Question) -> AsyncGenerator[bytes]:
        frames = self._app.background.find_frames(question.key)
        if frames is None:
            return
        yield b""
        async with aclosing(read_chunks(frames, question.after)) as stream:
            async for part in stream:
                yield part

    async def _cancel(self, question: Question) -> AsyncGenerator[bytes]:
        background = self._app.background
        if background.is_running(question.key):
            yield b""
            await background.stop(question.key)

    async def _forget(self, question: Question) -> AsyncGenerator[bytes]:
        await self._app.forget_response(question.key)
        yield b""
