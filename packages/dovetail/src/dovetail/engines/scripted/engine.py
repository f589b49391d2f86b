"""The scripted engine: plays answers from a script in place of a model."""

import asyncio
import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import ceil
from pathlib import Path

import msgspec

from dovetail.engines.engine import Abilities, EngineRequest, Health, Listener, Syntax, TokenDelta
from dovetail.engines.scripted.generation_log import Record
from dovetail.engines.scripted.pauses import Pauses
from dovetail.engines.scripted.prefix_cache import PrefixCache
from dovetail.engines.scripted.reel import Reel
from dovetail.engines.scripted.reply import Take, Takes
from dovetail.engines.scripted.script import (
    Break,
    Count,
    Delay,
    ErrorKind,
    Number,
    Script,
    Seconds,
)
from dovetail.engines.scripted.selection import Casting
from dovetail_model import (
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from dovetail_tokenizers import Tokenizer

SYNTAXES: tuple[Syntax, ...] = ("gbnf", "ebnf", "lark", "structural_tag", "json_schema")
ERRORS: dict[ErrorKind, type[EngineError]] = {
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

    prefill_rate: Seconds = 0.0
    decode_rate: Seconds = 0.0
    chunk: Number = 1
    block_size: Number = 16
    cache_blocks: Count = 65_536
    context_length: Number | None = None
    continues: bool = False
    remember: Count = 32
    record: str | None = None


class Counts:
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
        self.abilities = Abilities(
            constraints=SYNTAXES,
            logprobs=True,
            cached_tokens=True,
            context_length=options.context_length,
        )
        self.requests: deque[EngineRequest] = deque(maxlen=options.remember)
        self.counts = Counts()
        self.cache = PrefixCache(options.cache_blocks, options.block_size)
        self._tokenizer = tokenizer
        self._casting = Casting(script, tokenizer)
        self._takes = Takes(script, tokenizer, options.chunk, stop_ids, continues=options.continues)
        self._pauses = Pauses()
        self._record = Record(Path(options.record), tokenizer) if options.record else None

    async def start(self) -> None:
        """Ready at once; also brings back an engine that has died."""
        self._pauses.restore()

    async def stop(self) -> None:
        self._pauses.break_off("the engine was stopped")

    async def health(self) -> Health:
        broken = self._pauses.broken
        facts = {
            "running": self.counts.running,
            "cached_blocks": self.cache.blocks,
            "cache_usage": self.cache.usage,
        }
        return Health(broken is None, broken or "", facts)

    async def generate(self, request: EngineRequest, listener: Listener) -> None:
        """The deltas of the answer."""
        async with aclosing(self.bursts(request)) as bursts:
            async for burst in bursts:
                for delta in burst:
                    if not listener.hear(delta) and not await listener.wait():
                        return

    async def bursts(self, request: EngineRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The same deltas, those that are due together in one list."""
        take = self._admit(request)
        cached = self.cache.look_up(request.prompt, request.cache_salt)
        reel = Reel(take, self.options.decode_rate, cached)
        if request.sampling.logprobs is not None:
            reel.speller = self._tokenizer
        self.counts.begin(len(request.prompt), cached)
        came = time.time()
        clock = asyncio.get_running_loop().time
        try:
            await self._prefill(len(request.prompt) - cached, take)
            self.cache.add(request.prompt, request.cache_salt)
            begun = _begin(clock(), take.answer.delay)
            while not reel.done:
                if reel.begun:
                    await self._pauses.wait(reel.due - (clock() - begun))
                if reel.wait_for is not None:
                    await self._pauses.until(reel.wait_for.exists)
                yield reel.burst(clock() - begun)
            if take.breaks is not None:
                await self._break_off(take.breaks)
        finally:
            self.counts.end(reel.played)
            if self._record is not None:
                self._record.add(came, request, cached, take.ids[: reel.played])
            # What was sampled last has not been computed: it has no place in the cache.
            if reel.played > 1:
                said = array(request.prompt.typecode, take.ids[: reel.played - 1])
                self.cache.add(request.prompt + said, request.cache_salt)

    def _admit(self, request: EngineRequest) -> Take:
        self.requests.append(request)
        self._pauses.check()
        window = self.options.context_length
        if window is not None:
            request = _fitted(request, window)
        take = self._takes.resumed(request)
        return take or self._takes.take(self._casting.pick(request), request)

    async def _prefill(self, tokens: int, take: Take) -> None:
        rate = self.options.prefill_rate
        await self._pauses.wait(take.answer.delay.first + (tokens / rate if rate else 0.0))

    async def _break_off(self, how: Break) -> None:
        if how.manner == "die":
            self._pauses.break_off(how.message)
        if how.manner == "hang":
            await self._pauses.wait(None)
        raise ERRORS[how.kind](how.message)


def _begin(now: float, delay: Delay) -> float:
    """When an answer begins: now, or with the next step of all answers."""
    if not delay.in_step or not delay.between:
        return now
    return ceil(now / delay.between) * delay.between


def _fitted(request: EngineRequest, window: int) -> EngineRequest:
    """The request with no more tokens than the window has room for."""
    length = len(request.prompt)
    if length >= window:
        raise ContextOverflow(
            f"prompt is too long: {length} tokens > {window - 1} maximum", param="prompt"
        )
    left = min(request.max_tokens, window - length)
    return msgspec.structs.replace(request, max_tokens=left)
