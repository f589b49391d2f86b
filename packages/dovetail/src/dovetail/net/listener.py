"""Listening sockets and the uvicorn configuration of small servers."""

import gc
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from dovetail.net.response_writer import DirectHttpProtocol

BACKLOG = 4_096


@dataclass(frozen=True)
class ListenAddress:
    """A TCP address or the path of a unix socket. Port 0 selects a free port."""

    host: str = "127.0.0.1"
    port: int = 8000
    path: Path | None = None


def open_listener(address: ListenAddress) -> tuple[socket.socket, str]:
    """Return a listening socket and its URL."""
    if address.path is not None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address.path))
        listener.listen(BACKLOG)
        return listener, f"unix://{address.path}"
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    host, port = listener.getsockname()[:2]
    return listener, f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve_app(app: Callable[..., Any], listener: socket.socket) -> None:
    """Serve an application until interrupted."""
    uvicorn.Server(uvicorn_config(app)).run(sockets=[listener])


def uvicorn_config(app: Callable[..., Any]) -> uvicorn.Config:
    """Return a uvicorn configuration without access log and lifespan, with a long keep-alive."""
    return uvicorn.Config(
        app,
        http=DirectHttpProtocol,
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=600,
    )


#: New objects before a garbage collection. Most objects of a stream are freed before that.
GC_THRESHOLD_OBJECTS = 10_000


def freeze_gc() -> None:
    """Exclude all objects that exist now from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD_OBJECTS)
