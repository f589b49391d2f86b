"""The model list of a server that implements the completions protocol."""

import msgspec

from dovetail.engines.completions.errors import error_from_status
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import EngineError, EngineUnavailable


class CompletionModelCard(msgspec.Struct, frozen=True):
    """One entry of the model list.

    `root`: the path or name from which the model was loaded.
    `parent`: the base model of a LoRA adapter; None for other models.
    `max_model_len`, `context_window`: the context length, in vLLM and in Dynamo.
    """

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    context_window: int | None = None
    owned_by: str | None = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[CompletionModelCard] = []


async def list_models(endpoint: Endpoint, program: str) -> list[CompletionModelCard]:
    """Return all models of the server, which is expected to be `program`.

    If the request fails, the error states what to check: the address, the API key or the server.
    """
    server_name = f"the server at {endpoint}"
    try:
        status, content = await fetch(
            endpoint, ClientRequest("GET", "/v1/models", timeouts=DISCOVERY_TIMEOUTS)
        )
    except EngineUnavailable as fault:
        raise EngineUnavailable(f"{fault.message}: is {program} running there?") from fault
    if status in (401, 403):
        raise EngineError(f"{server_name} rejected the API key ({status}): set --engine-api-key")
    if status == 404:
        raise EngineError(
            f"{server_name} has no /v1/models: it is not {program}, or the address is wrong"
        )
    if status != 200:
        raise error_from_status(server_name, status, content)
    try:
        cards = msgspec.json.decode(content, type=_ModelList).data
    except FRAME_ERRORS as fault:
        raise EngineError(f"{server_name} returned an invalid model list ({fault})") from fault
    if not cards:
        raise EngineUnavailable(f"{server_name} serves no model")
    return cards
