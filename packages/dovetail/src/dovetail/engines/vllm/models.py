"""What a vLLM says about itself: `/v1/models` and `/version`."""

import msgspec

from dovetail.engines.completions.errors import error_from_status
from dovetail.engines.discovery import RemoteModel
from dovetail.net.http_client import ClientRequest, Endpoint, Timeouts, fetch
from dovetail_model import DovetailError, EngineError, EngineUnavailable

DISCOVERY_TIMEOUTS = Timeouts(connect=5.0, read=15.0)


class VllmModelCard(msgspec.Struct, frozen=True):
    """One name of the server. An adapter has a `parent`, and `root` is where it was loaded from."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[VllmModelCard] = []


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


async def discover(endpoint: Endpoint) -> RemoteModel:
    """The server's model under all its names. Adapters are models of their own."""
    cards = await list_models(endpoint)
    first = next((card for card in cards if card.parent is None), cards[0])
    return RemoteModel(
        name=first.id,
        names=tuple(card.id for card in cards if card.root == first.root),
        root=first.root,
        context_length=first.max_model_len,
        version=await _fetch_version(endpoint),
        adapters=tuple(card.id for card in cards if card.parent is not None),
    )


async def list_models(endpoint: Endpoint) -> list[VllmModelCard]:
    """All that the server serves. Raises an error that says what is wrong with the address."""
    who = f"the server at {endpoint}"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
        )
    except EngineUnavailable as fault:
        raise EngineUnavailable(f"{fault.message}: is vLLM running there?") from fault
    if status in (401, 403):
        raise EngineError(f"{who} refuses the key ({status}): pass its own as --engine-api-key")
    if status == 404:
        raise EngineError(f"{who} has no /v1/models: it is not vLLM, or the address is wrong")
    if status != 200:
        raise error_from_status(who, status, content)
    try:
        cards = msgspec.json.decode(content, type=_ModelList).data
    except msgspec.DecodeError as fault:
        raise EngineError(f"{who} does not list models as vLLM does ({fault})") from fault
    if not cards:
        raise EngineUnavailable(f"{who} serves no model")
    return cards


async def _fetch_version(endpoint: Endpoint) -> str:
    """The server's version; nothing where it does not tell."""
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/version", timeouts=DISCOVERY_TIMEOUTS)
        )
        return msgspec.json.decode(content, type=_Version).version if status == 200 else ""
    except (DovetailError, msgspec.DecodeError):
        return ""
