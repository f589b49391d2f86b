"""A stand-in for a SearXNG instance: its JSON API with fixed results."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

RESULTS: list[dict[str, Any]] = [
    {
        "url": "https://example.com/kea",
        "title": "The kea",
        "content": "The kea is a large parrot of New Zealand, and the only alpine parrot.",
        "engine": "stand-in",
        "publishedDate": "2026-10-01T00:00:00",
    },
    {
        "url": "https://example.org/kakapo",
        "title": "The kakapo",
        "content": "The kakapo is a parrot that cannot fly.",
        "engine": "stand-in",
        "publishedDate": None,
    },
]


@dataclass
class StandIn:
    """The running server. `queries` are the queries that it received."""

    url: str
    queries: list[str] = field(default_factory=list)


@contextmanager
def searxng() -> Iterator[StandIn]:
    """Run the server for the time of the block."""
    found = StandIn("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            found.queries.append(query["q"][0])
            body = json.dumps({"query": query["q"][0], "results": RESULTS}).encode()
            self.send_response(200 if query.get("format") == ["json"] else 403)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
