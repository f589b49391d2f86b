"""Endpoints of the web UI: the page, its data as JSON, and its updates as server-sent events.

With API keys, the data requires an admin key; the page itself has no data, only a form for the key.
Without keys, only this machine may use the UI: the connection, the `Host` header and a proxy's
headers are checked.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec

from dovetail.access.auth import require_admin
from dovetail.http.errors import UnknownRoute
from dovetail.http.exchange import ApiExchange
from dovetail.http.options import HttpOptions
from dovetail.http.response import STREAM_HEADERS
from dovetail.http.routes import Route
from dovetail.http.tracker import RequestTracker
from dovetail.net.exchange import EVENT_STREAM_CONTENT_TYPE, DisconnectGuard
from dovetail.ui.data import SNAPSHOT_SECONDS, UiData
from dovetail.ui.page import SECURITY_HEADERS, read_static_files
from dovetail_model import Forbidden, RateLimited, Unauthenticated

MAX_STREAMS = 32  # pages that are updated at the same time
MAX_QUERY_CHARS = 256
_OFFSET = re.compile(r"[0-9]{1,6}")  # far more than the sessions in memory

JsonHandler = Callable[[ApiExchange], Awaitable[object]]


class UiEndpoints:
    """Serve the page and its data."""

    def __init__(self, data: UiData, options: HttpOptions) -> None:
        self._data = data
        self._options = options
        self._streams = 0
        self._stopping = asyncio.Event()
        self._json: dict[str, JsonHandler] = {
            "overview": self._overview,
            "sessions": self._sessions,
            "session": self._session,
            "payload": self._payload,
        }

    def routes(self) -> list[Route]:
        """Return the routes. Keys are checked here, because the page itself needs none."""
        return [
            Route(
                *("GET", path, self._serve, summary),
                needs_key=False,
                counted=False,
                for_own_pages=True,
            )
            for path, summary in (
                ("/ui", "Web UI: sessions and prefix reuse"),
                ("/ui/", "Files and data of the web UI"),
            )
        ]

    def stop(self) -> None:
        """End all streams: the server stops."""
        self._stopping.set()

    async def _serve(self, exchange: ApiExchange, tracker: RequestTracker) -> None:
        self._require_access(exchange)
        name = exchange.path.removeprefix("/ui").removeprefix("/")
        if exchange.path == "/ui/":
            await exchange.respond(308, b"", headers=[("location", "../ui"), *SECURITY_HEADERS])
        elif not name.startswith("api/"):
            await self._send_file(exchange, name or "index.html")
        else:
            self._require_admin(exchange)
            await self._send_data(exchange, name.removeprefix("api/"))

    def _require_access(self, exchange: ApiExchange) -> None:
        """Raise for other machines if the server has no keys."""
        if not self._options.keys and not exchange.is_local:
            raise Forbidden(
                "Without API keys, the web UI is only available on the machine of the server. "
                "Set --api-key or --api-key-file to use it from elsewhere."
            )

    def _require_admin(self, exchange: ApiExchange) -> None:
        if self._options.keys:
            exchange.caller = self._options.keys.authenticate(exchange.headers)
            require_admin(exchange.caller)

    async def _send_file(self, exchange: ApiExchange, name: str) -> None:
        file = read_static_files().get(name)
        if file is None:
            raise UnknownRoute(f"Unknown path {exchange.path}.")
        body, content_type = file
        body = b"" if exchange.method == "HEAD" else body
        await exchange.respond(200, body, content_type, SECURITY_HEADERS)

    async def _send_data(self, exchange: ApiExchange, name: str) -> None:
        if exchange.method == "HEAD":
            await exchange.respond(200, b"", headers=SECURITY_HEADERS)
            return
        if name == "events":
            await self._stream(exchange)
            return
        handler = self._json.get(name)
        value = None if handler is None else await handler(exchange)
        if value is None:
            raise UnknownRoute("The session or page does not exist, or is no longer in memory.")
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        await exchange.respond(200, body, headers=SECURITY_HEADERS)

    async def _overview(self, exchange: ApiExchange) -> object:
        return await self._data.overview()

    async def _sessions(self, exchange: ApiExchange) -> object:
        query = exchange.query
        offset = query.get("offset", "0")
        at = int(offset) if _OFFSET.fullmatch(offset) else 0
        return await self._data.sessions(query.get("q", "")[:MAX_QUERY_CHARS], at)

    async def _session(self, exchange: ApiExchange) -> object:
        query = exchange.query
        return await self._data.session(query.get("tenant", ""), query.get("id", ""))

    async def _payload(self, exchange: ApiExchange) -> object:
        query = exchange.query
        names = (query.get(name, "") for name in ("tenant", "id", "turn"))
        return await self._data.payload(*names) if self._data.payloads else None

    async def _stream(self, exchange: ApiExchange) -> None:
        """Send the overview every second until the client disconnects or the server stops."""
        if self._streams >= MAX_STREAMS:
            raise RateLimited(f"At most {MAX_STREAMS} pages can be updated at the same time.")
        self._streams += 1
        try:
            headers = dict((*STREAM_HEADERS, *SECURITY_HEADERS))
            await exchange.start_response(200, EVENT_STREAM_CONTENT_TYPE, headers.items())
            async with DisconnectGuard(exchange.receive):
                while not self._stopping.is_set() and self._is_admin(exchange):
                    data = await self._data.overview()
                    await exchange.write(b"event: overview\ndata: " + data + b"\n\n")
                    await self._wait()
            await exchange.end()
        finally:
            self._streams -= 1

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                await self._stopping.wait()
        except TimeoutError:
            return

    def _is_admin(self, exchange: ApiExchange) -> bool:
        """Return whether the key of an open stream is still valid."""
        if not self._options.keys:
            return True
        try:
            require_admin(self._options.keys.revalidate(exchange.caller))
        except (Forbidden, Unauthenticated):
            return False
        return True
