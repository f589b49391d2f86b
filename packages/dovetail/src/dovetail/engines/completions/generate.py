"""vLLM's token API: token ids in, token ids out, without a tokenizer in the server's frontend.

A server that was started with `--enable-scale-out` or `--tokens-only` offers it. Its frames are
those of `/v1/completions` with only the ids, so it costs the server less.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.completions.constraints import constraint_field
from dovetail.engines.engine import EngineRequest
from dovetail.engines.sampling import explicit_sampling_fields, optional_sampling_fields
from dovetail.engines.timeouts import DISCOVERY_TIMEOUTS
from dovetail.engines.token_ids import PromptEncoder
from dovetail.net.http_client import ClientRequest, Endpoint, fetch
from dovetail_model import DovetailError

GENERATE_PATH = "/inference/v1/generate"
SESSION_HEADER = "x-session-id"
#: The statuses of a server that has the endpoint and rejects a request without a prompt.
_REJECTED_STATUSES = (400, 422)

_json = msgspec.json.Encoder()


async def offers_generate(endpoint: Endpoint) -> bool:
    """Return whether a server has the token API. A request without a prompt generates nothing."""
    client_request = ClientRequest("POST", GENERATE_PATH, b"{}", timeouts=DISCOVERY_TIMEOUTS)
    try:
        status, _ = await fetch(endpoint, client_request)
    except DovetailError:
        return False
    return status in _REJECTED_STATUSES


def encode_generate_request(
    request: EngineRequest,
    prompt_encoder: PromptEncoder,
    model: str,
    *,
    with_priority: bool,
    extra_fields: Mapping[str, Any],
) -> bytes:
    """Encode the request as JSON. `extra_fields` are sampling parameters of vLLM."""
    sampling = request.sampling
    params: dict[str, Any] = {
        "max_tokens": max(request.max_tokens, 1),
        "detokenize": False,
        **explicit_sampling_fields(sampling, "seed"),
        **optional_sampling_fields(sampling, "min_tokens"),
        **extra_fields,
    }
    if sampling.logprobs is not None:
        params["logprobs"] = sampling.logprobs
    if request.stop_ids:
        params["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        params["structured_outputs"] = constraint_field(request.constraint)
    fields: dict[str, Any] = {
        "model": model,
        "request_id": request.id,
        "token_ids": prompt_encoder.encode(
            request.prompt, request.session, ends_session=request.ends_session
        ),
        "sampling_params": params,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.priority and with_priority:
        fields["priority"] = -request.priority
    if request.cache_salt:
        fields["cache_salt"] = request.cache_salt
    return _json.encode(fields)


def session_headers(request: EngineRequest) -> dict[str, str]:
    """Return the session, which this API reads from a header."""
    session = request.session
    printable = session is not None and session.isascii() and session.isprintable()
    return {SESSION_HEADER: session} if session and printable else {}
