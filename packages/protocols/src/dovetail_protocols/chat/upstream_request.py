"""Build the body of `POST /v1/chat/completions` for an upstream server."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from dovetail_model import Request, Sampling, ToolSpec, Unsupported
from dovetail_protocols.chat.upstream_messages import ChatMessageBuilder, TurnWriter
from dovetail_protocols.upstream import (
    ToolNames,
    UpstreamDialect,
    UpstreamRequest,
    callable_tools,
    converted_tools,
    declared_tools,
    passed_tool_choice,
    replace_images,
    template_kwargs,
    tool_parameters,
)
from dovetail_protocols.upstream_fields import (
    UpstreamApi,
    check_upstream_fields,
    passed_fields,
    shared_fields,
    verbosity,
)

API: UpstreamApi = "chat"

_SHARED_FIELDS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def build_chat_request(
    request: Request,
    model: str,
    dialect: UpstreamDialect | None = None,
    write_turn: TurnWriter | None = None,
) -> UpstreamRequest:
    """Build a streaming request. `write_turn` renders the model's turns as text, including calls.

    Only fields set in the request are sent; the server's defaults apply to the rest.
    """
    dialect = dialect or UpstreamDialect()
    request, replaced = (request, ()) if dialect.images else replace_images(request)
    names = ToolNames(request.tools)
    builder = ChatMessageBuilder(names, dialect, write_turn)
    fields: dict[str, Any] = {"model": model, "messages": builder.build(request)}
    fields |= _tools(request, names, dialect)
    fields |= _sampling(request.sampling)
    fields |= _output(request)
    if request.thinking.effort is not None:
        fields["reasoning_effort"] = request.thinking.effort
    if switches := template_kwargs(request.thinking):
        fields["chat_template_kwargs"] = switches
    if request.client.api == "responses" and (level := verbosity(request.client)):
        fields["verbosity"] = level
    fields |= shared_fields(request, API)
    fields |= passed_fields(request.client, API)
    fields |= {"stream": True, "stream_options": {"include_usage": True}}
    ignored = check_upstream_fields(request, API)
    dropped = (*replaced, *builder.dropped, *converted_tools(request, dialect))
    return UpstreamRequest(fields, dropped, ignored)


def _tools(request: Request, names: ToolNames, dialect: UpstreamDialect) -> dict[str, Any]:
    """Encode tools and tool choice. Defaults are omitted."""
    passed_choice = passed_tool_choice(request, API, dialect)
    choice = request.tool_choice
    if passed_choice is not None:
        # The choice names the allowed tools; the others stay in the list.
        unrestricted = msgspec.structs.replace(choice, allowed=None)
        request = msgspec.structs.replace(request, tool_choice=unrestricted)
    tools = [*_offered_tools(request, dialect)]
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if passed_choice is not None:
        return fields | {"tool_choice": passed_choice}
    named = names.find_choice(choice) if choice.mode == "named" else None
    if named is not None:
        kind = "custom" if named.custom and dialect.custom_tools else "function"
        fields["tool_choice"] = {"type": kind, kind: {"name": named.model_name}}
    elif choice.mode != "auto":
        fields["tool_choice"] = "none" if choice.mode == "none" else "required"
    if named is not None or not choice.parallel:  # of a named tool, the default is one call
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _offered_tools(request: Request, dialect: UpstreamDialect) -> Iterator[Mapping[str, Any]]:
    """Yield the tools: as the client declared them if possible, in its order."""
    tools = {tool.key: tool for tool in callable_tools(request)}
    for declared in declared_tools(request.client, API):
        kind = declared.get("type") or "function"
        if kind not in ("function", "custom"):
            yield declared  # the server runs it
            continue
        inner = declared.get(kind)
        key = (None, inner.get("name")) if isinstance(inner, Mapping) else None
        if inner is not None and key in tools and (kind == "function" or dialect.custom_tools):
            base = {} if kind == "custom" else {"parameters": tool_parameters(tools[key])}
            del tools[key]
            yield {"type": kind, **declared, kind: base | inner}
    for tool in tools.values():
        yield _tool(tool, dialect)


def _tool(tool: ToolSpec, dialect: UpstreamDialect) -> dict[str, Any]:
    head = {"name": tool.model_name, "description": tool.description}
    if tool.custom and dialect.custom_tools:
        return {"type": "custom", "custom": head | _format(tool)}
    function = {**head, "parameters": tool_parameters(tool)}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _format(tool: ToolSpec) -> dict[str, Any]:
    if tool.grammar is None:
        return {}
    grammar = {"syntax": "lark", "definition": tool.grammar}
    return {"format": {"type": "grammar", "grammar": grammar}}


def _sampling(sampling: Sampling) -> dict[str, Any]:
    values = {name: getattr(sampling, name) for name in _SHARED_FIELDS}
    fields = {name: value for name, value in values.items() if value is not None}
    if sampling.logit_bias:
        fields["logit_bias"] = {str(id): bias for id, bias in sampling.logit_bias}
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if sampling.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": sampling.logprobs}
    return fields


def _output(request: Request) -> dict[str, Any]:
    """Return the output format. That of the client's own API is passed on instead."""
    output = request.output
    if request.client.api == API:
        return {}
    match output.kind:
        case "text":
            return {}
        case "json_object":
            return {"response_format": {"type": "json_object"}}
        case "json_schema":
            form = {"name": output.name or "answer", "schema": output.schema or {}}
            strict = {"strict": True} if output.strict else {}
            return {"response_format": {"type": "json_schema", "json_schema": form | strict}}
        case _:
            message = f"{output.field}: the upstream's API has no field for it"
            raise Unsupported(message, param=output.field)
