"""Checks of the model list, and of tokenization."""

from urllib.parse import quote

from dovetail_verify.check import NotApplicable, check, pluralize, require
from dovetail_verify.dialects import Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import ANTHROPIC_HEADERS, TargetServer

_ROUND_TRIP_TEXT = "Größe, naïve café — 你好, नमस्ते 👩‍👩‍👧\n\tdef f(x): return x  # done"
_NOT_SERVED_STATUSES = (404, 405, 501)


@check(
    "models.openai",
    "AG-13",
    title="GET /v1/models lists the models in OpenAI's format",
    why="Agents with a model selection show an empty list.",
)
async def openai_list(target: TargetServer) -> str:
    exchange = (await target.request("GET", "/v1/models")).require_ok()
    require(exchange.json.get("object") == "list", 'the list has no "object": "list"')
    for entry in exchange.json["data"]:
        require(entry.get("object") == "model", 'an entry has no "object": "model"')
    ids = [entry["id"] for entry in exchange.json["data"]]
    require(target.model in ids, f"{target.model!r} is not in the list: {ids}")
    return pluralize(len(ids), "model")


@check(
    "models.anthropic",
    "CC-20",
    title="the list has Anthropic's format for clients that send anthropic-version",
    why="Claude Code's model discovery finds no models.",
)
async def anthropic_list(target: TargetServer) -> str:
    exchange = (
        await target.request("GET", "/v1/models?limit=1000", headers=_anthropic_headers(target))
    ).require_ok()
    for entry in exchange.json["data"]:
        require(entry.get("type") == "model", 'an entry has no "type": "model"')
        require(isinstance(entry.get("display_name"), str), "an entry has no display_name")
    require("has_more" in exchange.json, "the list has no has_more")
    return pluralize(len(exchange.json["data"]), "model")


@check(
    "models.one",
    "CC-21",
    title="GET /v1/models/{id} works for ids with literal and with escaped slashes",
    why="Versions of Claude Code that look up their model at startup fail.",
)
async def single_model(target: TargetServer) -> str:
    plain, escaped = quote(target.model, safe="/"), quote(target.model, safe="")
    exchanges = [await target.request("GET", f"/v1/models/{name}") for name in (escaped, plain)]
    if all(exchange.status in _NOT_SERVED_STATUSES for exchange in exchanges):
        raise NotApplicable("API not served: /v1/models/{id}")
    for exchange in exchanges:
        path, status = exchange.request.path, exchange.status
        require(
            status == 200,
            f"{path}: returned status {status}",
            sent=f"GET {path}",
            received=exchange.summary,
        )
        require(exchange.json.get("id") == target.model, f"the id is {exchange.json.get('id')!r}")
    return target.model


@check(
    "models.unknown",
    "WB-2",
    title="an unknown model returns 404 with an error body",
    why="A typo looks like an existing model.",
)
async def unknown_model(target: TargetServer) -> str:
    exchange = await target.request("GET", "/v1/models/no-such-org/no-such-model")
    if exchange.status == 200:
        return "served as an alias"
    require(exchange.status == 404, f"returned status {exchange.status}")
    require(isinstance(exchange.json.get("error"), dict), "the body has no `error` object")
    return "404"


@check(
    "models.codex",
    "CX-21",
    title="the list has `models` in addition to `data` if Codex sends client_version",
    why="Codex uses fallback metadata: short tool outputs, no apply_patch.",
)
async def codex_catalog(target: TargetServer) -> str:
    exchange = (await target.request("GET", "/v1/models?client_version=0.166.0")).require_ok()
    require(isinstance(exchange.json.get("data"), list), "the list has no `data`")
    found = exchange.json.get("models")
    require(isinstance(found, list) and found, "the list has no `models`")
    slugs = [entry.get("slug") for entry in found]
    require(target.model in slugs, f"{target.model!r} is not in {slugs}")
    return pluralize(len(slugs), "model")


@check(
    "tokens.round_trip",
    "TK-8",
    title="/tokenize and /detokenize are inverses",
    why="Tools that split text by tokens damage it.",
)
async def round_trip(target: TargetServer) -> str:
    body = {
        "model": target.model,
        "prompt": _ROUND_TRIP_TEXT,
        "content": _ROUND_TRIP_TEXT,
        "add_special_tokens": False,
    }
    exchange = await _post_first_served(target, "tokenize", body)
    tokens = exchange.json.get("tokens")
    require(isinstance(tokens, list) and tokens, "the response has no tokens")
    back = await _post_first_served(target, "detokenize", {"model": target.model, "tokens": tokens})
    text = back.json.get("prompt", back.json.get("content"))
    require(text == _ROUND_TRIP_TEXT, f"the text after the round trip is {text!r}")
    return f"{len(tokens)} tokens"


async def _post_first_served(target: TargetServer, name: str, body: Json) -> HttpExchange:
    for path in (f"/{name}", f"/v1/{name}"):
        exchange = await target.post(path, body)
        if exchange.status not in _NOT_SERVED_STATUSES:
            return exchange.require_ok()
    raise NotApplicable(f"API not served: /{name}")


def _anthropic_headers(target: TargetServer) -> dict[str, str]:
    return {**ANTHROPIC_HEADERS, **({"x-api-key": target.api_key} if target.api_key else {})}


CHECKS = (openai_list, anthropic_list, single_model, unknown_model, codex_catalog, round_trip)
