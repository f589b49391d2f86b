"""The fields of a request that its response repeats, and those that the application needs."""

from typing import Any

import msgspec

from dovetail_model import Request
from dovetail_protocols.responses import wire

_NONE = msgspec.Raw(b"[]")


class ResponsesEcho(msgspec.Struct, frozen=True):
    """Stored in `Request.echo`.

    `fields` is the JSON object whose members every response object repeats. It is built once,
    since a harness sends tens of kilobytes of tools. The other fields are for the response store:
    `previous_response_id` names the response that this request continues, `store` requests that
    this one is stored, `background` that it is finished even if the client disconnects.
    `user_messages` are the items that stay unchanged if the conversation is compacted.
    `compacts` states that the response must be a single compaction item.
    """

    fields: bytes
    store: bool = True
    previous_response_id: str | None = None
    compacts: bool = False
    background: bool = False
    user_messages: tuple[msgspec.Raw, ...] = ()


def build_echo(
    body: wire.Body, sent: dict[str, Any], *, tools: msgspec.Raw = _NONE, compacts: bool = False
) -> ResponsesEcho:
    """Build the echo of a body; `sent` has the original values of fields repeated verbatim."""
    return ResponsesEcho(
        fields=msgspec.json.encode(_fields(body, sent, tools)),
        store=body.store is not False,
        previous_response_id=body.previous_response_id,
        compacts=compacts,
        background=body.background is True,
    )


def echo_of(request: Request) -> ResponsesEcho:
    """Return the echo of a request, or a default one if another codec decoded it."""
    if isinstance(request.echo, ResponsesEcho):
        return request.echo
    return build_echo(wire.Body(model=request.model), {})


def _fields(body: wire.Body, sent: dict[str, Any], tools: msgspec.Raw) -> dict[str, Any]:
    """Return every field that the API repeats, with its default if the client did not send it.

    Unset sampling parameters are null: the model's defaults are not known here.
    """
    return {
        "model": body.model,
        "background": body.background is True,
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
        "service_tier": body.service_tier,
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": _text(sent.get("text") or {}),
        "tool_choice": body.tool_choice or "auto",
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _text(sent: dict[str, Any]) -> dict[str, Any]:
    return sent | {"format": sent.get("format") or {"type": "text"}}
