"""The scripted engine: plays answers from a script in place of a model."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from math import ceil
from pathlib import Path

import msgspec

from dovetail.engines.engine import (
    ConstraintSyntax,
    EngineCapabilities,
    EngineHealth,
    EngineRequest,
    TokenDelta,
    TokenSink,
)
from dovetail.engines.scripted.generation_log import GenerationLog
from dovetail.engines.scripted.prefix_cache import PrefixCache
from dovetail.engines.scripted.reply import PreparedReply, ReplyBuilder, ReplyPlayback
from dovetail.engines.scripted.script import (
    ErrorKind,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    ReplyDelay,
    ReplyInterruption,
    Script,
)
from dovetail.engines.scripted.selection import ReplySelector
from dovetail_model import (
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from dovetail_tokenizers import Tokenizer

POLL_INTERVAL_SECONDS = 0.02  # seconds until what is waited for is looked at again


class InterruptibleTimer:
    """All waiting of an engine's generations. Once broken, none can be made."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self.interrupt_reason: str | None = None

    async def sleep(self, seconds: float | None) -> None:
        """Wait; without end for None, and for nothing at all just let others run."""
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._sleep_until_woken(seconds)
        self.raise_if_interrupted()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for something outside of the engine."""
        while not condition():
            await self.sleep(POLL_INTERVAL_SECONDS)

    def raise_if_interrupted(self) -> None:
        """Raises if the engine is gone."""
        if self.interrupt_reason is not None:
            raise EngineUnavailable(self.interrupt_reason)

    def interrupt(self, reason: str) -> None:
        """Everyone who waits, or will, gets an error with this reason."""
        self.interrupt_reason = reason
        for future in self._waiting:
            _wake(future)

    def resume(self) -> None:
        """Waiting is possible again."""
        self.interrupt_reason = None

    async def _sleep_until_woken(self, seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _wake, future)
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
            if timer is not None:
                timer.cancel()


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


CONSTRAINT_SYNTAXES: tuple[ConstraintSyntax, ...] = (
    "gbnf",
    "ebnf",
    "lark",
    "structural_tag",
    "json_schema",
)
ERROR_TYPES: dict[ErrorKind, type[EngineError]] = {
    "engine": EngineError,
    "unavailable": EngineUnavailable,
    "timeout": EngineTimeout,
    "overloaded": Overloaded,
}


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast it pretends to be, and what it remembers. A rate of 0 is as fast as possible.

    Rates are tokens a second, of one stream. `cache_blocks` is the prefix cache's capacity,
    `chunk` the tokens of a delta where the script does not say. `continues`: a prompt that ends
    with the beginning of its answer is gone on with, as a model would. `record` is a file in which
    prompts and answers are written down.
    """

    prefill_rate: NonNegativeFloat = 0.0
    decode_rate: NonNegativeFloat = 0.0
    chunk: PositiveInt = 1
    block_size: PositiveInt = 16
    cache_blocks: NonNegativeInt = 65_536
    context_length: PositiveInt | None = None
    continues: bool = False
    remember: NonNegativeInt = 32
    record: str | None = None


class ScriptedCounters:
    """What was done since the start, for whoever measures."""

    __slots__ = ("cached", "finished", "generated", "prompt", "running")

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = self.running = self.finished = 0

    def begin(self, prompt: int, cached: int) -> None:
        self.running += 1
        self.prompt += prompt
        self.cached += cached

    def end(self, generated: int) -> None:
        self.running -= 1
        self.finished += 1
        self.generated += generated


class ScriptedEngine:
    """A token engine without a model. `requests` are the last ones it was asked.

    A constraint is recorded with its request and not enforced: the script says what comes.
    """

    name = "scripted"

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Script,
        *,
        options: ScriptedOptions | None = None,
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.options = options = options or ScriptedOptions()
        self.capabilities = EngineCapabilities(
            constraints=CONSTRAINT_SYNTAXES,
            logprobs=True,
            cached_tokens=True,
            context_length=options.context_length,
        )
        self.requests: deque[EngineRequest] = deque(maxlen=options.remember)
        self.counters = ScriptedCounters()
        self.cache = PrefixCache(options.cache_blocks, options.block_size)
        self._tokenizer = tokenizer
        self._selector = ReplySelector(script, tokenizer)
        self._builder = ReplyBuilder(
            script, tokenizer, options.chunk, stop_ids, continues=options.continues
        )
        self._timer = InterruptibleTimer()
        self._generation_log = (
            GenerationLog(Path(options.record), tokenizer) if options.record else None
        )

    async def start(self) -> None:
        """Ready at once; also brings back an engine that has died."""
        self._timer.resume()

    async def stop(self) -> None:
        self._timer.interrupt("the engine was stopped")

    async def health(self) -> EngineHealth:
        broken = self._timer.interrupt_reason
        facts = {
            "running": self.counters.running,
            "cached_blocks": self.cache.blocks,
            "cache_usage": self.cache.usage,
        }
        return EngineHealth(broken is None, broken or "", facts)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """The deltas of the answer."""
        async with aclosing(self.generate_batches(request)) as bursts:
            async for burst in bursts:
                for delta in burst:
                    if not sink.push(delta) and not await sink.drain():
                        return

    async def generate_batches(
        self, request: EngineRequest
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """The same deltas, those that are due together in one list."""
        take = self._admit(request)
        cached = self.cache.look_up(request.prompt, request.cache_salt)
        reel = ReplyPlayback(take, self.options.decode_rate, cached)
        if request.sampling.logprobs is not None:
            reel.logprob_tokenizer = self._tokenizer
        self.counters.begin(len(request.prompt), cached)
        came = time.time()
        clock = asyncio.get_running_loop().time
        try:
            await self._prefill(len(request.prompt) - cached, take)
            self.cache.add(request.prompt, request.cache_salt)
            begun = _start_time(clock(), take.source.delay)
            while not reel.is_finished:
                if reel.is_started:
                    await self._timer.sleep(reel.next_due - (clock() - begun))
                if reel.wait_for is not None:
                    await self._timer.wait_until(reel.wait_for.exists)
                yield reel.next_batch(clock() - begun)
            if take.interruption is not None:
                await self._interrupt(take.interruption)
        finally:
            self.counters.end(reel.emitted_tokens)
            if self._generation_log is not None:
                self._generation_log.add(came, request, cached, take.ids[: reel.emitted_tokens])
            # What was sampled last has not been computed: it has no place in the cache.
            if reel.emitted_tokens > 1:
                said = array(request.prompt.typecode, take.ids[: reel.emitted_tokens - 1])
                self.cache.add(request.prompt + said, request.cache_salt)

    def _admit(self, request: EngineRequest) -> PreparedReply:
        self.requests.append(request)
        self._timer.raise_if_interrupted()
        window = self.options.context_length
        if window is not None:
            request = _limit_to_context(request, window)
        take = self._builder.resume(request)
        return take or self._builder.build(self._selector.select(request), request)

    async def _prefill(self, tokens: int, reply: PreparedReply) -> None:
        rate = self.options.prefill_rate
        await self._timer.sleep(reply.source.delay.first + (tokens / rate if rate else 0.0))

    async def _interrupt(self, interruption: ReplyInterruption) -> None:
        if interruption.mode == "die":
            self._timer.interrupt(interruption.message)
        if interruption.mode == "hang":
            await self._timer.sleep(None)
        raise ERROR_TYPES[interruption.kind](interruption.message)


def _start_time(now: float, delay: ReplyDelay) -> float:
    """When an answer begins: now, or with the next step of all answers."""
    if not delay.in_step or not delay.between:
        return now
    return ceil(now / delay.between) * delay.between


def _limit_to_context(request: EngineRequest, context_length: int) -> EngineRequest:
    """The request with no more tokens than the window has room for."""
    length = len(request.prompt)
    if length >= context_length:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {context_length - 1} maximum", param="prompt"
        )
    left = min(request.max_tokens, context_length - length)
    return msgspec.structs.replace(request, max_tokens=left)
