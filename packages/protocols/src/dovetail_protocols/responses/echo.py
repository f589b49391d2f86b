"""The fields of a request that its response repeats, and those that the application needs."""

from typing import Any

import msgspec

from dovetail_model import Request, Sampling
from dovetail_protocols.responses import wire
from dovetail_protocols.responses.raw_body import named_conversation

_NONE = msgspec.Raw(b"[]")
_SAMPLING_DEFAULTS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling parameters that a response object repeats, with the values that have no effect."""


SEARCH_SOURCES = "web_search_call.action.sources"
"""The value of `include` with which a search lists its results."""


class ResponsesEcho(msgspec.Struct, frozen=True):
    """Stored in `Request.echo`.

    `fields` is the JSON object whose members every response object repeats. It is built once,
    since a harness sends tens of kilobytes of tools. The other fields are for the response store:
    `previous_response_id` names the response that this request continues, `store` requests that
    this one is stored, `background` that it is finished even if the client disconnects.
    `user_messages` are the items that stay unchanged if the conversation is compacted.
    `compacts` states that the response must be a single compaction item.
    `sampling` has the sampling parameters that are in effect, as far as they are known.
    `tool_search` states that the client runs searches for tools.
    """

    fields: bytes
    store: bool = True
    previous_response_id: str | None = None
    compacts: bool = False
    background: bool = False
    user_messages: tuple[msgspec.Raw, ...] = ()
    tool_search: bool = False
    sampling: Sampling = Sampling()
    search_sources: bool = False

    def sampling_fields(self) -> dict[str, float]:
        """Return the sampling parameters as numbers: clients of Open Responses reject null."""
        given = ((name, getattr(self.sampling, name)) for name in _SAMPLING_DEFAULTS)
        return _SAMPLING_DEFAULTS | {name: value for name, value in given if value is not None}


def build_echo(
    body: wire.Body,
    sent: dict[str, Any],
    *,
    tools: msgspec.Raw = _NONE,
    compacts: bool = False,
    tool_search: bool = False,
) -> ResponsesEcho:
    """Build the echo of a body; `sent` has the original values of fields repeated verbatim."""
    return ResponsesEcho(
        fields=msgspec.json.encode(_fields(body, sent, tools)),
        store=body.store is not False,
        previous_response_id=body.previous_response_id,
        compacts=compacts,
        background=body.background is True,
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
        ),
        tool_search=tool_search,
        search_sources=SEARCH_SOURCES in (body.include or ()),
    )


def echo_of(request: Request) -> ResponsesEcho:
    """Return the echo of a request, or a default one if another codec decoded it."""
    if isinstance(request.echo, ResponsesEcho):
        return request.echo
    return build_echo(wire.Body(model=request.model), {})


def with_effective_sampling(request: Request, sampling: Sampling) -> Request:
    """Return the request with the sampling parameters that its response object repeats."""
    echo = msgspec.structs.replace(echo_of(request), sampling=sampling)
    return msgspec.structs.replace(request, echo=echo)


def _fields(body: wire.Body, sent: dict[str, Any], tools: msgspec.Raw) -> dict[str, Any]:
    """Return every field that the API repeats, with its default if the client did not send it.

    `service_tier` is the tier that was used, and there is only one.
    """
    return {
        "model": body.model,
        "background": body.background is True,
        **_conversation(body),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None} | (sent.get("reasoning") or {}),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "text": _text(sent.get("text") or {}),
        "tool_choice": body.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _conversation(body: wire.Body) -> dict[str, Any]:
    """Return the conversation of a response, which other responses do not have."""
    id = named_conversation(body.conversation)
    return {} if id is None else {"conversation": {"id": id}}


def _text(sent: dict[str, Any]) -> dict[str, Any]:
    format = sent.get("format") or {"type": "text"}
    if format.get("type") == "json_schema":
        format = {"description": None, **format, "strict": format.get("strict") is True}
    return sent | {"format": format}
