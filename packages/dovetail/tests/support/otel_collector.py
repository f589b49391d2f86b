"""An OpenTelemetry collector on a loopback port, which decodes and stores spans."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TIMEOUT_SECONDS = 60.0  # seconds, so that missing spans fail a test instead of blocking it


@dataclass(frozen=True)
class Span:
    """A span as received."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    begin: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    status: int
    state: str
    resource: dict[str, Any]


@dataclass
class Collector:
    """The spans received so far."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    raw: bytes = b""
    _came: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._came:
            self.paths.append(path)
            self.raw += body
            self.spans += _spans(request)
            self._came.notify_all()

    def wait(self, count: int, name: str, trace: str = "") -> list[Span]:
        """Wait for a number of spans with this name prefix, in one trace or any."""

        def found() -> list[Span]:
            named = [span for span in self.spans if span.name.startswith(name)]
            return [span for span in named if not trace or span.trace == trace]

        with self._came:
            assert self._came.wait_for(lambda: len(found()) >= count, TIMEOUT_SECONDS), self.spans
            return found()

    def children(self, of: Span) -> list[Span]:
        return [span for span in self.spans if span.parent == of.id]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            packed = self.headers.get("content-encoding") == "gzip"
            collector.take(self.path, gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def _spans(request: ExportTraceServiceRequest) -> list[Span]:
    return [
        Span(
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            kind=span.kind,
            begin=span.start_time_unix_nano,
            end=span.end_time_unix_nano,
            attributes=_values(span.attributes),
            events=tuple(event.name for event in span.events),
            status=span.status.code,
            state=span.trace_state,
            resource=_values(one.resource.attributes),
        )
        for one in request.resource_spans
        for scope in one.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
