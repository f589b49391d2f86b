"""The model endpoints, in the format of OpenAI, Anthropic or Codex."""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.http.codex_catalog import CodexCatalog
from dovetail.http.exchange import ApiExchange
from dovetail.http.model_capabilities import describe_capabilities
from dovetail.net.exchange import JSON_CONTENT_TYPE, decode_slashes
from dovetail.pipeline.registry import ModelEntry, ModelRegistry
from dovetail_model import InvalidRequest
from dovetail_protocols import MESSAGES, MODELS_ETAG_HEADER

_MAX_PAGE_MODELS = 1000
_LIMIT_PATTERN = re.compile(r"[0-9]{1,6}")
Json = dict[str, Any]
NamedModels = list[tuple[str, ModelEntry]]


class ModelsEndpoints:
    """List models and get single models. Names may contain slashes."""

    def __init__(self, service: ModelRegistry, catalog: CodexCatalog) -> None:
        self._service = service
        self._catalog = catalog

    async def list(self, exchange: ApiExchange) -> None:
        named_models = list(self._service.iter_entries())
        if is_anthropic_client(exchange):
            await exchange.respond(
                200, msgspec.json.encode(self._anthropic_page(exchange, named_models))
            )
        elif "client_version" in exchange.query:
            await self._list_for_codex(exchange, named_models)
        else:
            await exchange.respond(200, msgspec.json.encode(_openai_list(named_models)))

    async def _list_for_codex(self, exchange: ApiExchange, named_models: NamedModels) -> None:
        """Send OpenAI's list and Codex's catalog. Codex is recognized by `client_version`."""
        catalog = self._catalog.current()
        headers = [("etag", catalog.etag), (MODELS_ETAG_HEADER, catalog.etag)]
        if _matches_etag(exchange, catalog.etag):
            await exchange.start_response(304, JSON_CONTENT_TYPE, headers)
            await exchange.end()
            return
        body = {**_openai_list(named_models), "models": catalog.models}
        await exchange.respond(200, msgspec.json.encode(body), headers=headers)

    async def get(self, exchange: ApiExchange) -> None:
        """Send a model under the requested name, which may be an alias."""
        name = decode_slashes(exchange.path.removeprefix("/v1/models/"))
        entry = self._service.find(name)
        body = (
            self._anthropic_entry(name, entry)
            if is_anthropic_client(exchange)
            else _openai_entry(name, entry)
        )
        await exchange.respond(200, msgspec.json.encode(body))

    def _anthropic_page(self, exchange: ApiExchange, named_models: NamedModels) -> Json:
        """Return a page of Anthropic's list."""
        query = exchange.query
        names = [name for name, _ in named_models]
        limit = query.get("limit", str(_MAX_PAGE_MODELS))
        if not _LIMIT_PATTERN.fullmatch(limit) or not 1 <= int(limit) <= _MAX_PAGE_MODELS:
            raise InvalidRequest(
                f"`limit` must be between 1 and {_MAX_PAGE_MODELS}, got {limit[:20]!r}",
                param="limit",
            )
        start, end = 0, len(named_models)
        if query.get("after_id") in names:
            start = names.index(query["after_id"]) + 1
        if query.get("before_id") in names:
            end = names.index(query["before_id"])
            start = max(start, end - int(limit))
        page = named_models[start:end][: int(limit)]
        return {
            "data": [self._anthropic_entry(name, entry) for name, entry in page],
            "has_more": start + len(page) < end,
            "first_id": page[0][0] if page else None,
            "last_id": page[-1][0] if page else None,
        }

    def _anthropic_entry(self, name: str, entry: ModelEntry) -> Json:
        tools = self._service.server_tools
        return {
            "type": "model",
            "id": name,
            "display_name": name,
            "created_at": datetime.fromtimestamp(int(entry.created), UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": entry.context_length,
            "max_tokens": entry.context_length,
            "input_modalities": list(entry.input_modalities),
            "capabilities": describe_capabilities(entry, tools.kinds if tools is not None else ()),
        }


def is_anthropic_client(exchange: ApiExchange) -> bool:
    """Return whether the client uses Anthropic's API: only its clients send `anthropic-version`."""
    return MESSAGES.client_header in exchange.headers


def _matches_etag(exchange: ApiExchange, etag: str) -> bool:
    """Return whether the client already has the version with this ETag (weak comparison)."""
    known = [tag.strip() for tag in exchange.headers.get("if-none-match", "").split(",")]
    return "*" in known or etag.removeprefix("W/") in (tag.removeprefix("W/") for tag in known)


def _openai_list(named_models: NamedModels) -> Json:
    return {"object": "list", "data": [_openai_entry(name, entry) for name, entry in named_models]}


def _openai_entry(name: str, entry: ModelEntry) -> Json:
    """Return OpenAI's entry, with limits under the names that vLLM and OpenRouter use."""
    return {
        "id": name,
        "object": "model",
        "created": int(entry.created),
        "owned_by": "dovetail",
        "root": entry.name,
        "max_model_len": entry.context_length,
        "context_length": entry.context_length,
        "max_output_tokens": entry.context_length,
        "input_modalities": list(entry.input_modalities),
        "output_modalities": ["text"],
    }
