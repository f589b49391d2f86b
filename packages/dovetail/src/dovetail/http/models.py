"""What is served, in the form of the API that asks."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from dovetail.http.exchange import Exchange
from dovetail.service import Offered, Service
from dovetail_model import InvalidRequest

_MOST = 1000
_COUNT = re.compile(r"[0-9]{1,6}")
Json = dict[str, Any]


class Models:
    """Lists of models, and single ones. Their names may have slashes."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, exchange: Exchange) -> None:
        found = list(self._named())
        body = _page(exchange, found) if is_anthropic(exchange) else _openai_list(found)
        await exchange.answer(200, msgspec.json.encode(body))

    async def one(self, exchange: Exchange) -> None:
        """The model of a name, under the name that was asked for: an alias stays one."""
        name = exchange.path.removeprefix("/v1/models/")
        served = self._service.find(name)
        entry = _anthropic(name, served) if is_anthropic(exchange) else _openai(name, served)
        await exchange.answer(200, msgspec.json.encode(entry))

    def _named(self) -> Iterator[tuple[str, Offered]]:
        for served in self._service.served:
            for name in served.names:
                yield name, served


def is_anthropic(exchange: Exchange) -> bool:
    """Which of the two forms a client reads: only Anthropic's name their version."""
    return "anthropic-version" in exchange.headers


def _openai_list(found: list[tuple[str, Offered]]) -> Json:
    return {"object": "list", "data": [_openai(name, served) for name, served in found]}


def _openai(name: str, served: Offered) -> Json:
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


def _anthropic(name: str, served: Offered) -> Json:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(int(served.created), UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": served.context_length,
        "max_tokens": served.context_length,
    }


def _page(exchange: Exchange, found: list[tuple[str, Offered]]) -> Json:
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
