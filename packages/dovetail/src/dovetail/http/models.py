"""What is served, in the form of the API that asks."""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.http.exchange import JSON, Exchange, end_of
from dovetail.http.published import Catalog
from dovetail.pipeline.registry import ModelEntry, ModelRegistry
from dovetail_model import InvalidRequest

_MOST = 1000
_COUNT = re.compile(r"[0-9]{1,6}")
Json = dict[str, Any]
Named = list[tuple[str, ModelEntry]]


#: Codex compares it with the tag of the list that it has, and fetches the list anew if they differ.
CATALOG_TAG = "x-models-etag"


class Models:
    """Lists of models, and single ones. Their names may have slashes."""

    def __init__(self, service: ModelRegistry, catalog: Catalog) -> None:
        self._service = service
        self._catalog = catalog

    async def list(self, exchange: Exchange) -> None:
        found = list(self._service.iter_entries())
        if is_anthropic(exchange):
            await exchange.answer(200, msgspec.json.encode(_page(exchange, found)))
        elif "client_version" in exchange.query:
            await self._codex(exchange, found)
        else:
            await exchange.answer(200, msgspec.json.encode(_openai_list(found)))

    async def _codex(self, exchange: Exchange, found: Named) -> None:
        """Both lists: Codex reads `models` and says which version of it asks."""
        published = self._catalog.current()
        tags = [("etag", published.etag), (CATALOG_TAG, published.etag)]
        if _has(exchange, published.etag):
            await exchange.begin(304, JSON, tags)
            await exchange.send(end_of())
            return
        body = {**_openai_list(found), "models": published.models}
        await exchange.answer(200, msgspec.json.encode(body), headers=tags)

    async def one(self, exchange: Exchange) -> None:
        """The model of a name, under the name that was asked for: an alias stays one."""
        name = exchange.path.removeprefix("/v1/models/")
        served = self._service.find(name)
        entry = _anthropic(name, served) if is_anthropic(exchange) else _openai(name, served)
        await exchange.answer(200, msgspec.json.encode(entry))


def is_anthropic(exchange: Exchange) -> bool:
    """Which of the two forms a client reads: only Anthropic's name their version."""
    return "anthropic-version" in exchange.headers


def _has(exchange: Exchange, etag: str) -> bool:
    """Whether the client has this state already. Tags are compared without regard to weakness."""
    known = [tag.strip() for tag in exchange.headers.get("if-none-match", "").split(",")]
    return "*" in known or etag.removeprefix("W/") in (tag.removeprefix("W/") for tag in known)


def _openai_list(found: Named) -> Json:
    return {"object": "list", "data": [_openai(name, served) for name, served in found]}


def _openai(name: str, served: ModelEntry) -> Json:
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


def _anthropic(name: str, served: ModelEntry) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(served.created), UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.context_length,
        "max_tokens": served.context_length,
    }


def _page(exchange: Exchange, found: Named) -> Json:
    """Anthropic's list comes in pages."""
    query = exchange.query
    names = [name for name, _ in found]
    limit = query.get("limit", str(_MOST))
    if not _COUNT.fullmatch(limit) or not 1 <= int(limit) <= _MOST:
        raise InvalidRequest(f"limit: a number from 1 to {_MOST}", param="limit")
    start, end = 0, len(found)
    if query.get("after_id") in names:
        start = names.index(query["after_id"]) + 1
    if query.get("before_id") in names:
        end = names.index(query["before_id"])
        start = max(start, end - int(limit))
    page = found[start:end][: int(limit)]
    return {
        "data": [_anthropic(name, served) for name, served in page],
        "has_more": start + len(page) < end,
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
    }
