"""Private parts of uvicorn and websockets that Dovetail uses.

Dovetail subclasses the HTTP and WebSocket protocols and the server of uvicorn. Their attributes are
private or undocumented, so uvicorn has an upper bound. These tests name each of them: run them
before the bound is raised, and adapt the modules that a failure names.
"""

import ast
import asyncio
import inspect
import logging
import textwrap
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import httptools
import pytest
import uvicorn
import websockets.frames
import websockets.http11
from packaging.requirements import Requirement
from uvicorn.lifespan.on import LifespanOn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.protocol import Protocol
from websockets.server import ServerProtocol
from websockets.streams import StreamReader

PACKAGE = Path(__file__).parents[2]
#: Our modules that import uvicorn, by name.
SOURCES = {
    ".".join(path.relative_to(PACKAGE / "src").with_suffix("").parts): ast.parse(source)
    for path in sorted((PACKAGE / "src").rglob("*.py"))
    if "uvicorn" in (source := path.read_text("utf-8"))
}
#: The classes that they derive from.
BASES: tuple[type, ...] = (HttpToolsProtocol, WebSocketsSansIOProtocol, uvicorn.Server)
#: Methods that are called, extended or replaced, with their parameters.
METHODS: dict[type, dict[str, str]] = {
    HttpToolsProtocol: {
        "__init__": "config server_state app_state _loop",
        "_get_upgrade": "",
        "_should_upgrade": "",
        "_start_asgi_task": "cycle app",
        "_unset_keepalive_if_required": "",
        "connection_lost": "exc",
        "connection_made": "transport",
        "data_received": "data",
        "handle_websocket_upgrade": "",
        "on_body": "body",
        "on_header": "name value",
        "on_headers_complete": "",
        "on_message_begin": "",
        "on_message_complete": "",
        "on_response_complete": "",
        "pause_writing": "",
        "resume_writing": "",
        "timeout_keep_alive_handler": "",
    },
    WebSocketsSansIOProtocol: {
        "__init__": "config server_state app_state _loop",
        "connection_lost": "exc",
        "data_received": "data",
        "handle_close": "event",
        "handle_connect": "event",
        "handle_cont": "event",
        "handle_parser_exception": "",
        "handle_ping": "",
        "keepalive_timeout": "",
        "send_receive_event_to_app": "",
        "shutdown": "",
    },
    uvicorn.Server: {
        "__init__": "config",
        "handle_exit": "sig frame",
        "on_tick": "counter",
        "serve": "sockets",
        "shutdown": "sockets",
        "startup": "sockets",
    },
    FlowControl: {"drain": ""},
    ServerProtocol: {"data_to_send": "", "fail": "code reason"},
}
#: Attributes that are read or set, with their types during a request.
ATTRIBUTES: dict[type, dict[str, type]] = {
    HttpToolsProtocol: {
        "connections": set,
        "cycle": RequestResponseCycle,
        "expect_100_continue": bool,
        "headers": list,
        "loop": asyncio.AbstractEventLoop,
        "parser": httptools.HttpRequestParser,
        "pipeline": deque,
        "scope": dict,
        "transport": asyncio.Transport,
        "url": bytes,
    },
    RequestResponseCycle: {
        "disconnected": bool,
        "flow": FlowControl,
        "keep_alive": bool,
        "message_event": asyncio.Event,
        "more_body": bool,
        "response_complete": bool,
        "response_started": bool,
        "scope": dict,
        "transport": asyncio.Transport,
    },
    FlowControl: {"write_paused": bool},
    WebSocketsSansIOProtocol: {
        "close_sent": bool,
        "config": uvicorn.Config,
        "conn": ServerProtocol,
        "curr_msg_data_type": str,
        "frames": list,
        "handshake_complete": bool,
        "handshake_initiated": bool,
        "logger": logging.Logger,
        "loop": asyncio.AbstractEventLoop,
        "response": websockets.http11.Response,
        "scope": dict,
        "transport": asyncio.Transport,
        "writable": asyncio.Event,
    },
    ServerProtocol: {
        "debug": bool,
        "handshake_exc": type(None),
        "logger": logging.Logger,
        "reader": StreamReader,
    },
    StreamReader: {"buffer": bytearray},
    uvicorn.Server: {
        "_captured_signals": list,
        "config": uvicorn.Config,
        "force_exit": bool,
        "lifespan": LifespanOn,
        "server_state": ServerState,
        "started": bool,
    },
    ServerState: {"connections": set},
    LifespanOn: {"state": dict},
    uvicorn.Config: {
        "backlog": int,
        "http_protocol_class": type,
        "timeout_graceful_shutdown": int,
        "ws_max_size": int,
    },
}
#: How our modules name objects of the other classes.
HELD_AS: dict[type, tuple[str, ...]] = {
    RequestResponseCycle: ("cycle", "running", "self._active_cycle", "self._cycle", "self.cycle"),
    FlowControl: ("self._flow",),
    ServerProtocol: ("self.conn",),
    StreamReader: ("self.conn.reader",),
    ServerState: ("self.server_state", "state"),
    LifespanOn: ("self.lifespan",),
    uvicorn.Config: ("config", "self.config"),
}
HTTP_REQUEST = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
UPGRADE_REQUEST = (
    b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
REMEDY = "Adapt {modules} before raising the upper bound in packages/dovetail/pyproject.toml."


class Transport(asyncio.Transport):
    """A transport that discards all data."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False


class Internals(NamedTuple):
    """An object of each class, during a request."""

    objects: dict[type, object]

    def problems(self, kind: type) -> Iterator[str]:
        found = self.objects.get(kind)
        if found is None:
            yield f"no {kind.__name__} is where it was"
            return
        for name, wanted in ATTRIBUTES[kind].items():
            value = getattr(found, name, MISSING)
            if value is MISSING:
                yield f"{kind.__name__}.{name} is missing"
            elif not isinstance(value, wanted):
                yield f"{kind.__name__}.{name} is {type(value).__name__}, not {wanted.__name__}"


MISSING = object()


async def _wait(scope: Any, receive: Callable[..., Any], send: Any) -> None:
    """An application that never responds."""
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def internals() -> Internals:
    async def main() -> Internals:
        config = uvicorn.Config(_wait, http=HttpToolsProtocol, ws=WebSocketsSansIOProtocol)
        config.load()
        http = HttpToolsProtocol(config, ServerState(), {})
        http.connection_made(Transport())
        http.data_received(HTTP_REQUEST)
        websocket = WebSocketsSansIOProtocol(config, ServerState(), {})
        websocket.connection_made(Transport())
        websocket.data_received(UPGRADE_REQUEST)
        found: list[object] = [http, http.cycle, http.flow, websocket, config]
        found += [websocket.conn, websocket.conn.reader, *await _run_server()]
        for task in (*http.tasks, *websocket.tasks):
            task.cancel()
        return Internals({type(one): one for one in found})

    return asyncio.run(main())


async def _run_server() -> tuple[object, ...]:
    """Start and stop a server."""

    async def app(scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})

    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="on", log_config=None, timeout_graceful_shutdown=1)
    )
    server.should_exit = True
    await server.serve(sockets=[])
    return server.config, server, server.server_state, server.lifespan


def describe(problems: Iterator[str] | list[str], modules: tuple[str, ...]) -> str:
    versions = f"uvicorn {version('uvicorn')}, websockets {version('websockets')}: "
    return versions + "; ".join(problems) + ". " + REMEDY.format(modules=", ".join(modules))


def _modules(kind: type) -> tuple[str, ...]:
    """Return the modules that name the class; all modules, for one that only its owner names."""
    named = [
        name
        for name, tree in SOURCES.items()
        if any(isinstance(node, ast.Name) and node.id == kind.__name__ for node in ast.walk(tree))
    ]
    return tuple(named or SOURCES)


def _parameters(kind: type, name: str) -> str | None:
    """Return the parameters of a method from its class's source, or None without such a method.

    Other packages replace methods at run time: sse_starlette, which SDKs import, replaces
    `Server.handle_exit`.
    """
    for base in kind.__mro__[:-1]:
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                given = node.args
                several = [one for one in (given.vararg, given.kwarg) if one is not None]
                named = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
                return " ".join(one.arg for one in named[1:])
    return None


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_methods_have_the_expected_signatures(kind: type) -> None:
    problems = []
    for name, wanted in METHODS[kind].items():
        found = _parameters(kind, name)
        if found is None:
            problems.append(f"{kind.__name__}.{name} is missing")
        elif found != wanted:
            problems.append(f"{kind.__name__}.{name} takes ({found}), not ({wanted})")
    assert not problems, describe(problems, _modules(kind))


@pytest.mark.parametrize("kind", ATTRIBUTES, ids=lambda kind: kind.__name__)
def test_attributes_have_the_expected_types(internals: Internals, kind: type) -> None:
    problems = list(internals.problems(kind))
    assert not problems, describe(problems, _modules(kind))


def test_frames_and_requests_have_the_expected_fields() -> None:
    frame = websockets.frames.Frame(websockets.frames.Opcode.TEXT, b"x")
    request = websockets.http11.Request("/", websockets.datastructures.Headers())
    assert (frame.data, frame.fin, request.path) == (b"x", True, "/")
    assert issubclass(ServerProtocol, Protocol)


def test_filtered_log_line_still_exists() -> None:
    from dovetail.http.websocket import protocol

    source = inspect.getsource(WebSocketsSansIOProtocol.run_asgi)
    assert protocol._INCOMPLETE_HANDSHAKE in source


@pytest.mark.parametrize("kind", BASES, ids=lambda kind: kind.__name__)
def test_every_use_is_listed(kind: type) -> None:
    """The tables above contain everything that a subclass uses from its base or overrides."""
    used = {name for tree in SOURCES.values() for name in _inherited_names(tree, kind)}
    listed = {*METHODS[kind], *ATTRIBUTES[kind]}
    called_elsewhere = {"serve", "started"}  # used by functions, not by subclasses
    assert used == listed - called_elsewhere


@pytest.mark.parametrize("kind", HELD_AS, ids=lambda kind: kind.__name__)
def test_every_use_of_an_attribute_of_a_base_is_listed(kind: type) -> None:
    used = {
        node.attr
        for tree in SOURCES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in HELD_AS[kind]
    }
    assert used == {*METHODS.get(kind, ()), *ATTRIBUTES[kind]}


def _inherited_names(tree: ast.Module, base: type) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and base.__name__ in _base_names(node):
            yield from _uses(node, base)


def _base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).rpartition(".")[2] for base in node.bases]


def _uses(node: ast.ClassDef, base: type) -> Iterator[str]:
    own = _own_names(node, base)
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and hasattr(base, one.name):
            yield one.name
        elif _is_own_attribute(one) and one.attr not in own:
            yield one.attr


def _is_own_attribute(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()")


def _own_names(node: ast.ClassDef, base: type) -> set[str]:
    """Return the methods, class attributes and private attributes that the class defines."""
    own = set[str]()
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(one.name)
            if one.name == "__init__":
                own |= {name for name in _assigned(one) if name.startswith("_")}
        elif isinstance(one, ast.AnnAssign | ast.Assign):
            targets = one.targets if isinstance(one, ast.Assign) else [one.target]
            own |= {ast.unparse(target) for target in targets}
    return {name for name in own if not hasattr(base, name)}


def _assigned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for one in ast.walk(function):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one.attr


@pytest.mark.parametrize("name", ["uvicorn", "websockets"])
def test_packages_with_private_uses_have_an_upper_bound(name: str) -> None:
    project: Mapping[str, Any] = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    stated = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["others"]
    (found,) = (one for one in map(Requirement, stated) if one.name == name)
    assert any(part.operator in ("<", "<=", "==", "~=") for part in found.specifier)
    assert found.specifier.contains(version(name))
