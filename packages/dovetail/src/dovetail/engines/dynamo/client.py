"""A client of the completions API of Dynamo's frontend.

It differs from vLLM's in its requests: unknown fields are rejected with 400, hints are in `nvext`
and in headers, and constraints have separate fields.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.engines.completions.client import COMPLETIONS_PATH, CompletionsClient
from dovetail.engines.completions.frames import CompletionFrameReader
from dovetail.engines.engine import Constraint, ConstraintSyntax, EngineRequest
from dovetail.engines.sampling import explicit_sampling_fields, optional_sampling_fields
from dovetail.engines.token_ids import PromptEncoder
from dovetail.net.http_client import ClientRequest
from dovetail_model import DovetailError, EngineUnavailable, Sampling, Unsupported

SESSION_HEADER = "x-dynamo-session-id"
PARENT_HEADER = "x-dynamo-parent-session-id"
FINAL_HEADER = "x-dynamo-session-final"
#: The field for each constraint syntax. Structural tags have none.
CONSTRAINT_FIELDS: Mapping[ConstraintSyntax, str] = {
    "json_schema": "guided_json",
    "ebnf": "guided_grammar",
    "gbnf": "guided_grammar",
    "lark": "guided_grammar",
}
EXTRA_FIELDS = ("completion_token_ids", "stop_reason")
#: The frontend parses hints as 32-bit integers and rejects larger ones.
MAX_HINT, MIN_PRIORITY = 2**31 - 1, -(2**31)
MAX_SESSION_CHARS = 256

_json = msgspec.json.Encoder()


class WorkerUnavailable(EngineUnavailable):
    """The frontend could not start a request: the worker that it selected is gone."""


class DynamoClient(CompletionsClient):
    """Requests completions of one model of a frontend."""

    __slots__ = ()

    def _build_request(self, request: EngineRequest, with_priority: bool) -> ClientRequest:
        body = encode_request(request, self._prompt_encoder, self._model)
        headers = session_headers(request)
        return ClientRequest("POST", COMPLETIONS_PATH, body, headers, self._timeouts)

    def _create_reader(self, request: EngineRequest) -> CompletionFrameReader:
        return DynamoFrameReader(request, self._server_name, self._tokenizer)

    def _status_error(self, status: int, content: bytes) -> DovetailError:
        error = super()._status_error(status, content)
        return WorkerUnavailable(error.message) if isinstance(error, EngineUnavailable) else error


class DynamoFrameReader(CompletionFrameReader):
    """Converts frames to deltas. Dynamo may have migrated the request to another worker."""

    __slots__ = ()

    def _is_prompt_length(self, count: int) -> bool:
        """Return whether the server can have read the prompt that was sent.

        After a migration, Dynamo counts the output before it as a part of the prompt, too.
        """
        sent = len(self._request.prompt)
        return sent <= count <= sent + self._count


def encode_request(request: EngineRequest, prompt_encoder: PromptEncoder, model: str) -> bytes:
    """Encode the request as JSON. Stop strings are not sent: the caller checks for them.

    `ignore_eos` also disables `stop_token_ids`, so the caller ends the output at the request's own.
    """
    fields: dict[str, Any] = {
        "model": model,
        "prompt": prompt_encoder.encode(
            request.prompt, request.session, ends_session=request.ends_session
        ),
        "max_tokens": max(request.max_tokens, 1),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling_fields(request.sampling),
        "nvext": _extension(request),
    }
    if request.stop_ids:
        fields["stop_token_ids"] = sorted(request.stop_ids)
    if request.constraint is not None:
        fields |= _constraint_fields(request.constraint)
    return _json.encode(fields)


def session_headers(request: EngineRequest) -> dict[str, str]:
    """Return the session, its parent, and whether it ends, which Dynamo reads from headers."""
    headers: dict[str, str] = {}
    if request.session:
        headers[SESSION_HEADER] = _header_value(request.session)
        if request.ends_session:
            headers[FINAL_HEADER] = "true"
    if request.parent_session:
        headers[PARENT_HEADER] = _header_value(request.parent_session)
    return headers


def _sampling_fields(sampling: Sampling) -> dict[str, Any]:
    fields = explicit_sampling_fields(sampling, "seed")
    fields |= optional_sampling_fields(sampling, "min_tokens")
    if sampling.logprobs is not None:
        fields["logprobs"] = sampling.logprobs
        fields["return_tokens_as_token_ids"] = True  # several tokens can have the same text
    return fields


def _extension(request: EngineRequest) -> dict[str, Any]:
    """Return `nvext`. As here, a higher priority runs first."""
    hints: dict[str, int] = {}
    if request.priority:
        hints["priority"] = max(MIN_PRIORITY, min(request.priority, MAX_HINT))
    if request.strict_priority > 0:
        hints["strict_priority"] = min(request.strict_priority, MAX_HINT)
    if request.expected_tokens is not None and request.expected_tokens > 0:
        hints["osl"] = min(request.expected_tokens, MAX_HINT)
    extension: dict[str, Any] = {"extra_fields": EXTRA_FIELDS}
    if hints:
        extension["agent_hints"] = hints
    if request.cache_salt:
        extension["cache_salt"] = request.cache_salt
    return extension


def _constraint_fields(constraint: Constraint) -> dict[str, Any]:
    name = CONSTRAINT_FIELDS.get(constraint.syntax)
    if name is None:
        raise Unsupported(f"Dynamo does not support {constraint.syntax} constraints")
    is_json = constraint.syntax == "json_schema"
    return {name: msgspec.Raw(constraint.text.encode()) if is_json else constraint.text}


def _header_value(session: str) -> str:
    """Return the session as the value of a header; a hash of it if it cannot be one."""
    is_plain = session.isascii() and session.isprintable() and session == session.strip()
    if is_plain and len(session) <= MAX_SESSION_CHARS:
        return session
    return hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
