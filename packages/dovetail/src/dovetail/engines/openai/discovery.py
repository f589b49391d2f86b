"""What a server says about its models. Everybody has `/v1/models`; few say there how long one is.

The window stands under another name in each of them:

| server | where |
|---|---|
| vLLM, SGLang, Dovetail | `max_model_len` |
| OpenRouter, Together | `context_length`; Groq `context_window`, Mistral `max_context_length` |
| llama.cpp | `/props`: what a slot has; `meta.n_ctx_train` is what the model could have |
| LM Studio | `/api/v0/models`: `loaded_context_length`, else `max_context_length` |
| Ollama | `/api/ps`: what a loaded model has; `/api/show` is what it could have |
| LiteLLM | `/model/info`: `max_input_tokens` |
"""

import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dovetail.engines.engine import RemoteModel
from dovetail.engines.openai.errors import UpstreamRejection, error_from_rejection, parse_rejection
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineError, EngineUnavailable
from dovetail_protocols import ReasoningField

DISCOVERY_TIMEOUTS = Timeouts(connect=5.0, read=15.0)

_CONTEXT_LENGTH_FIELDS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "loaded_context_length",
    "max_input_tokens",
)
ModelCard = Mapping[str, Any]


async def discover(endpoint: Endpoint) -> RemoteModel:
    """The first model of a server, and the names of all. One that lists none is named by nobody."""
    cards = await list_models(endpoint)
    if not cards:
        return RemoteModel("")
    name = str(cards[0]["id"])
    root = cards[0].get("root")
    return RemoteModel(
        name=name,
        names=tuple(str(card["id"]) for card in cards),
        root=root if isinstance(root, str) else None,
        context_length=await find_context_length(endpoint, name, cards),
        version=_text(cards[0].get("owned_by")),
    )


async def list_models(endpoint: Endpoint) -> list[ModelCard]:
    """All that `/v1/models` lists; nothing where a server has no such list."""
    who = f"the server at {endpoint}"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
        )
    except EngineUnavailable as fault:
        raise EngineUnavailable(f"{fault.message}: is a server running there?") from fault
    if status in (404, 405, 501):
        return []
    if status != 200:
        raise error_from_rejection(who, "", parse_rejection(status, content))
    told = _decode_object(content)
    cards = [card for card in _list(told, "data") if card.get("id")]
    if not cards and "data" not in told:
        raise EngineError(f"{who} does not list models as OpenAI's API does")
    if not cards:
        raise EngineUnavailable(f"{who} serves no model yet")
    return cards


async def find_context_length(
    endpoint: Endpoint, name: str, cards: Iterable[ModelCard]
) -> int | None:
    """How many tokens the model of that name has room for, as far as anybody says."""
    card = next((card for card in cards if card.get("id") == name), {})
    found = None if "meta" in card else _context_length_field(card)
    if found is None:
        found = await _probe_context_length(endpoint, name)
    meta = card.get("meta")
    return found or (_number(meta.get("n_ctx_train")) if isinstance(meta, dict) else None)


async def _probe_context_length(endpoint: Endpoint, name: str) -> int | None:
    """The window from what only one kind of server has. Each is asked until one knows."""
    settings = (await _fetch_json(endpoint, "/props")).get("default_generation_settings")
    found = _number(settings.get("n_ctx")) if isinstance(settings, dict) else None
    if found is None:
        studio = _list(await _fetch_json(endpoint, "/api/v0/models"), "data")
        card = next((card for card in studio if card.get("id") == name), {})
        found = _number(card.get("loaded_context_length")) or _context_length_field(card)
    if found is None:
        loaded = _list(await _fetch_json(endpoint, "/api/ps"), "models")
        found = _context_length_field(
            next((card for card in loaded if card.get("name") == name), {})
        )
    if found is None:
        deployed = _list(await _fetch_json(endpoint, "/model/info"), "data")
        card = next((card for card in deployed if card.get("model_name") == name), {})
        info = card.get("model_info")
        found = _context_length_field(info) if isinstance(info, dict) else None
    return found


async def _fetch_json(endpoint: Endpoint, path: str) -> ModelCard:
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", path, timeouts=DISCOVERY_TIMEOUTS)
        )
    except DovetailError:
        return {}
    return _decode_object(content) if status == 200 else {}


def _decode_object(content: bytes) -> ModelCard:
    try:
        told = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _list(data: ModelCard, key: str) -> list[ModelCard]:
    found = data.get(key)
    return [card for card in found if isinstance(card, dict)] if isinstance(found, list) else []


def _context_length_field(card: ModelCard) -> int | None:
    return next(
        (found for name in _CONTEXT_LENGTH_FIELDS if (found := _number(card.get(name)))), None
    )


def _number(value: object) -> int | None:
    """A number of tokens. LiteLLM writes some as text."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value > 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_log = logging.getLogger(__name__)

PROBE_REASONING = " ".join(
    f"Consider stone {number}, then the river and the mill." for number in range(6)
)
MIN_GROWTH_TOKENS = 40  # tokens: the thought has twice as many, no framing has
_CALL = {
    "id": "call_probe",
    "type": "function",
    "function": {"name": "look", "arguments": '{"at": "mill"}'},
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string"}},
            "required": ["at"],
        },
    },
}
CountPromptTokens = Callable[[dict[str, Any]], Awaitable[int | UpstreamRejection | None]]
"""The prompt's tokens of a request; None where a server does not count, or why it refused."""


@dataclass(frozen=True)
class ReasoningFieldResult:
    """The field that is read, None if none is. Where it is not known, the usual one is used.

    `again` says that the question failed and may be asked once more.
    """

    field: ReasoningField | None
    known: bool = True
    reason: str = ""
    retryable: bool = False


async def probe_reasoning_field(
    count_tokens: CountPromptTokens, model: str
) -> ReasoningFieldResult:
    """The field that the server reads thoughts in."""
    bare = await count_tokens(_probe_request(model, {}))
    if bare is None:
        return unknown_result("it does not count tokens", retryable=False)
    if isinstance(bare, UpstreamRejection):
        return unknown_result(f"status {bare.status}")
    for field in ("reasoning_content", "reasoning"):
        if _has_grown(bare, await count_tokens(_probe_request(model, {field: PROBE_REASONING}))):
            found: ReasoningField = "reasoning" if field == "reasoning" else "reasoning_content"
            ours = await count_tokens(
                _probe_request(model, {"reasoning_segments": [PROBE_REASONING, ""]})
            )
            return ReasoningFieldResult("reasoning_segments" if _has_grown(bare, ours) else found)
    return ReasoningFieldResult(None)


def unknown_result(reason: str, *, retryable: bool = True) -> ReasoningFieldResult:
    """No verdict: most servers that read thoughts at all read them there."""
    return ReasoningFieldResult(
        "reasoning_content", known=False, reason=reason, retryable=retryable
    )


def log_probe_result(server: str, result: ReasoningFieldResult) -> None:
    fields = {"server": server, "field": result.field or "none", "known": result.known}
    if result.reason:
        fields["why"] = result.reason
    level = logging.INFO if result.field is not None and result.known else logging.WARNING
    _log.log(level, "reasoning_field", extra={"fields": fields})


def _has_grown(bare: int, found: int | UpstreamRejection | None) -> bool:
    """Whether the thought is in the prompt. A server that refuses the field does not read it."""
    return isinstance(found, int) and found - bare >= MIN_GROWTH_TOKENS


def _probe_request(model: str, reasoning_fields: dict[str, Any]) -> dict[str, Any]:
    assistant = {"role": "assistant", "content": "", "tool_calls": [_CALL], **reasoning_fields}
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": f"{secrets.token_hex(8)} is the number of this talk."},
            {"role": "user", "content": "What is at the mill?"},
            assistant,
            {"role": "tool", "tool_call_id": "call_probe", "content": "A wheel."},
        ],
        "tools": [_TOOL],
        "max_tokens": 1,
        "stream": False,
    }
