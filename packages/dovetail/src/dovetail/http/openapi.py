"""The OpenAPI document: every address, and the shape of what it takes where that is small.

The bodies of the three APIs are their owners' to define. They are named here and not repeated.
"""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from dovetail.http.routes import Route

Json = dict[str, Any]

_EXTERNAL_APIS = {
    "/v1/messages": "Anthropic's Messages API",
    "/v1/messages/count_tokens": "Anthropic's count_tokens",
    "/v1/responses": "OpenAI's Responses API",
    "/v1/responses/compact": "OpenAI's Responses API",
    "/v1/responses/input_tokens": "OpenAI's Responses API",
    "/v1/chat/completions": "OpenAI's Chat Completions API",
    "/v1/completions": "OpenAI's Completions API",
}
_STREAMING_PATHS = {path for path in _EXTERNAL_APIS if not path.endswith(("_tokens", "/compact"))}
_STRING_SCHEMA, _BOOLEAN_SCHEMA = {"type": "string"}, {"type": "boolean"}
_TOKEN_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}}
_REQUEST_PROPERTIES: dict[str, Json] = {
    "tokenize": {
        "model": _STRING_SCHEMA,
        "prompt": _STRING_SCHEMA,
        "messages": {"type": "array", "items": {"type": "object"}},
        "return_token_strs": _BOOLEAN_SCHEMA,
    },
    "detokenize": {"model": _STRING_SCHEMA, "tokens": _TOKEN_IDS_SCHEMA},
}


def build_document(routes: Iterable[Route]) -> bytes:
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
        "responses": {"200": _response(route), "default": {"description": "An error"}},
    }
    if route.path == "/v1/models/":
        operation["operationId"] = "get_model"
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": _STRING_SCHEMA}
        ]
    if route.path.startswith(("/tokenize", "/detokenize")):
        operation["operationId"] += "_without_prefix"
    if "{id}" in route.path:
        operation["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": _STRING_SCHEMA}
        ]
    elif route.method == "POST":
        operation["requestBody"] = _request_body(route)
    if route.needs_key:
        operation["security"] = [{"bearer": []}, {"key": []}]
    return operation


def _request_body(route: Route) -> Json:
    schema: Json = {"type": "object"}
    if route.path in _EXTERNAL_APIS:
        schema["description"] = f"As {_EXTERNAL_APIS[route.path]} defines it"
    else:
        schema["properties"] = _REQUEST_PROPERTIES[route.endpoint]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _response(route: Route) -> Json:
    kind = "text/plain" if route.path == "/metrics" else "application/json"
    content: Json = {kind: {}}
    if route.path in _STREAMING_PATHS:
        content["text/event-stream"] = {}
    return {"description": "The answer", "content": content}
