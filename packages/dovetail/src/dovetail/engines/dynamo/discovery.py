"""Discover the models and workers of Dynamo's frontend.

The frontend reports itself as healthy even if it has no worker left. Only its model list shows
whether it can serve a model: an entry disappears with the last worker of its model.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from dovetail.engines.completions.model_list import CompletionModelCard, list_models
from dovetail.engines.engine import RemoteModel
from dovetail.engines.registry import EngineSetupError
from dovetail.engines.timeouts import HEALTH_TIMEOUTS
from dovetail.engines.token_ids import FRAME_ERRORS
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError

PROGRAM = "Dynamo"
_OWNER = "nvidia"  # in the model list of every frontend
#: Servers that name themselves in their model list, with the engine that uses them.
_OTHER_OWNERS: Mapping[str, tuple[str, str]] = {
    "vllm": ("vLLM", "vllm"),
    "sglang": ("SGLang", "sglang"),
}
#: The endpoint of a worker that generates tokens. Workers also have endpoints for their KV index.
_GENERATE_ENDPOINT = "generate"


class DynamoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the engine (`--engine-option NAME=VALUE`).

    `silence`: the read timeout in seconds. It must be longer than the longest prefill and the
    longest time in the router's queue, during which the frontend sends no data.
    `probe`: whether to probe at startup, with requests of a few tokens, which constraints the
    workers enforce and whether they return logprobs. Without the probe, they are assumed to.
    """

    silence: float = 600.0
    probe: bool = True


class _Instance(msgspec.Struct, frozen=True):
    component: str = ""
    endpoint: str = ""


class FrontendHealth(msgspec.Struct, frozen=True):
    """The response of `/health`. The instances are all endpoints of all workers."""

    status: str
    instances: list[_Instance]

    def count_workers(self) -> dict[str, int]:
        """Return the number of workers by component, such as `backend` and `prefill`."""
        generating = [one for one in self.instances if one.endpoint == _GENERATE_ENDPOINT]
        return dict(Counter(one.component for one in generating))


async def discover(endpoint: Endpoint) -> RemoteModel:
    """Return the frontend's first model. Its other models can be selected by their names.

    Raise `EngineSetupError` if the server is not Dynamo's frontend.
    """
    cards = await list_models(endpoint, PROGRAM)
    if not await is_dynamo(endpoint, cards):
        raise EngineSetupError(_other_server_message(endpoint, cards))
    first, *others = cards
    return RemoteModel(
        name=first.id,
        names=(first.id,),
        context_length=first.context_window if not others else None,
        adapters=tuple(card.id for card in others),
    )


async def is_dynamo(endpoint: Endpoint, cards: Sequence[CompletionModelCard]) -> bool:
    """Return whether the server with these models is Dynamo's frontend."""
    if not any(card.owned_by == _OWNER for card in cards):
        return False
    try:
        return await fetch_health(endpoint) is not None
    except DovetailError:
        return False


async def fetch_health(endpoint: Endpoint) -> FrontendHealth | None:
    """Return the frontend's own health report; None if the response is not one of Dynamo."""
    client_request = ClientRequest("GET", "/health", timeouts=HEALTH_TIMEOUTS)
    _, content = await fetch(endpoint, client_request)
    try:
        return msgspec.json.decode(content, type=FrontendHealth)
    except FRAME_ERRORS:
        return None


def _other_server_message(endpoint: Endpoint, cards: Sequence[CompletionModelCard]) -> str:
    for card in cards:
        if (known := _OTHER_OWNERS.get(card.owned_by or "")) is not None:
            name, engine = known
            return f"the server at {endpoint} is {name}: use --engine {engine}"
    return f"the server at {endpoint} is not Dynamo's frontend: use --engine openai"
