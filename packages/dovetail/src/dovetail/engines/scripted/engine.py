"""The scripted engine: generates replies from a script instead of a model."""

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
from dovetail.engines.sampling import OPTIONAL_SAMPLING
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


class RecordedGeneration(msgspec.Struct, frozen=True):
    """A request and its output, as tokens and as text.

    `began`: when the request arrived, as Unix time.
    `output`: the tokens that were sent, which may be only a part of the reply.

    The encoded field names are the format of the file.
    """

    began: float
    prompt: tuple[int, ...]
    cached: int
    output: tuple[int, ...]
    session: str | None = None
    text: str = ""
    output_text: str = msgspec.field(default="", name="said")


class GenerationLog:
    """Writes one line of JSON per request, when its output has ended."""

    __slots__ = ("_path", "_tokenizer")

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self._path = path
        self._tokenizer = tokenizer
        # fails now, instead of at the first request, if the file cannot be written
        path.touch(0o600)

    def add(
        self, started: float, request: EngineRequest, cached: int, output: Sequence[int]
    ) -> None:
        """Write the line in one call, so that a reader never sees an incomplete line."""
        prompt = tuple(request.prompt)
        output_text = self._tokenizer.decode(output)
        text = self._tokenizer.decode(prompt)
        recorded = RecordedGeneration(
            started, prompt, cached, tuple(output), request.session, text, output_text
        )
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(recorded) + b"\n")


POLL_INTERVAL_SECONDS = 0.02


class InterruptibleTimer:
    """Sleeps of an engine's generations, all of which can be interrupted with an error."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self.interrupt_reason: str | None = None

    async def sleep(self, seconds: float | None) -> None:
        """Sleep, or wait forever if `seconds` is None.

        With 0 or less, only yield to other tasks.
        """
        if seconds is not None and seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._sleep_until_woken(seconds)
        self.raise_if_interrupted()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll a condition outside of the engine."""
        while not condition():
            await self.sleep(POLL_INTERVAL_SECONDS)

    def raise_if_interrupted(self) -> None:
        """Raise if the engine is interrupted."""
        if self.interrupt_reason is not None:
            raise EngineUnavailable(self.interrupt_reason)

    def interrupt(self, reason: str) -> None:
        """Make all current and later sleeps fail with this reason."""
        self.interrupt_reason = reason
        for future in self._waiting:
            _wake(future)

    def resume(self) -> None:
        """Allow sleeping again."""
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
    """Simulated speed and cache. A rate of 0 is as fast as possible.

    `prefill_rate`, `decode_rate`: tokens per second, per stream.
    `chunk`: tokens per delta, if the script does not set it.
    `cache_blocks`: the capacity of the prefix cache.
    `continues`: a prompt that ends with the beginning of its reply is continued, as by a model.
    `remember`: how many requests `ScriptedEngine.requests` retains.
    `record`: a file to which prompts and outputs are written.
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
    """Counts of requests and tokens since the start, for measurements."""

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
    """A token engine without a model. `requests` contains the last requests.

    Constraints and sampling parameters are recorded with their request and have no effect: the
    script defines the output. `selector` replaces the selection of a reply by the script's rules.
    """

    name = "scripted"

    def __init__(
        self,
        tokenizer: Tokenizer,
        script: Script,
        *,
        options: ScriptedOptions | None = None,
        stop_ids: Sequence[int] = (),
        selector: ReplySelector | None = None,
    ) -> None:
        self.options = options = options or ScriptedOptions()
        self.capabilities = EngineCapabilities(
            constraints=CONSTRAINT_SYNTAXES,
            sampling=frozenset(OPTIONAL_SAMPLING),
            logprobs=True,
            cached_tokens=True,
            context_length=options.context_length,
            kv_tokens=options.cache_blocks * options.block_size or None,
        )
        self.requests: deque[EngineRequest] = deque(maxlen=options.remember)
        self.counters = ScriptedCounters()
        self.cache = PrefixCache(options.cache_blocks, options.block_size)
        self._tokenizer = tokenizer
        self._selector = selector or ReplySelector(script, tokenizer)
        self._builder = ReplyBuilder(
            script, tokenizer, options.chunk, stop_ids, continues=options.continues
        )
        self._timer = InterruptibleTimer()
        self._generation_log = (
            GenerationLog(Path(options.record), tokenizer) if options.record else None
        )

    async def start(self) -> None:
        """Make the engine ready immediately. Also restarts an engine that has died."""
        self._timer.resume()

    async def stop(self) -> None:
        self._timer.interrupt("the engine was stopped")

    async def health(self) -> EngineHealth:
        reason = self._timer.interrupt_reason
        facts = {
            "running": self.counters.running,
            "cached_blocks": self.cache.blocks,
            "cache_usage": self.cache.usage,
        }
        return EngineHealth(reason is None, reason or "", facts)

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push the deltas of the reply."""
        async with aclosing(self.generate_batches(request)) as batches:
            async for batch in batches:
                for delta in batch:
                    if not sink.push(delta) and not await sink.drain():
                        return

    async def generate_batches(
        self, request: EngineRequest
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """Yield the same deltas in lists, one per batch of deltas that are due together."""
        reply = self._admit(request)
        cached = self.cache.look_up(request.prompt, request.cache_salt)
        playback = ReplyPlayback(reply, self.options.decode_rate, cached)
        if request.sampling.logprobs is not None:
            playback.logprob_tokenizer = self._tokenizer
        self.counters.begin(len(request.prompt), cached)
        received_at = time.time()
        clock = asyncio.get_running_loop().time
        try:
            await self._prefill(len(request.prompt) - cached, reply)
            self.cache.add(request.prompt, request.cache_salt)
            started_at = _start_time(clock(), reply.source.delay)
            while not playback.is_finished:
                if playback.is_started:
                    await self._timer.sleep(playback.next_due - (clock() - started_at))
                if playback.wait_for is not None:
                    await self._timer.wait_until(playback.wait_for.exists)
                yield playback.next_batch(clock() - started_at)
            if reply.interruption is not None:
                await self._interrupt(reply.interruption)
        finally:
            self.counters.end(playback.emitted_tokens)
            if self._generation_log is not None:
                self._generation_log.add(
                    received_at, request, cached, reply.ids[: playback.emitted_tokens]
                )
            # The KV entries of the last sampled token have not been computed, so it is not cached.
            if playback.emitted_tokens > 1:
                generated = array(request.prompt.typecode, reply.ids[: playback.emitted_tokens - 1])
                self.cache.add(request.prompt + generated, request.cache_salt)

    def _admit(self, request: EngineRequest) -> PreparedReply:
        self.requests.append(request)
        self._timer.raise_if_interrupted()
        context_length = self.options.context_length
        if context_length is not None:
            request = _limit_to_context(request, context_length)
        reply = self._builder.resume(request)
        return reply or self._builder.build(self._selector.select(request), request)

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
    """Return when a reply begins: now, or at the next step that all replies share."""
    if not delay.in_step or not delay.between:
        return now
    return ceil(now / delay.between) * delay.between


def _limit_to_context(request: EngineRequest, context_length: int) -> EngineRequest:
    """Limit the request's tokens to the room in the context window."""
    length = len(request.prompt)
    if length >= context_length:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {context_length - 1} maximum", param="prompt"
        )
    max_tokens = min(request.max_tokens, context_length - length)
    return msgspec.structs.replace(request, max_tokens=max_tokens)
