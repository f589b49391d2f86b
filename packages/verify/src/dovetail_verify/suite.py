"""What a server says of itself before it is judged: its model, its window, its APIs."""

from typing import Any

from dovetail_verify.black_box.refusals import refusal_reason
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import CheckFailed
from dovetail_verify.dialects import DIALECTS
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_CONTEXT_LENGTH_FIELDS = ("max_model_len", "context_length", "context_window", "max_input_tokens")
_NOT_SERVED_STATUSES = (404, 405, 501)
_UNAUTHORIZED_STATUSES = (401, 403)


class TargetUnusable(Exception):
    """A server that cannot be judged, and why."""


async def discover_target(target: TargetServer) -> None:
    """Completes a stage. Raises `Unusable` where no model can be named, or none answers."""
    listing = await target.request("GET", "/v1/models")
    entries = _model_entries(listing)
    if not target.model:
        if not entries:
            raise TargetUnusable(_no_models_message(target, listing))
        target.model = str(entries[0].get("id"))
    chosen = next((entry for entry in entries if entry.get("id") == target.model), {})
    target.context_length = await _find_context_length(target, chosen)
    if target.api_key is not None:
        target.features.add("a key")
    await _probe_apis(target)
    await _probe_generation(target)


def _model_entries(exchange: HttpExchange) -> list[dict[str, Any]]:
    try:
        data = exchange.json["data"]
    except (CheckFailed, KeyError, TypeError):
        return []
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


async def _find_context_length(target: TargetServer, entry: dict[str, Any]) -> int | None:
    """The tokens that prompt and answer may have, by any of the names that servers use."""
    found = [entry.get(name) for name in _CONTEXT_LENGTH_FIELDS]
    for value in found:
        if isinstance(value, int) and value > 0:
            return value
    props = await target.request("GET", "/props")  # where llama.cpp says it
    try:
        value = props.json["default_generation_settings"]["n_ctx"]
    except (CheckFailed, KeyError, TypeError):
        return None
    return value if isinstance(value, int) and value > 0 else None


async def _probe_apis(target: TargetServer) -> None:
    """An API that is served complains of an empty request; one that is not does not know it."""
    for dialect in DIALECTS:
        exchange = await target.post(dialect.path, {})
        if exchange.status in _NOT_SERVED_STATUSES:
            target.missing_apis[dialect.api] = (
                f"POST {dialect.path} is answered with {exchange.status}"
            )
    if len(target.missing_apis) == len(DIALECTS):
        raise TargetUnusable("the server has none of the three APIs: is the address right?")


async def _probe_generation(target: TargetServer) -> None:
    """One API must answer a plain question, or all checks would only say that none does."""
    refusals = []
    for dialect in DIALECTS:
        if dialect.api not in target.missing_apis:
            body = dialect.body(target.model, [QUESTION], max_tokens=16)
            exchange = await target.post(dialect.path, body)
            if exchange.status == 200:
                return
            refusals.append(exchange)
    first = refusals[0]
    if all(exchange.status in _UNAUTHORIZED_STATUSES for exchange in refusals):
        raise TargetUnusable(_unauthorized_message(target, first))
    told = f"POST {first.request.path} is answered with status {first.status}{_error_suffix(first)}"
    raise TargetUnusable(f"the model {target.model} does not answer: {told}")


def _no_models_message(target: TargetServer, listing: HttpExchange) -> str:
    if listing.status in _UNAUTHORIZED_STATUSES:
        return _unauthorized_message(target, listing)
    status = f" (GET /v1/models is answered with status {listing.status})"
    shown = "" if listing.status == 200 else status
    return f"the server lists no models{shown}: name one with --model, or look at the address"


def _unauthorized_message(target: TargetServer, exchange: HttpExchange) -> str:
    wanted = "asks for a key" if target.api_key is None else "does not take this key"
    return f"the server {wanted} (status {exchange.status}): --api-key"


def _error_suffix(exchange: HttpExchange) -> str:
    try:
        return f", {refusal_reason(exchange)}"
    except CheckFailed:
        return ""
