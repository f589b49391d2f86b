"""Send requests that prefill a prompt before it is needed."""

import secrets
from array import array

from dovetail.engines.engine import EngineRequest
from dovetail.pipeline.registry import TokenModel
from dovetail.pipeline.session_keys import cache_salt, named_session_key
from dovetail_model import Request, Sampling

WARM_PRIORITY = -100  # of prefill requests that no client waits for


def warm_prefix(entry: TokenModel, request: Request) -> None:
    """Prefill the common prefix of all prompts that continue this request."""
    session = named_session_key(request.identity)

    async def create_request() -> EngineRequest | None:
        ids = await entry.preparer.shared_prompt_prefix(request)
        return warm_request(entry, request, ids, (secrets.token_urlsafe(12), session))

    entry.engine.warm(session, create_request)


def warm_request(
    entry: TokenModel,
    request: Request,
    ids: "array[int] | None",
    id_and_session: tuple[str, str | None],
) -> EngineRequest | None:
    """Build a request that only prefills, or None if the prompt exceeds the context window."""
    if not ids or len(ids) >= entry.context_length:
        return None
    name, session = id_and_session
    return EngineRequest(
        id=f"{name}-warm",
        prompt=ids,
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        stop_ids=entry.model.stop_ids,
        session=session,
        priority=WARM_PRIORITY,
        cache_salt=cache_salt(request),
        expected_tokens=1,
        adapter=entry.adapter,
    )
