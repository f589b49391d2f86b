"""The route table and the OpenAPI document that describes it."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.http.errors import MethodNotAllowed, UnknownRoute, WebSocketDisabled
from dovetail.http.exchange import ApiExchange
from dovetail.http.tracker import RequestTracker
from dovetail_protocols import Codec

Handler = Callable[[ApiExchange, RequestTracker], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """A method and a path with a handler.

    A path that ends with a slash matches all paths that start with it. `{id}` and other names in
    braces match any single segment.

    needs_key: Whether a key is required if the server has keys.
    counted: Whether requests appear in metrics and logs.
    codec: Codec of the API that the route belongs to. It encodes errors.
    for_own_pages: Whether pages of this server use it, and no other pages.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    needs_key: bool = True
    counted: bool = True
    codec: Codec | None = None
    for_own_pages: bool = False

    @property
    def endpoint(self) -> str:
        """Name in metrics and logs."""
        path = self.path.replace("{", "").replace("}", "")
        return path.removeprefix("/v1").strip("/").replace("/", "_") or "root"


class RouteTable:
    """All routes."""

    __slots__ = ("_exact", "_patterns", "_prefix_routes", "_upgrades", "all")

    def __init__(self, routes: Iterable[Route], upgrades: Iterable[Route] = ()) -> None:
        self.all = tuple(routes)
        self._exact: dict[str, list[Route]] = {}
        for route in self.all:
            self._exact.setdefault(route.path, []).append(route)
        self._patterns = [
            (re.compile(_PARAMETER.sub("[^/]+", path)), routes)
            for path, routes in self._exact.items()
            if "{" in path
        ]
        self._upgrades = {route.path: route for route in upgrades}
        self._prefix_routes = [
            route for route in self.all if route.path.endswith("/") and route.path != "/"
        ]

    def find(self, path: str, method: str = "") -> Route | None:
        """Return a route of a path, if possible the one for this method."""
        found = self._routes_at(path)
        for route in found:
            if route.method == method or method in _allowed_methods(route):
                return route
        return found[0] if found else None

    def match(self, exchange: ApiExchange) -> Route:
        """Return the route of a request. Raises if the path or the method is not supported."""
        upgrade = self._upgrades.get(exchange.path) if exchange.is_upgrade else None
        if upgrade is not None:
            return upgrade
        route = self.find(exchange.path, exchange.method)
        is_websocket = exchange.headers.get("upgrade", "").lower() == "websocket"
        is_allowed = route is not None and (
            exchange.method == route.method or exchange.method in _allowed_methods(route)
        )
        if not is_allowed and not is_websocket:
            _reject_unsupported(exchange.method, exchange.path)
        if route is None:
            raise UnknownRoute(f"Unknown path {exchange.path}.{self._suggest_path(exchange.path)}")
        if is_allowed:
            return route
        if is_websocket:
            raise WebSocketDisabled("WebSockets are not supported for this path; use HTTP.")
        allowed = [
            method for other in self._routes_at(exchange.path) for method in _allowed_methods(other)
        ]
        raise MethodNotAllowed(exchange.method, exchange.path, ", ".join(allowed))

    def _routes_at(self, path: str) -> list[Route]:
        """Return all routes of a path."""
        found = self._exact.get(path)
        if found is None:
            found = next(
                (routes for pattern, routes in self._patterns if pattern.fullmatch(path)), None
            )
        if found is None:
            found = [r for r in self._prefix_routes if path.startswith(r.path) and path != r.path]
        return found

    def _suggest_path(self, path: str) -> str:
        """Suggest a path with or without `/v1`, which some clients add to the base URL."""
        shorter = path.removeprefix("/v1")
        if shorter != path and self.find(shorter) is not None:
            return f" Did you mean {shorter}? Remove /v1 from the base URL of the client."
        if self.find(f"/v1{path}") is not None:
            return f" Did you mean /v1{path}? Add /v1 to the base URL of the client."
        return ""


_PARAMETER = re.compile(r"\{(\w+)\}")
#: Endpoints of the APIs that are not supported, each with the alternative.
_UNSUPPORTED_ENDPOINTS = (
    (
        re.compile(r"\w+ /v1/messages/batches(/.*)?"),
        "Message batches are not supported. Send each request to POST /v1/messages.",
    ),
    (
        re.compile(r"(GET|HEAD) /v1/chat/completions|\w+ /v1/chat/completions/.*"),
        "Stored chat completions are not supported. Use POST /v1/responses, which stores them.",
    ),
)


def _reject_unsupported(method: str, path: str) -> None:
    """Raise `UnknownRoute` with the alternative of an endpoint that is not supported."""
    for pattern, message in _UNSUPPORTED_ENDPOINTS:
        if pattern.fullmatch(f"{method} {path}"):
            raise UnknownRoute(message)


def _allowed_methods(route: Route) -> tuple[str, ...]:
    return ("GET", "HEAD") if route.method == "GET" else (route.method,)


def select_error_codec(
    exchange: ApiExchange, route: Route | None, codecs: Sequence[Codec], default: Codec
) -> Codec:
    """Select the codec that encodes an error: that of the route, of the path, or of the client."""
    route_codec = None if route is None else route.codec
    if route_codec is not None:
        return route_codec
    path = exchange.path.replace("/v1/v1/", "/v1/", 1)  # a base URL with an extra /v1
    for codec in codecs:
        if path.startswith(codec.path_prefix):
            return codec
    for codec in codecs:
        if codec.client_header is not None and codec.client_header in exchange.headers:
            return codec
    return default


Json = dict[str, Any]

_EXTERNAL_APIS = {
    "/v1/messages": "Anthropic's Messages API",
    "/v1/messages/count_tokens": "Anthropic's count_tokens",
    "/v1/responses": "OpenAI's Responses API",
    "/v1/responses/compact": "OpenAI's Responses API",
    "/v1/responses/input_tokens": "OpenAI's Responses API",
    "/v1/chat/completions": "OpenAI's Chat Completions API",
    "/v1/completions": "OpenAI's Completions API",
    "/v1/conversations": "OpenAI's Conversations API",
    "/v1/messages/render": "Anthropic's Messages API",
    "/v1/responses/render": "OpenAI's Responses API",
    "/v1/chat/completions/render": "OpenAI's Chat Completions API",
}
_STREAMING_PATHS = {
    path
    for path in _EXTERNAL_APIS
    if not path.endswith(("_tokens", "/compact", "/conversations", "/render"))
}
_STRING_SCHEMA, _BOOLEAN_SCHEMA = {"type": "string"}, {"type": "boolean"}
_TOKEN_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}}
_REQUEST_PROPERTIES: dict[str, Json] = {
    "tokenize": {
        "model": _STRING_SCHEMA,
        "prompt": _STRING_SCHEMA,
        "messages": {"type": "array", "items": {"type": "object"}},
        "return_token_strs": _BOOLEAN_SCHEMA,
    },
    "admin_replicas": {"url": _STRING_SCHEMA, "model": _STRING_SCHEMA},
    "detokenize": {"model": _STRING_SCHEMA, "tokens": _TOKEN_IDS_SCHEMA},
}


def build_document(routes: Iterable[Route]) -> bytes:
    """Build the OpenAPI document."""
    paths: dict[str, Json] = {}
    for route in routes:
        path = f"{route.path}{{model}}" if route.path == "/v1/models/" else route.path
        paths.setdefault(path, {})[route.method.lower()] = _operation(route)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Dovetail", "version": version("dovetail")},
            "paths": dict(sorted(paths.items())),
            "components": {
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                }
            },
        }
    )


def _operation(route: Route) -> Json:
    operation: Json = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{route.endpoint}",
        "responses": {"200": _response(route), "default": {"description": "An error"}},
    }
    if route.path == "/v1/models/":
        operation["operationId"] = "get_model"
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": _STRING_SCHEMA}
        ]
    if route.path.startswith(("/tokenize", "/detokenize")):
        operation["operationId"] += "_without_prefix"
    if names := _PARAMETER.findall(route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": _STRING_SCHEMA}
            for name in names
        ]
    elif route.method == "POST":
        operation["requestBody"] = _request_body(route)
    if route.path.endswith("/render"):
        operation["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": _STRING_SCHEMA}
            for name in ("block_hashes", "seed", "block_size")
        ]
    if route.needs_key:
        operation["security"] = [{"bearer": []}, {"key": []}]
    return operation


def _request_body(route: Route) -> Json:
    schema: Json = {"type": "object"}
    if route.path in _EXTERNAL_APIS:
        schema["description"] = f"As defined by {_EXTERNAL_APIS[route.path]}"
    else:
        schema["properties"] = _REQUEST_PROPERTIES[route.endpoint]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _response(route: Route) -> Json:
    kind = "text/plain" if route.path == "/metrics" else "application/json"
    content: Json = {kind: {}}
    if route.path in _STREAMING_PATHS:
        content["text/event-stream"] = {}
    return {"description": "The response", "content": content}
