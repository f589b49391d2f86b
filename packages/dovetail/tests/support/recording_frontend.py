"""A proxy in front of a server that records the requests of a client."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_OWN = frozenset({"connection", "content-length", "date", "server", "transfer-encoding"})


@dataclass(frozen=True)
class RecordedRequest:
    """A request, and the status and headers of its response.

    `sent` are the request's own headers, `raw` its bytes; `body` is None if those are not JSON.
    """

    method: str
    path: str
    body: Any
    status: int
    headers: dict[str, str]
    sent: dict[str, str]
    raw: bytes


@dataclass
class RecordingFrontend:
    """The requests so far. `more` are headers that replace those of the server's responses."""

    url: str
    requests: list[RecordedRequest] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    def bodies(self, path: str) -> list[Any]:
        return [one.body for one in self.requests if one.path == path]


@contextmanager
def front_of(server: str) -> Iterator[RecordingFrontend]:
    """Run a proxy on its own port during the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # older versions have no WebSocket upgrades

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            connection = HTTPConnection(urlsplit(server).netloc, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            headers = {k.lower(): v for k, v in reply.getheaders() if k.lower() not in _OWN}
            headers |= {k: v for k, v in front.more.items() if k in headers}
            sent = {k.lower(): v for k, v in self.headers.items()}
            decoded = json.loads(body) if body and "content-encoding" not in sent else None
            request = RecordedRequest(
                self.command, self.path, decoded, reply.status, headers, sent, body
            )
            front.requests.append(request)
            self.send_response(reply.status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = forward

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        front = RecordingFrontend(f"http://127.0.0.1:{listener.server_port}")
        thread = threading.Thread(target=listener.serve_forever)
        thread.start()
        try:
            yield front
        finally:
            listener.shutdown()
            thread.join()
