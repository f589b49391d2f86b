"""One connection that stays: for what the other client hides (HEAD, keep-alive, upgrades)."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import h11

from dovetail.net.http_client import Endpoint
from dovetail_model import EngineTimeout, EngineUnavailable

_READ_BYTES = 65536


class HttpConnection:
    """A connection on which several requests are asked, one after the other."""

    __slots__ = ("_endpoint", "_http", "_reader", "_timeout", "_writer")

    def __init__(
        self,
        endpoint: Endpoint,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        timeout: float,
    ) -> None:
        self._endpoint = endpoint
        self._reader, self._writer = streams
        self._timeout = timeout
        self._http = h11.Connection(h11.CLIENT)

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the answer. 101 has none: it is no HTTP any more."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._send(method, path, headers, body)
                return await self._receive()
        except TimeoutError:
            raise EngineTimeout(f"no answer to {method} {path} in {self._timeout:g} s") from None
        except (OSError, h11.RemoteProtocolError) as fault:
            raise EngineUnavailable(f"the connection broke at {method} {path} ({fault})") from fault

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> None:
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        named = {"host": self._endpoint.authority, **headers}
        if body:
            named |= {"content-length": str(len(body)), "content-type": "application/json"}
        target = self._endpoint.base + path
        request = h11.Request(method=method, target=target, headers=list(named.items()))
        self._writer.write(self._http.send(request) or b"")
        if body:
            self._writer.write(self._http.send(h11.Data(data=body)) or b"")
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        await self._writer.drain()

    async def _receive(self) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = 0, dict[str, str](), b""
        while True:
            match self._http.next_event():
                case h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(_READ_BYTES))
                case h11.InformationalResponse(status_code=101, headers=found):
                    return 101, _decode_headers(found), b""
                case h11.Response(status_code=code, headers=found):
                    status, headers = code, _decode_headers(found)
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage():
                    return status, headers, body
                case h11.ConnectionClosed() | h11.PAUSED:
                    return status, headers, body

    @property
    def is_reusable(self) -> bool:
        """Whether the server left the connection open for another request."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE


@asynccontextmanager
async def open_connection(
    endpoint: Endpoint, timeout_seconds: float
) -> AsyncIterator[HttpConnection]:
    """A connection to the server, closed when the block is left."""
    try:
        async with asyncio.timeout(timeout_seconds):
            if endpoint.socket is not None:
                streams = await asyncio.open_unix_connection(endpoint.socket)
            else:
                secure = ssl.create_default_context() if endpoint.tls else None
                streams = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=secure)
    except (OSError, TimeoutError) as fault:
        raise EngineUnavailable(f"no connection to {endpoint}") from fault
    try:
        yield HttpConnection(endpoint, streams, timeout_seconds)
    finally:
        streams[1].transport.abort()


def _decode_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
