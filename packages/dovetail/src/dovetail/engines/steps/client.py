"""The client of an engine that is served over the step protocol.

One call of `data_received` processes the tokens of all streams of a step: they are detokenized,
parsed, encoded and written to the clients before the event loop continues.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import msgspec

from dovetail.engines.engine import EngineHealth, EngineRequest, TokenDelta, TokenSink
from dovetail.engines.sampling import TOKEN_ID_PREFIX
from dovetail.engines.steps.framing import FrameReader, FrameTooLarge, encode_frame
from dovetail.engines.steps.messages import (
    PROTOCOL_VERSION,
    Abort,
    EngineDescription,
    HealthCheck,
    HealthReport,
    Hello,
    Rejection,
    Retain,
    Step,
    Welcome,
    decode_engine_message,
    join_deltas,
    join_steps,
    to_message,
)
from dovetail_model import (
    DovetailError,
    EngineError,
    EngineTimeout,
    EngineUnavailable,
    InvalidEngineResponse,
    InvalidRequest,
    TokenLogprob,
)
from dovetail_tokenizers import Tokenizer

CONNECT_TIMEOUT_SECONDS = 10.0
SILENCE_CHECK_SECONDS = 10.0  # engines send a report every 5 seconds
#: Two, because a process that was suspended may run its timers before it reads.
MAX_SILENT_CHECKS = 2


@dataclass(frozen=True)
class StepAddress:
    """The address of an engine: a unix socket, or a host and a port with or without TLS."""

    key: str = field(repr=False)
    path: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls is not None else 'tcp'}://{host}:{self.port}"


class _Stream:
    """The sink of one stream and what it waits for.

    While the sink is full, deltas are held here: one slow client must not stop the others. They
    are a few bytes per token, and `max_tokens` limits their number. They are pushed as one delta,
    so that they take one frame and one write.
    """

    __slots__ = ("_held", "_waiter", "error", "finished", "paused", "push")

    def __init__(self, sink: TokenSink, loop: asyncio.AbstractEventLoop) -> None:
        self.push = sink.push
        self._held: list[TokenDelta] = []
        self.paused = False
        self._waiter: asyncio.Future[None] = loop.create_future()
        self.finished = False
        self.error: Exception | None = None

    def receive(self, delta: TokenDelta) -> None:
        """Push a delta to the sink, or hold it while the sink is full. Never raises."""
        if self.paused:
            self._held.append(delta)
            return
        try:
            has_room = self.push(delta)
        except Exception as error:
            self.discard(error)
            return
        if delta.finish is not None:
            self.finished = True
            self._wake()
        elif not has_room:
            self.pause()

    def pause(self) -> None:
        """Hold deltas from now on: the sink is full."""
        self.paused = True
        self._wake()

    def discard(self, error: Exception) -> None:
        """End the stream with an error of the sink. More deltas may arrive until it is aborted."""
        self.push = _discard
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the stream with an error, after the deltas that are held."""
        if self.error is None and not self.finished:
            self.error = error
            self._wake()

    async def wait(self, drain: Callable[[], Any]) -> None:
        """Wait until the last delta was pushed, or the sink has ended the stream."""
        loop = asyncio.get_running_loop()
        while True:
            await self._waiter
            if self.finished:
                return
            if not self.paused:
                assert self.error is not None
                raise self.error
            if not await drain():
                return
            self._waiter = loop.create_future()
            self._resume()

    def _resume(self) -> None:
        """Push what was held, which may fill the sink again."""
        self.paused = False
        held, self._held = self._held, []
        if held:
            self.receive(join_deltas(held))
        if self.error is not None and not self.paused:
            self._wake()

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


def _discard(delta: TokenDelta) -> bool:
    return True


class StepClient(asyncio.Protocol):
    """One connection to an engine. `description` is known after `connect`.

    `name`: the name of the engine in error messages.
    `tokenizer`: decodes tokens of logprobs, which the engine identifies by their ids.
    """

    _transport: asyncio.Transport

    def __init__(self, name: str, tokenizer: Tokenizer | None = None) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._streams: dict[int, _Stream] = {}
        self._next_number = 0
        self._checks: dict[int, asyncio.Future[HealthReport]] = {}
        self._greeting: asyncio.Future[Welcome | Rejection] = self._loop.create_future()
        self._closed: EngineUnavailable | None = None
        self._silent_checks = 0  # since data was received
        self._timer: asyncio.TimerHandle | None = None
        self.steps = 0  # messages received, for measurements
        self.reported_facts: Mapping[str, Any] = {}
        self.description = EngineDescription(name)

    @property
    def connected(self) -> bool:
        return self._closed is None

    async def generate(self, request: EngineRequest, sink: TokenSink) -> None:
        """Push deltas as they arrive. Cancelling aborts the stream."""
        if self._closed is not None:
            raise EngineUnavailable(self._closed.message)
        number = self._next_number = self._next_number + 1
        try:
            frame = encode_frame(to_message(number, request))
        except FrameTooLarge as error:
            raise InvalidRequest(f"the request is too large for {self._name}: {error}") from error
        if request.sampling.logprobs is not None:
            sink = _LogprobSink(sink, self._tokenizer, request.sampling.logprobs)
        stream = self._streams[number] = _Stream(sink, self._loop)
        self._transport.write(frame)
        try:
            await stream.wait(sink.drain)
        finally:
            del self._streams[number]
            if not stream.finished and self._closed is None:
                self._transport.write(encode_frame(Abort(number)))

    def retain(self, request: str, seconds: float) -> None:
        """Let the engine keep what it has cached for a finished request, if it supports that."""
        if self.description.retention and self._closed is None:
            self._transport.write(encode_frame(Retain(request, seconds)))

    async def health(self) -> EngineHealth:
        """Return the engine's health. Raise `EngineUnavailable` if the connection is lost."""
        if self._closed is not None:
            return EngineHealth(False, self._closed.message)
        number = self._next_number = self._next_number + 1
        report = self._checks[number] = self._loop.create_future()
        self._transport.write(encode_frame(HealthCheck(number)))
        try:
            state = await report
        except EngineError as error:
            return EngineHealth(False, error.message)
        finally:
            del self._checks[number]
        return EngineHealth(state.ready, state.detail, {**self.description.facts, **state.facts})

    def close(self, reason: str) -> None:
        """Close the connection. Running streams fail with this reason."""
        self._fail_all(EngineUnavailable(reason))
        self._transport.close()

    async def greet(self, key: str) -> None:
        """Send the hello. Raise an `EngineError` if the engine does not accept it."""
        self._transport.write(encode_frame(Hello(PROTOCOL_VERSION, key)))
        reply = await self._greeting
        if isinstance(reply, Rejection):
            raise EngineError(f"{self._name} rejected the connection: {reply.reason}")
        if reply.version != PROTOCOL_VERSION:
            raise InvalidEngineResponse(
                f"{self._name} uses version {reply.version} of the step protocol, "
                f"this server version {PROTOCOL_VERSION}: install the same version of Dovetail"
            )
        self.description = reply.engine

    def watch_silence(self) -> None:
        """Close the connection if nothing arrives for some time.

        Another machine that is gone sends nothing that would end it.
        """
        self._timer = self._loop.call_later(SILENCE_CHECK_SECONDS, self._check_silence)

    def _check_silence(self) -> None:
        self._silent_checks += 1
        if self._silent_checks <= MAX_SILENT_CHECKS:
            self.watch_silence()
            return
        seconds = MAX_SILENT_CHECKS * SILENCE_CHECK_SECONDS
        self._fail_all(EngineUnavailable(f"{self._name} sent nothing for {seconds:g} s"))
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._silent_checks = 0
        try:
            steps = []
            for frame in self._reader.feed(data):
                message = decode_engine_message(frame)
                if isinstance(message, Step):
                    steps.append(message)
                else:
                    self._handle(message)
            if steps:
                self.steps += len(steps)
                self._deliver(steps[0] if len(steps) == 1 else join_steps(steps))
        except (FrameTooLarge, msgspec.DecodeError, ValueError, RecursionError) as error:
            self._fail_all(InvalidEngineResponse(f"{self._name} sent an invalid frame ({error})"))
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._fail_all(EngineUnavailable(f"{self._name} closed the connection"))

    def _deliver(self, step: Step) -> None:
        """Process the tokens of all streams of a step. This is the hot path.

        `_Stream.receive` is inlined for deltas within a stream: a call is measurable here.
        """
        streams = self._streams
        for number, delta in zip(step.streams, step.deltas, strict=True):
            stream = streams.get(number)
            if stream is None:
                continue  # it was aborted
            if stream.paused or delta.finish is not None:
                stream.receive(delta)
                continue
            try:
                if not stream.push(delta):
                    stream.pause()
            except Exception as error:
                stream.discard(error)
        for failure in step.failures:
            stream = streams.get(failure.stream)
            if stream is not None:
                stream.fail(failure.to_error())

    def _handle(self, message: Welcome | Rejection | HealthReport) -> None:
        if isinstance(message, HealthReport):
            self.reported_facts = message.facts
            check = self._checks.get(message.number)
            if check is not None and not check.done():
                check.set_result(message)
        elif not self._greeting.done():
            self._greeting.set_result(message)

    def _fail_all(self, error: EngineError) -> None:
        if self._closed is not None:
            return
        self._closed = EngineUnavailable(error.message)
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams.values():
            stream.fail(error)
        waiters: list[asyncio.Future[Any]] = [*self._checks.values(), self._greeting]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # it may have no waiter


class _LogprobSink:
    """Replaces the ids of logprob tokens by their texts, and limits the alternatives."""

    __slots__ = ("_count", "_push", "_tokenizer", "drain")

    def __init__(self, sink: TokenSink, tokenizer: Tokenizer | None, count: int) -> None:
        self._push = sink.push
        self._tokenizer = tokenizer
        self._count = count
        self.drain = sink.drain

    def push(self, delta: TokenDelta) -> bool:
        named = tuple(
            TokenLogprob(
                self._text(one.token),
                one.logprob,
                tuple((self._text(token), value) for token, value in one.top[: self._count]),
            )
            for one in delta.logprobs
        )
        return self._push(TokenDelta(delta.ids, named, delta.finish, delta.cached, delta.exact))

    def _text(self, token: str) -> str:
        id = token.removeprefix(TOKEN_ID_PREFIX)
        if self._tokenizer is None or id == token or not id.isdecimal():
            return token
        return self._tokenizer.decode([int(id)])


async def connect(
    address: StepAddress, name: str, tokenizer: Tokenizer | None = None
) -> StepClient:
    """Connect to an engine. Raise an `EngineError` with the reason if that fails."""
    loop = asyncio.get_running_loop()
    create = partial(StepClient, name, tokenizer)
    place = name if str(address) in name else f"{name} at {address}"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            if address.path is not None:
                _, client = await loop.create_unix_connection(create, address.path)
            else:
                _, client = await loop.create_connection(
                    create, address.host, address.port, ssl=address.tls
                )
            try:
                await client.greet(address.key)
            except DovetailError:
                client.close("the connection was rejected")
                raise
    except EngineUnavailable as error:
        raise EngineUnavailable(error.message + _other_scheme(address)) from error
    except TimeoutError as error:
        raise EngineTimeout(
            f"{place} does not respond within {CONNECT_TIMEOUT_SECONDS:g} s"
        ) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        hint = (
            _other_scheme(address)
            if isinstance(error, ssl.SSLEOFError | ConnectionResetError)
            else ""
        )
        raise EngineUnavailable(f"no connection to {place} ({reason}){hint}") from error
    return client


def _other_scheme(address: StepAddress) -> str:
    """Return a hint for a connection that the engine closed at once."""
    if address.path is not None:
        return ""
    return ": does it use TLS?" if address.tls is None else ": does it listen without TLS?"
