"""The scripted engine: plays answers from a script in place of a model."""

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from dovetail.engines.engine import Abilities, EngineRequest, Health, TokenDelta
from dovetail.engines.scripted.cache import PrefixCache
from dovetail.engines.scripted.casting import Casting
from dovetail.engines.scripted.pauses import Pauses
from dovetail.engines.scripted.script import Break, Count, ErrorKind, Number, Script, Seconds
from dovetail.engines.scripted.takes import Take, Takes
from dovetail_model import (
    ContextOverflow,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    Overloaded,
)
from dovetail_tokenizers import Tokenizer

BURST = 16  # deltas that leave together before others may run
SYNTAXES = frozenset({"gbnf", "lark", "structural_tag", "json_schema"})
ERRORS: dict[ErrorKind, type[EngineError]] = {
    "engine": EngineError,
    "unavailable": EngineUnavailable,
    "timeout": EngineTimeout,
    "overloaded": Overloaded,
}


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast it pretends to be, and what it remembers. A rate of 0 is as fast as possible.

    Rates are tokens a second, of one stream. `cache_blocks` is the prefix cache's capacity,
    `chunk` the tokens of a delta where the script does not say.
    """

    prefill_rate: Seconds = 0.0
    decode_rate: Seconds = 0.0
    chunk: Number = 1
    block_size: Number = 16
    cache_blocks: Count = 65_536
    context_length: Number | None = None
    remember: Count = 32


class Counts:
    """What was done since the start, for whoever measures."""

    __slots__ = ("cached", "generated", "prompt", "running")

    def __init__(self) -> None:
        self.prompt = self.cached = self.generated = self.running = 0


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
        self._casting = Casting(script, tokenizer)
        self._takes = Takes(script, tokenizer, options.chunk, stop_ids)
        self._pauses = Pauses()

    async def start(self) -> None:
        """Ready at once; also brings back an engine that has died."""
        self._pauses.restore()

    async def stop(self) -> None:
        self._pauses.break_off(EngineUnavailable("the engine was stopped"))

    async def health(self) -> Health:
        broken = self._pauses.broken
        facts = {"running": self.counts.running, "cached_blocks": self.cache.blocks}
        return Health(broken is None, str(broken or ""), facts)

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenDelta, None]:
        """The deltas of the answer."""
        async with aclosing(self.bursts(request)) as bursts:
            async for burst in bursts:
                for delta in burst:
                    yield delta

    async def bursts(self, request: EngineRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The same deltas, those that are due together in one list."""
        take = self._admit(request)
        counts, played = self.counts, 0
        cached = self.cache.look_up(request.prompt, request.cache_salt)
        counts.prompt += len(request.prompt)
        counts.cached += cached
        counts.running += 1
        try:
            await self._prefill(len(request.prompt) - cached, take)
            self.cache.add(request.prompt, request.cache_salt)
            async with aclosing(self._play(take, request.sampling.logprobs)) as bursts:
                async for burst in bursts:
                    if not played:
                        burst[0] = msgspec.structs.replace(burst[0], cached=cached)
                    played += sum([len(delta.ids) for delta in burst])
                    yield burst
            if take.breaks is not None:
                await self._break_off(take.breaks)
        finally:
            counts.running -= 1
            counts.generated += played
            # What was sampled last has not been computed: it has no place in the cache.
            if played > 1:
                said = request.prompt + array(request.prompt.typecode, take.ids[: played - 1])
                self.cache.add(said, request.cache_salt)

    def _admit(self, request: EngineRequest) -> Take:
        self.requests.append(request)
        if self._pauses.broken is not None:
            raise EngineUnavailable(str(self._pauses.broken))
        window = self.options.context_length
        if window is not None and len(request.prompt) >= window:
            raise ContextOverflow(
                f"the prompt has {len(request.prompt)} tokens, the window {window}", param="prompt"
            )
        if window is not None and len(request.prompt) + request.max_tokens > window:
            left = window - len(request.prompt)
            request = msgspec.structs.replace(request, max_tokens=left)
        return self._takes.resumed(request) or self._takes.take(
            self._casting.pick(request), request
        )

    async def _prefill(self, tokens: int, take: Take) -> None:
        rate = self.options.prefill_rate
        seconds = take.answer.delay.first + (tokens / rate if rate else 0.0)
        await self._pauses.wait(seconds)

    async def _play(
        self, take: Take, logprobs: int | None
    ) -> AsyncGenerator[list[TokenDelta], None]:
        rate, between = self.options.decode_rate, take.answer.delay.between
        paced = bool(rate or between)
        clock = asyncio.get_running_loop().time
        begun, start, index, ends = clock(), 0, 0, take.ends
        while index < len(ends):
            if paced:
                due = index * between + (start / rate if rate else 0.0)
                await self._pauses.wait(begun + due - clock())
                last = index + 1
            else:
                if index:
                    await self._pauses.wait(0)
                last = min(index + BURST, len(ends))
            burst = [TokenDelta(take.ids[a:b]) for a, b in _spans(start, ends[index:last])]
            if logprobs is not None:
                burst = self._with_logprobs(take, start, burst)
            index, start = last, ends[last - 1]
            if index == len(ends) and take.finish is not None:
                burst[-1] = msgspec.structs.replace(burst[-1], finish=take.finish)
            yield burst
