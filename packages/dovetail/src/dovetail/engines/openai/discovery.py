"""Discover a server's models, their context lengths, and the field that carries reasoning.

All servers have `/v1/models`, but few report the context length there, and the field differs:

| server | where |
|---|---|
| vLLM, SGLang, Dovetail | `max_model_len` |
| OpenRouter, Together | `context_length` |
| Groq | `context_window` |
| Mistral | `max_context_length` |
| llama.cpp | `/props`: the length of a slot; `meta.n_ctx_train` is the model's maximum |
| LM Studio | `/api/v0/models`: `loaded_context_length`, else `max_context_length` |
| Ollama | `/api/ps`: the length of a loaded model; `/api/show` is its maximum |
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
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError, EngineError, EngineUnavailable
from dovetail_protocols import ReasoningField, UpstreamApi

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
    """Return a server's first model and the names of all; the name is empty if it lists none."""
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
    """Return the models that `/v1/models` lists; an empty list if the server has no such path."""
    server_name = f"the server at {endpoint}"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
        )
    except EngineUnavailable as fault:
        raise EngineUnavailable(f"{fault.message}: is a server running there?") from fault
    if status in (404, 405, 501):
        return []
    if status != 200:
        raise error_from_rejection(server_name, "", parse_rejection(status, content))
    listing = _decode_object(content)
    cards = parse_model_list(content)
    if not cards and "data" not in listing:
        raise EngineError(f"{server_name} returned an invalid model list")
    if not cards:
        raise EngineUnavailable(f"{server_name} serves no model yet")
    return cards


def parse_model_list(content: bytes) -> list[ModelCard]:
    """Return the models in a response of `/v1/models`; an empty list if it is malformed."""
    return [card for card in _list(_decode_object(content), "data") if card.get("id")]


async def find_context_length(
    endpoint: Endpoint, name: str, cards: Iterable[ModelCard]
) -> int | None:
    """Return the context length of a model, if it can be determined."""
    card = next((card for card in cards if card.get("id") == name), {})
    found = None if "meta" in card else _context_length_field(card)
    if found is None:
        found = await _probe_context_length(endpoint, name)
    meta = card.get("meta")
    return found or (_number(meta.get("n_ctx_train")) if isinstance(meta, dict) else None)


async def _probe_context_length(endpoint: Endpoint, name: str) -> int | None:
    """Query the endpoints that only one kind of server has, in turn, for the context length."""
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
        decoded = msgspec.json.decode(content)
    except FRAME_ERRORS:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _list(data: ModelCard, key: str) -> list[ModelCard]:
    found = data.get(key)
    return [card for card in found if isinstance(card, dict)] if isinstance(found, list) else []


def _context_length_field(card: ModelCard) -> int | None:
    return next(
        (found for name in _CONTEXT_LENGTH_FIELDS if (found := _number(card.get(name)))), None
    )


def _number(value: object) -> int | None:
    """Return a positive number of tokens. LiteLLM encodes some as strings."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    return value if type(value) is int and value > 0 else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_log = logging.getLogger(__name__)

PROBE_REASONING = " ".join(
    f"Consider stone {number}, then the river and the mill." for number in range(6)
)
#: A prompt that grows by this many tokens contains the probe's reasoning. The reasoning has about
#: twice as many tokens; markup that a template adds for a field has fewer.
MIN_GROWTH_TOKENS = 40
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
"""Counts a request's prompt tokens; None if the server reports no count, or its rejection."""


@dataclass(frozen=True)
class ReasoningFieldResult:
    """The field from which the server reads reasoning; None if it reads none.

    `known`: False if the field is only assumed, because most servers use it.
    `retryable`: the probe failed and may be repeated.
    """

    field: ReasoningField | None
    known: bool = True
    reason: str = ""
    retryable: bool = False


async def probe_reasoning_field(
    count_tokens: CountPromptTokens, model: str
) -> ReasoningFieldResult:
    """Find the field from which the server reads the reasoning of earlier turns."""
    baseline = await count_tokens(_probe_request(model, {}))
    if baseline is None:
        return unknown_result("the server does not report token counts", retryable=False)
    if isinstance(baseline, UpstreamRejection):
        return unknown_result(f"status {baseline.status}")
    for field in ("reasoning_content", "reasoning"):
        if _has_grown(
            baseline, await count_tokens(_probe_request(model, {field: PROBE_REASONING}))
        ):
            found: ReasoningField = "reasoning" if field == "reasoning" else "reasoning_content"
            with_segments = await count_tokens(
                _probe_request(model, {"reasoning_segments": [PROBE_REASONING, ""]})
            )
            return ReasoningFieldResult(
                "reasoning_segments" if _has_grown(baseline, with_segments) else found
            )
    return ReasoningFieldResult(None)


async def probe_custom_tools(count_tokens: CountPromptTokens, model: str, api: UpstreamApi) -> bool:
    """Return whether a server shows free-text tools to its model.

    Servers that do not support such tools reject them or leave them out of the prompt.
    """
    tool = {"name": "look", "description": PROBE_REASONING}
    for request in _short_requests(model, api):
        baseline = await count_tokens(request)
        if isinstance(baseline, UpstreamRejection):
            continue
        declared = {"custom": tool} if api == "chat" else tool
        found = await count_tokens({**request, "tools": [{"type": "custom", **declared}]})
        return baseline is not None and _has_grown(baseline, found)
    return False


def _short_requests(model: str, api: UpstreamApi) -> list[dict[str, Any]]:
    """Return requests with a short output. Chat servers differ in the name of the limit."""
    text = "What is at the mill?"
    if api == "responses":
        return [{"model": model, "input": text, "max_output_tokens": 16}]
    request = {"model": model, "messages": [{"role": "user", "content": text}]}
    return [request | {name: 16} for name in ("max_tokens", "max_completion_tokens")]


def unknown_result(reason: str, *, retryable: bool = True) -> ReasoningFieldResult:
    """Return the result of a failed probe: the field that most servers use."""
    return ReasoningFieldResult(
        "reasoning_content", known=False, reason=reason, retryable=retryable
    )


def log_probe_result(server: str, result: ReasoningFieldResult) -> None:
    fields = {"server": server, "field": result.field or "none", "known": result.known}
    if result.reason:
        fields["reason"] = result.reason
    level = logging.INFO if result.field is not None and result.known else logging.WARNING
    _log.log(level, "reasoning_field_probed", extra={"fields": fields})


def _has_grown(baseline: int, found: int | UpstreamRejection | None) -> bool:
    """Return whether the prompt contains the reasoning. A rejected field counts as not read."""
    return isinstance(found, int) and found - baseline >= MIN_GROWTH_TOKENS


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
