"""Build the body of `POST /v1/responses` for an upstream server.

This API has one item per block, so the model's order is preserved: reasoning, its call, more
reasoning, its call, and then the results of the calls, tied to them by id.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dovetail_model import (
    Block,
    CitedTextBlock,
    HostedItemBlock,
    ImageBlock,
    OutputFormat,
    ReasoningBlock,
    Request,
    ServerTool,
    TextBlock,
    Thinking,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    Turn,
    Unsupported,
)
from dovetail_protocols.citations import passed_annotations
from dovetail_protocols.responses.tools import is_served_tool
from dovetail_protocols.upstream import (
    ToolNames,
    UpstreamDialect,
    UpstreamRequest,
    blocks_to_text,
    call_arguments,
    callable_tools,
    converted_tools,
    declared_tools,
    image_url,
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

API: UpstreamApi = "responses"

_SHARED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
Item = dict[str, Any]


def build_responses_request(
    request: Request, model: str, dialect: UpstreamDialect | None = None
) -> UpstreamRequest:
    """Build a streaming request that is not stored."""
    dialect = dialect or UpstreamDialect()
    request, replaced = (request, ()) if dialect.images else replace_images(request)
    names = ToolNames(request.tools)
    fields: dict[str, Any] = {"model": model}
    if system := blocks_to_text(request.system):
        fields["instructions"] = system
    fields["input"] = _InputItemBuilder(names, dialect).build(request.turns)
    fields |= _tools(request, names, dialect)
    fields |= _sampling(request)
    if text := _text(request):
        fields["text"] = text
    if reasoning := _reasoning(request.thinking):
        fields["reasoning"] = reasoning
    if request.thinking.template_kwargs:
        fields["chat_template_kwargs"] = template_kwargs(request.thinking)
    limits, unlimited = _hosted_fields(request.hosted_tools)
    fields |= limits
    fields |= shared_fields(request, API)
    fields |= passed_fields(request.client, API)
    if include := _include(request, dialect):
        fields["include"] = include
    ignored = (*check_upstream_fields(request, API), *unlimited)
    dropped = (*replaced, *converted_tools(request, dialect))
    return UpstreamRequest(fields | {"store": False, "stream": True}, dropped, ignored)


class _InputItemBuilder:
    """Builds input items in the order of the turns."""

    __slots__ = ("_custom", "_dialect", "_items", "_names", "_reasoning_count")

    def __init__(self, names: ToolNames, dialect: UpstreamDialect) -> None:
        self._names = names
        self._dialect = dialect
        self._items: list[Item] = []
        self._custom: set[str] = set()  # ids of calls that were sent as custom tool calls
        self._reasoning_count = 0

    def build(self, turns: Sequence[Turn]) -> list[Item]:
        for turn in turns:
            match turn.role:
                case "assistant":
                    for block in turn.blocks:
                        self._append_block(block)
                case "tool":
                    for block in turn.blocks:
                        if isinstance(block, ToolResultBlock):
                            self._items.append(self._result(block))
                case role:
                    # Servers that convert this to a chat often reject a later system message.
                    self._message("user" if role != "user" else role, turn.blocks)
        return self._items

    def _append_block(self, block: Block) -> None:
        match block:
            case ReasoningBlock():
                self._items.append(self._append_reasoning(block))
            case ToolCallBlock():
                self._items.append(self._call(block))
            case HostedItemBlock(item=item):
                self._items.append(dict(item))
            case TextBlock(text=""):
                pass
            case CitedTextBlock() if annotations := passed_annotations(block.citations):
                part = {"type": "output_text", "text": block.text, "annotations": annotations}
                self._items.append({"type": "message", "role": "assistant", "content": [part]})
            case _:
                self._message("assistant", [block])

    def _message(self, role: str, blocks: Sequence[Block]) -> None:
        content = self._content(blocks)
        if content:
            self._items.append({"type": "message", "role": role, "content": content})

    def _append_reasoning(self, block: ReasoningBlock) -> Item:
        """Append reasoning. The API requires an id; one from its index is stable."""
        self._reasoning_count += 1
        item: Item = {"type": "reasoning", "id": f"rs_{self._reasoning_count}", "summary": []}
        if block.text:
            item["content"] = [{"type": "reasoning_text", "text": block.text}]
        if self._dialect.seals and block.seal is not None:
            item["encrypted_content"] = block.seal
        return item

    def _call(self, call: ToolCallBlock) -> Item:
        head = {"call_id": call.id, "name": self._names.upstream_name(call)}
        if call.custom and self._dialect.custom_tools:
            self._custom.add(call.id)
            return {"type": "custom_tool_call", **head, "input": call.arguments}
        return {"type": "function_call", **head, "arguments": call_arguments(call)}

    def _result(self, result: ToolResultBlock) -> Item:
        kind = "custom_tool_call" if result.call_id in self._custom else "function_call"
        output = self._content(result.blocks)
        return {"type": f"{kind}_output", "call_id": result.call_id, "output": output}

    def _content(self, blocks: Sequence[Block]) -> str | list[Item]:
        """Encode content as text, or as parts if it contains images."""
        if not any(isinstance(b, ImageBlock) for b in blocks):
            return blocks_to_text(blocks)
        return [*map(_part, blocks)]


def _part(block: Block) -> Item:
    if isinstance(block, ImageBlock):
        return {"type": "input_image", "image_url": image_url(block), "detail": "auto"}
    return {"type": "input_text", "text": blocks_to_text([block])}


def _tools(request: Request, names: ToolNames, dialect: UpstreamDialect) -> dict[str, Any]:
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
        fields["tool_choice"] = {"type": kind, "name": named.model_name}
    elif choice.mode != "auto":
        fields["tool_choice"] = "none" if choice.mode == "none" else "required"
    if named is not None or not choice.parallel:  # of a named tool, the default is one call
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def _offered_tools(request: Request, dialect: UpstreamDialect) -> Iterator[Mapping[str, Any]]:
    """Yield the tools: as the client declared them if possible, in its order."""
    tools = {tool.key: tool for tool in callable_tools(request)}
    for declared in declared_tools(request.client, API):
        kind, key = declared.get("type"), (None, declared.get("name"))
        if kind not in ("function", "custom"):
            if not is_served_tool(declared):
                yield declared  # the server runs it
        elif key in tools and (kind == "function" or dialect.custom_tools):
            base = {} if kind == "custom" else {"parameters": tool_parameters(tools[key])}
            del tools[key]
            yield base | {name: declared[name] for name in declared if name != "defer_loading"}
    for tool in tools.values():
        yield _tool(tool, dialect)
    for hosted in request.hosted_tools:
        yield _hosted_tool(hosted)


def _hosted_tool(tool: ServerTool) -> Item:
    """Return a web search of another API. This API has no limit of searches per tool."""
    item: Item = {"type": "web_search"}
    if tool.allowed_domains:
        item["filters"] = {"allowed_domains": list(tool.allowed_domains)}
    return item | ({"user_location": tool.location} if tool.location else {})


def _hosted_fields(tools: Sequence[ServerTool]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that limit or require hosted tools, and the paths of ignored options."""
    limits = [tool.max_uses for tool in tools if tool.max_uses is not None]
    fields: dict[str, Any] = {"max_tool_calls": sum(limits)} if limits else {}
    if any(tool.required for tool in tools):
        fields["tool_choice"] = {"type": "web_search"}
    ignored = [f"{tool.field}.blocked_domains" for tool in tools if tool.blocked_domains]
    return fields, tuple(ignored)


def _tool(tool: ToolSpec, dialect: UpstreamDialect) -> Item:
    head = {"name": tool.model_name, "description": tool.description}
    if tool.custom and dialect.custom_tools:
        if tool.grammar is None:
            return {"type": "custom", **head}
        form = {"type": "grammar", "syntax": "lark", "definition": tool.grammar}
        return {"type": "custom", **head, "format": form}
    return {"type": "function", **head, "parameters": tool_parameters(tool), "strict": tool.strict}


def _sampling(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    if sampling.logit_bias and request.client.api != API:
        message = "logit_bias: the upstream's API has no field for it"
        raise Unsupported(message, param="logit_bias")
    values = {name: getattr(sampling, name) for name in _SHARED_FIELDS}
    values["max_output_tokens"] = sampling.max_tokens
    values["top_logprobs"] = sampling.logprobs
    values["stop"] = list(sampling.stop) or None
    return {name: value for name, value in values.items() if value is not None}


def _include(request: Request, dialect: UpstreamDialect) -> list[str]:
    wanted = {
        "reasoning.encrypted_content": dialect.seals,
        "message.output_text.logprobs": request.sampling.logprobs is not None,
        "web_search_call.action.sources": bool(request.hosted_tools),
    }
    sent = request.client.fields.get("include") if request.client.api == API else None
    given = sent if isinstance(sent, list) else []
    found = [name for name, requested in wanted.items() if requested]
    return [*found, *(name for name in given if name not in wanted)]


def _reasoning(thinking: Thinking) -> dict[str, str]:
    effort = "none" if thinking.enabled is False else thinking.effort
    fields = {"effort": effort, "summary": thinking.summary}
    return {name: value for name, value in fields.items() if value is not None}


def _text(request: Request) -> dict[str, Any]:
    """Return the options of the text. Those of the client's own API are passed on instead."""
    if request.client.api == API:
        return {}
    format, level = _format(request.output), verbosity(request.client)
    return ({"format": format} if format else {}) | ({"verbosity": level} if level else {})


def _format(output: OutputFormat) -> dict[str, Any]:
    match output.kind:
        case "text":
            return {}
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            form = {"name": output.name or "answer", "schema": output.schema or {}}
            return {"type": "json_schema", **form, "strict": output.strict}
        case _:
            message = f"{output.field}: the upstream's API has no field for it"
            raise Unsupported(message, param=output.field)
