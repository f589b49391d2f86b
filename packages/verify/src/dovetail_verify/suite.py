"""What a server says of itself before it is judged: its model, its window, its APIs."""

from typing import Any

from dovetail_verify.black_box.refusals import said
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import Failed
from dovetail_verify.dialects import DIALECTS
from dovetail_verify.exchange import Exchange
from dovetail_verify.target import Stage

_LENGTHS = ("max_model_len", "context_length", "context_window", "max_input_tokens")
_ABSENT = (404, 405, 501)
_LOCKED = (401, 403)


class Unusable(Exception):
    """A server that cannot be judged, and why."""


async def discover(stage: Stage) -> None:
    """Completes a stage. Raises `Unusable` where no model can be named, or none answers."""
    listing = await stage.ask("GET", "/v1/models")
    entries = _listed(listing)
    if not stage.model:
        if not entries:
            raise Unusable(_without_models(stage, listing))
        stage.model = str(entries[0].get("id"))
    chosen = next((entry for entry in entries if entry.get("id") == stage.model), {})
    stage.window = await _window(stage, chosen)
    if stage.key is not None:
        stage.facts.add("a key")
    await _look_for_apis(stage)
    await _look_for_an_answer(stage)


def _listed(exchange: Exchange) -> list[dict[str, Any]]:
    try:
        data = exchange.json["data"]
    except (Failed, KeyError, TypeError):
        return []
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


async def _window(stage: Stage, entry: dict[str, Any]) -> int | None:
    """The tokens that prompt and answer may have, by any of the names that servers use."""
    found = [entry.get(name) for name in _LENGTHS]
    for value in found:
        if isinstance(value, int) and value > 0:
            return value
    props = await stage.ask("GET", "/props")  # where llama.cpp says it
    try:
        value = props.json["default_generation_settings"]["n_ctx"]
    except (Failed, KeyError, TypeError):
        return None
    return value if isinstance(value, int) and value > 0 else None


async def _look_for_apis(stage: Stage) -> None:
    """An API that is served complains of an empty request; one that is not does not know it."""
    for dialect in DIALECTS:
        exchange = await stage.post(dialect.path, {})
        if exchange.status in _ABSENT:
            stage.missing[dialect.api] = f"POST {dialect.path} is answered with {exchange.status}"
    if len(stage.missing) == len(DIALECTS):
        raise Unusable("the server has none of the three APIs: is the address right?")


async def _look_for_an_answer(stage: Stage) -> None:
    """One API must answer a plain question, or all checks would only say that none does."""
    refusals = []
    for dialect in DIALECTS:
        if dialect.api not in stage.missing:
            body = dialect.body(stage.model, [QUESTION], limit=16)
            exchange = await stage.post(dialect.path, body)
            if exchange.status == 200:
                return
            refusals.append(exchange)
    first = refusals[0]
    if all(exchange.status in _LOCKED for exchange in refusals):
        raise Unusable(_locked(stage, first))
    told = f"POST {first.sent.path} is answered with status {first.status}{_reason(first)}"
    raise Unusable(f"the model {stage.model} does not answer: {told}")


def _without_models(stage: Stage, listing: Exchange) -> str:
    if listing.status in _LOCKED:
        return _locked(stage, listing)
    status = f" (GET /v1/models is answered with status {listing.status})"
    shown = "" if listing.status == 200 else status
    return f"the server lists no models{shown}: name one with --model, or look at the address"


def _locked(stage: Stage, exchange: Exchange) -> str:
    wanted = "asks for a key" if stage.key is None else "does not take this key"
    return f"the server {wanted} (status {exchange.status}): --api-key"


def _reason(exchange: Exchange) -> str:
    try:
        return f", {said(exchange)}"
    except Failed:
        return ""
