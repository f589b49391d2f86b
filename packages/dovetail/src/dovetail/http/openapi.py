"""The OpenAPI document: every address, and the shape of what it takes where that is small.

The bodies of the three APIs are their owners' to define. They are named here and not repeated.
"""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.http.routes import Route

Json = dict[str, Any]

_THEIRS = {
    "/v1/messages": "Anthropic's Messages API",
    "/v1/messages/count_tokens": "Anthropic's count_tokens",
    "/v1/responses": "OpenAI's Responses API",
    "/v1/responses/compact": "OpenAI's Responses API",
    "/v1/responses/input_tokens": "OpenAI's Responses API",
    "/v1/chat/completions": "OpenAI's Chat Completions API",
    "/v1/completions": "OpenAI's Completions API",
}
_STREAMS = {path for path in _THEIRS if not path.endswith(("_tokens", "/compact"))}
_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}
_IDS = {"type": "array", "items": {"type": "integer"}}
_OWN: dict[str, Json] = {
    "tokenize": {
        "model": _TEXT,
        "prompt": _TEXT,
        "messages": {"type": "array", "items": {"type": "object"}},
        "return_token_strs": _FLAG,
    },
    "detokenize": {"model": _TEXT, "tokens": _IDS},
}


def document(routes: Iterable[Route]) -> bytes:
    """The document, made once."""
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
        "responses": {"200": _answer(route), "default": {"description": "An error"}},
    }
    if route.path == "/v1/models/":
        operation["operationId"] = "get_model"
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": _TEXT}
        ]
    if route.path.startswith(("/tokenize", "/detokenize")):
        operation["operationId"] += "_without_prefix"
    if "{id}" in route.path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    elif route.method == "POST":
        operation["requestBody"] = _body(route)
    if route.needs_key:
        operation["security"] = [{"bearer": []}, {"key": []}]
    return operation


def _body(route: Route) -> Json:
    schema: Json = {"type": "object"}
    if route.path in _THEIRS:
        schema["description"] = f"As {_THEIRS[route.path]} defines it"
    else:
        schema["properties"] = _OWN[route.endpoint]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _answer(route: Route) -> Json:
    kind = "text/plain" if route.path == "/metrics" else "application/json"
    content: Json = {kind: {}}
    if route.path in _STREAMS:
        content["text/event-stream"] = {}
    return {"description": "The answer", "content": content}
