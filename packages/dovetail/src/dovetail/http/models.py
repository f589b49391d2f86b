"""What is served, in the form of the API that asks."""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.http.codex_catalog import CodexCatalog
from dovetail.http.exchange import ApiExchange
from dovetail.net.exchange import JSON_CONTENT_TYPE
from dovetail.pipeline.registry import ModelEntry, ModelRegistry
from dovetail_model import InvalidRequest
from dovetail_protocols import MESSAGES, MODELS_ETAG_HEADER

_MAX_PAGE_MODELS = 1000
_LIMIT_PATTERN = re.compile(r"[0-9]{1,6}")
Json = dict[str, Any]
NamedModels = list[tuple[str, ModelEntry]]


class ModelsEndpoints:
    """Lists of models, and single ones. Their names may have slashes."""

    def __init__(self, service: ModelRegistry, catalog: CodexCatalog) -> None:
        self._service = service
        self._catalog = catalog

    async def list(self, exchange: ApiExchange) -> None:
        found = list(self._service.iter_entries())
        if is_anthropic_client(exchange):
            await exchange.respond(200, msgspec.json.encode(_anthropic_page(exchange, found)))
        elif "client_version" in exchange.query:
            await self._list_for_codex(exchange, found)
        else:
            await exchange.respond(200, msgspec.json.encode(_openai_list(found)))

    async def _list_for_codex(self, exchange: ApiExchange, found: NamedModels) -> None:
        """Both lists: Codex reads `models` and says which version of it asks."""
        published = self._catalog.current()
        tags = [("etag", published.etag), (MODELS_ETAG_HEADER, published.etag)]
        if _matches_etag(exchange, published.etag):
            await exchange.start_response(304, JSON_CONTENT_TYPE, tags)
            await exchange.end()
            return
        body = {**_openai_list(found), "models": published.models}
        await exchange.respond(200, msgspec.json.encode(body), headers=tags)

    async def get(self, exchange: ApiExchange) -> None:
        """The model of a name, under the name that was asked for: an alias stays one."""
        name = exchange.path.removeprefix("/v1/models/")
        served = self._service.find(name)
        entry = (
            _anthropic_entry(name, served)
            if is_anthropic_client(exchange)
            else _openai_entry(name, served)
        )
        await exchange.respond(200, msgspec.json.encode(entry))


def is_anthropic_client(exchange: ApiExchange) -> bool:
    """Which of the two forms a client reads: only Anthropic's name their version."""
    return MESSAGES.client_header in exchange.headers


def _matches_etag(exchange: ApiExchange, etag: str) -> bool:
    """Whether the client has this state already. Tags are compared without regard to weakness."""
    known = [tag.strip() for tag in exchange.headers.get("if-none-match", "").split(",")]
    return "*" in known or etag.removeprefix("W/") in (tag.removeprefix("W/") for tag in known)


def _openai_list(found: NamedModels) -> Json:
    return {"object": "list", "data": [_openai_entry(name, served) for name, served in found]}


def _openai_entry(name: str, served: ModelEntry) -> Json:
    """OpenAI's entry with the limits under the names that vLLM and OpenRouter made known."""
    return {
        "id": name,
        "object": "model",
        "created": int(served.created),
        "owned_by": "dovetail",
        "root": served.name,
        "max_model_len": served.context_length,
        "context_length": served.context_length,
        "max_output_tokens": served.context_length,
    }


def _anthropic_entry(name: str, served: ModelEntry) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(served.created), UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.context_length,
        "max_tokens": served.context_length,
    }


def _anthropic_page(exchange: ApiExchange, found: NamedModels) -> Json:
    """Anthropic's list comes in pages."""
    query = exchange.query
    names = [name for name, _ in found]
    limit = query.get("limit", str(_MAX_PAGE_MODELS))
    if not _LIMIT_PATTERN.fullmatch(limit) or not 1 <= int(limit) <= _MAX_PAGE_MODELS:
        raise InvalidRequest(f"limit: a number from 1 to {_MAX_PAGE_MODELS}", param="limit")
    start, end = 0, len(found)
    if query.get("after_id") in names:
        start = names.index(query["after_id"]) + 1
    if query.get("before_id") in names:
        end = names.index(query["before_id"])
        start = max(start, end - int(limit))
    page = found[start:end][: int(limit)]
    return {
        "data": [_anthropic_entry(name, served) for name, served in page],
        "has_more": start + len(page) < end,
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
    }
