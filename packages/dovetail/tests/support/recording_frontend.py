"""A front before a server that hands everything on and keeps what a client asked."""

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
class Asked:
    """A request, and the answer's status and headers.

    `sent` are the request's own headers, `raw` its bytes; `body` is None where those are no JSON.
    """

    method: str
    path: str
    body: Any
    status: int
    headers: dict[str, str]
    sent: dict[str, str]
    raw: bytes


@dataclass
class Front:
    """What was asked so far. `more` are headers that answers get instead of the server's."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)

    def bodies(self, path: str) -> list[Any]:
        return [one.body for one in self.asked if one.path == path]


@contextmanager
def front_of(server: str) -> Iterator[Front]:
    """A front that listens on a port of its own for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # a WebSocket cannot be asked for, nor refused, in an older

        def hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            connection = HTTPConnection(urlsplit(server).netloc, timeout=60)
            connection.request(self.command, self.path, body, dict(self.headers))
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            headers = {k.lower(): v for k, v in reply.getheaders() if k.lower() not in _OWN}
            headers |= {k: v for k, v in front.more.items() if k in headers}
            sent = {k.lower(): v for k, v in self.headers.items()}
            said = json.loads(body) if body and "content-encoding" not in sent else None
            asked = Asked(self.command, self.path, said, reply.status, headers, sent, body)
            front.asked.append(asked)
            self.send_response(reply.status)
            for name, value in {**headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = hand_on

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        front = Front(f"http://127.0.0.1:{listening.server_port}")
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield front
        finally:
            listening.shutdown()
            thread.join()
