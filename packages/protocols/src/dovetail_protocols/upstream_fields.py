"""What an upstream server gets of each field of a request.

`passed` means that the upstream receives the field as the client sent it, so the upstream decides
about its effect. `mapped` means that the upstream receives it in another form, or that Dovetail
applies it. A server of the client's own API gets every field that Dovetail does not apply itself,
including those that no registry declares. Nothing is dropped silently: a field that cannot be
represented in the upstream's API is rejected or reported, as for any other engine.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from dovetail_model import ClientFields, Request, Unsupported
from dovetail_protocols.field_registries import FIELD_REGISTRIES
from dovetail_protocols.fields import Field, FieldRegistry

UpstreamApi = Literal["chat", "responses"]
UpstreamSupport = Literal["passed", "mapped", "rejected", "reported"]

#: Hints of `nvext` that neither Dovetail's queue nor an upstream uses.
_UNUSED_HINTS = (
    "nvext.agent_hints.osl",
    "nvext.agent_hints.speculative_prefill",
    "nvext.cache_salt",
    "nvext.annotations",
    "nvext.use_raw_prompt",
    "nvext.max_thinking_tokens",
    "nvext.reasoning_retention",
)
_NVEXT = (
    "nvext",
    "nvext.agent_hints",
    "nvext.agent_hints.priority",
    "nvext.agent_hints.strict_priority",
    "nvext.agent_hints.latency_sensitivity",
    "nvext.dispatch",
    "nvext.extra_fields",
)
#: Constraints and limits of engines for which OpenAI's APIs have no field.
_ENGINE_ONLY = (
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs.regex",
    "structured_outputs.choice",
    "structured_outputs.grammar",
    "grammar",
    "regex",
    "ebnf",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)
#: Fields of the client's API that Dovetail applies, or that depend on the names of tools.
_APPLIED: dict[UpstreamApi, tuple[str, ...]] = {
    "responses": (
        "model",
        "input",
        "instructions",
        "stream",
        "stream_options",
        "store",
        "previous_response_id",
        "background",
        "conversation",
        "client_metadata",
        "include",
        "tools",
        "tools[].tools",
        "tools[].execution",
        "tools[].function",
        "tools[].defer_loading",
        "tool_choice",
        "max_output_tokens",
        "seed",
        *_NVEXT,
    ),
    "chat": (
        "model",
        "messages",
        "stream",
        "stream_options",
        "stream_options.include_usage",
        "n",
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "tools",
        "tool_choice",
        "functions",
        "function_call",
        *_NVEXT,
    ),
}
_UNUSED_BY_OWN_API: dict[UpstreamApi, tuple[str, ...]] = {
    "responses": ("stream_options.include_obfuscation", *_UNUSED_HINTS),
    "chat": ("stream_options.include_obfuscation", "messages[].name", "audio", *_UNUSED_HINTS),
}
_BUDGETS = (
    "thinking.budget_tokens",
    "reasoning.max_tokens",
    "thinking_budget",
    "thinking_token_budget",
)
#: Fields that have another support with an upstream of another API than without an upstream.
_CONVERTED: dict[tuple[str, UpstreamApi], dict[str, UpstreamSupport]] = {
    ("messages", "responses"): {
        "service_tier": "mapped",
        "context_management.edits": "reported",
        "thinking.budget_tokens": "reported",
        "logit_bias": "rejected",
    },
    ("messages", "chat"): {
        "service_tier": "mapped",
        "context_management.edits": "reported",
        "thinking.budget_tokens": "reported",
    },
    ("responses", "chat"): {
        "prompt_cache_retention": "mapped",
        "service_tier": "mapped",
        "truncation": "reported",
        "text.verbosity": "mapped",
    },
    ("chat", "responses"): {
        "user": "mapped",
        "safety_identifier": "mapped",
        "prompt_cache_retention": "mapped",
        "metadata": "mapped",
        "service_tier": "mapped",
        "verbosity": "mapped",
        "reasoning.summary": "mapped",
        "logit_bias": "rejected",
        **dict.fromkeys(_BUDGETS, "reported"),
    },
}
#: Values that request what an upstream does anyway.
_NEUTRAL = {
    "context_management.edits": ([{"type": "clear_thinking_20251015", "keep": "all"}],),
    "truncation": ("disabled",),
}
#: Fields that Chat Completions and Responses share.
_SHARED_NAMES = (
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
#: Parts of fields that are ignored by other engines and passed to a server of the same API.
_PASSED_PARTS = ("include[", "tools[", "tool_choice")
_SERVICE_TIERS = {"standard_only": "default", "auto": "auto"}
"""Service tiers of the Messages API -> those of OpenAI's APIs."""


def upstream_support(api: str, field: Field, upstream: UpstreamApi) -> UpstreamSupport:
    """Return what an upstream with this API gets of a field of the client's API."""
    if api == upstream:
        if field.name in _UNUSED_BY_OWN_API[upstream]:
            return "reported"
        return "mapped" if field.name in _APPLIED[upstream] else "passed"
    found = _CONVERTED[api, upstream].get(field.name)
    if found is not None:
        return found
    if field.name in _ENGINE_ONLY or field.support == "rejected":
        return "rejected"
    return "reported" if field.name in _UNUSED_HINTS or field.support == "reported" else "mapped"


def check_upstream_fields(request: Request, upstream: UpstreamApi) -> tuple[str, ...]:
    """Return the paths of the fields that the upstream does not get.

    Raise `Unsupported` for a field that must have an effect.
    """
    client = request.client
    registry = _REGISTRIES.get((client.api, upstream))
    if registry is None:
        return request.ignored
    own = client.api == upstream
    found = [path for path in request.ignored if path not in client.unused]
    if own:
        found = [path for path in found if not path.startswith(_PASSED_PARTS)]
    unused = registry.inspect(client.fields)
    for field in unused.rejected:
        message = field.message.replace(
            "is not supported", "the upstream's API has no field for it"
        )
        raise Unsupported(message, param=field.path)
    return (*(path for path in unused.reported if not (own and _is_passed(path, upstream))), *found)


def passed_fields(client: ClientFields, upstream: UpstreamApi) -> dict[str, Any]:
    """Return the fields that an upstream of the client's API gets as they were sent."""
    if client.api != upstream:
        return {}
    return {
        name: value
        for name, value in client.fields.items()
        if value is not None and _is_passed(name, upstream)
    }


def shared_fields(request: Request, upstream: UpstreamApi) -> Iterator[tuple[str, Any]]:
    """Yield the fields of another API that the upstream's API has, too."""
    client, fields = request.client, request.client.fields
    if client.api == "messages":
        if request.identity.user is not None:
            yield "user", request.identity.user
        if tier := _SERVICE_TIERS.get(fields.get("service_tier") or ""):
            yield "service_tier", tier
        return
    if client.api == upstream or not client.api:
        return
    for name in _SHARED_NAMES:
        if fields.get(name) is not None:
            yield name, fields[name]
    if upstream == "responses" and fields.get("metadata"):
        yield "metadata", fields["metadata"]  # a chat's metadata requires that it is stored


def verbosity(client: ClientFields) -> str | None:
    """Return the verbosity that the client requests."""
    text = client.fields.get("text")
    found = text.get("verbosity") if isinstance(text, Mapping) else client.fields.get("verbosity")
    return found if isinstance(found, str) else None


def is_optional_field(api: str, name: str) -> bool:
    """Return whether a request may be sent without a field: a hint, or one that is not declared."""
    field = _DECLARED.get((api, name))
    return field is None or field.kind == "hint"


def _is_passed(path: str, upstream: UpstreamApi) -> bool:
    name = path.partition(".")[0]
    return name not in _APPLIED[upstream] and path not in _UNUSED_BY_OWN_API[upstream]


def _with_upstream_support(registry: FieldRegistry, upstream: UpstreamApi) -> FieldRegistry:
    """Return the registry with the support of an upstream."""
    fields = []
    for field in registry.fields:
        support = upstream_support(registry.api, field, upstream)
        fields.append(
            msgspec.structs.replace(
                field,
                support="honoured" if support in ("passed", "mapped") else support,
                neutral=(*field.neutral, *_NEUTRAL.get(field.name, ())),
            )
        )
    return FieldRegistry(registry.api, fields)


_REGISTRIES = {
    (registry.api, upstream): _with_upstream_support(registry, upstream)
    for registry in FIELD_REGISTRIES
    for upstream in ("chat", "responses")
    if registry.api != "completions"
}
_DECLARED = {
    (registry.api, field.name): field for registry in FIELD_REGISTRIES for field in registry.fields
}
