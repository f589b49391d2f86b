"""Decode a request of the Messages API.

Lenient: a field is rejected, with its path, only if it has no valid meaning, or if ignoring it
would change the output. Undeclared fields are reported in `ignored` and stored in `echo`.
"""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from dovetail_model import (
    Block,
    InvalidRequest,
    OutputFormat,
    Request,
    Sampling,
    ServerTool,
    Thinking,
    ToolChoice,
    ToolSpec,
    Turn,
)
from dovetail_protocols.body_prefixes import HistoryKey
from dovetail_protocols.codec import Headers
from dovetail_protocols.decode_cache import DecodeCache
from dovetail_protocols.engine_fields import apply_engine_fields
from dovetail_protocols.fields import UnusedFields
from dovetail_protocols.hints import NvextOptions, read_nvext
from dovetail_protocols.identity import read_identity, read_session
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.messages import wire
from dovetail_protocols.messages.builtin_tools import decode_server_tool
from dovetail_protocols.messages.content import decode_arguments, decode_content, decode_tool
from dovetail_protocols.messages.context import apply_compaction, check_summarizable, decode_context
from dovetail_protocols.messages.fields import MESSAGES_FIELDS
from dovetail_protocols.messages.server_blocks import decode_server_turns
from dovetail_protocols.request_body import RequestBody, convert

_LEGACY_SESSION = re.compile(r"_session_([0-9A-Za-z-]+)$")
_CHOICES: dict[str, Literal["auto", "none", "required", "named"]] = {
    "auto": "auto",
    "any": "required",
    "tool": "named",
    "none": "none",
}


class MessagesTools(msgspec.Struct, frozen=True):
    """The tools that the client runs, the server tools, and the paths of fields without effect."""

    specs: tuple[ToolSpec, ...] = ()
    server: tuple[ServerTool, ...] = ()
    unused: tuple[str, ...] = ()


def decode(body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
    """Decode a request to create a message."""
    request = _decode(body, headers, cache)
    if not request.turns:
        raise InvalidRequest("messages: must contain at least one message", param="messages")
    if request.context.summarize is not None:
        check_summarizable(request.turns)
    return request


def decode_count(body: bytes, headers: Headers, cache: DecodeCache | None = None) -> Request:
    """Decode a request to count the tokens of a prompt. It may contain only tools."""
    request = _decode(body, headers, cache)
    context = msgspec.structs.replace(request.context, summarize=None)  # not counted by the API
    return msgspec.structs.replace(request, stream=False, context=context)


def _decode(body: bytes, headers: Headers, cache: DecodeCache | None) -> Request:
    history_key = HistoryKey("messages", "messages.message", read_session(headers))
    sent = RequestBody(body, cache, raw_fields=("system", "tools"), history=history_key)
    for name in ("model", "messages"):
        if sent.fields.get(name) is None:
            raise InvalidRequest(f"{name}: Field required", param=name)
    request = convert(sent.fields, wire.Request)
    try:
        return _request(request, sent, headers)
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error


def _request(body: wire.Request, sent: RequestBody, headers: Headers) -> Request:
    unused = MESSAGES_FIELDS.check(sent.fields)
    nvext = read_nvext(body.nvext, headers)
    system, tools = body.system or "", body.tools or ()
    toolbox = sent.get_or_decode("messages.tools", tools, lambda: _tools(sent, tools))
    context, keep, unknown_edits = decode_context(body)
    session, user = _session_and_user(body.metadata)
    sampling, output = apply_engine_fields(sent.fields, _sampling(body), _output(body))
    return Request(
        model=body.model,
        turns=_turns(body, sent),
        system=sent.get_or_decode("messages.system", system, lambda: _system(sent, system)),
        tools=toolbox.specs,
        tool_choice=_tool_choice(body.tool_choice, toolbox),
        sampling=sampling,
        thinking=_thinking(body, nvext, keep),
        output=output,
        identity=read_identity(headers, session=session, user=user),
        hints=nvext.hints,
        context=context,
        stream=bool(body.stream),
        ignored=(
            *unused,
            *(tool.field for tool in toolbox.server),
            *toolbox.unused,
            *unknown_edits,
            *_unused_tool_choice(body.tool_choice, toolbox),
        ),
        client=sent.client_fields("messages", UnusedFields(unused)),
        echo=MESSAGES_FIELDS.undeclared(sent.fields) or None,
        server_tools=_require_server_tool(body.tool_choice, toolbox),
        can_pause=True,
    )


def _turns(body: wire.Request, sent: RequestBody) -> tuple[Turn, ...]:
    decoded = sent.decode_history(
        body.messages,
        lambda at, raw: _message(sent.value(raw, f"messages[{at}]"), f"messages[{at}]"),
        indexed=False,
    )
    return apply_compaction(tuple(turn for turns in decoded for turn in turns))


def _message(value: object, path: str) -> tuple[Turn, ...]:
    """Decode a message: one turn, or several if the server ran tools within it."""
    message = convert(value, wire.Message, path)
    content = message.content
    if message.role == "assistant" and isinstance(content, list):
        turns = decode_server_turns(
            content, decode_arguments, lambda item: decode_content([item], f"{path}.content")
        )
        if turns is not None:
            return turns
    return (Turn(message.role, decode_content(content, f"{path}.content")),)


def _system(sent: RequestBody, given: str | list[msgspec.Raw]) -> tuple[Block, ...]:
    return decode_content(
        given if isinstance(given, str) else sent.values(given, "system"), "system"
    )


def _sampling(body: wire.Request) -> Sampling:
    return Sampling(
        max_tokens=_integer(body.max_tokens),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=_integer(body.top_k),
        stop=tuple(body.stop_sequences or ()),
    )


def _integer(value: float | None) -> int | None:
    return None if value is None else int(value)


def _tools(sent: RequestBody, given: Iterable[msgspec.Raw]) -> MessagesTools:
    specs: list[ToolSpec] = []
    server: list[ServerTool] = []
    unused: dict[str, None] = {}
    for at, raw in enumerate(given):
        path = f"tools[{at}]"
        value = sent.value(raw, path)
        spec = decode_tool(value, path)
        if spec is None:
            server.append(decode_server_tool(value, path, len(specs)))
            continue
        if spec.strict:
            check_schema(spec.parameters, f"{path}.input_schema")
        unused |= dict.fromkeys(MESSAGES_FIELDS.check_item("tools", value))
        specs.append(spec)
    return MessagesTools(tuple(specs), tuple(server), tuple(unused))


def _tool_choice(choice: wire.ToolChoice | None, toolbox: MessagesTools) -> ToolChoice:
    """Decode the tool choice. Only client tools are required here.

    Claude Code's side request for a web search requires a server tool.
    """
    if choice is None:
        return ToolChoice()
    tools = toolbox.specs
    mode, parallel = _CHOICES[choice.type], not choice.disable_parallel_tool_use
    known = any(tool.name == choice.name for tool in tools)
    server = not known and any(tool.name == choice.name for tool in toolbox.server)
    if (mode == "required" and not tools) or (mode == "named" and (server or not tools)):
        mode = "auto"
    if mode != "named":
        return ToolChoice(mode, parallel=parallel)
    if not known:
        message = f"tool_choice.name: there is no tool named {choice.name!r}"
        raise InvalidRequest(message, param="tool_choice.name")
    # A named tool is called once, unless the client requests parallel calls.
    return ToolChoice(mode, choice.name, choice.disable_parallel_tool_use is False)


def _unused_tool_choice(choice: wire.ToolChoice | None, toolbox: MessagesTools) -> tuple[str, ...]:
    """Report a choice that requires a call in a request without any tool."""
    has_tools = bool(toolbox.specs or toolbox.server)
    if choice is None or has_tools or choice.type not in ("tool", "any"):
        return ()
    return ("tool_choice",)


def _require_server_tool(
    choice: wire.ToolChoice | None, toolbox: MessagesTools
) -> tuple[ServerTool, ...]:
    """Return the server tools; the one that the tool choice names, or the only tool, is required"""
    if choice is None or choice.type not in ("tool", "any"):
        return toolbox.server
    only = not toolbox.specs and len(toolbox.server) == 1
    return tuple(
        msgspec.structs.replace(tool, required=True)
        if tool.name == choice.name or (choice.type == "any" and only)
        else tool
        for tool in toolbox.server
    )


def _thinking(body: wire.Request, nvext: NvextOptions, keep: Literal["all"] | None) -> Thinking:
    """Decode the thinking controls.

    An absent control must stay absent: Claude Code's sub-agents omit `thinking` and still replay
    reasoning, which the template must render as before.
    """
    config, output, budget = body.thinking, body.output_config, nvext.max_thinking_tokens
    if config is not None and config.budget_tokens is not None:
        requested = int(config.budget_tokens)
        budget = requested if budget is None else min(requested, budget)
    return Thinking(
        enabled=None if config is None else config.type != "disabled",
        effort=None if output is None else output.effort,
        budget=budget,
        keep=keep or "template",
        retention=nvext.reasoning_retention,
    )


def _output(body: wire.Request) -> OutputFormat:
    format = body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        format = body.output_config.format
    if format is None or format.type == "text":
        return OutputFormat()
    where = "output_config.format.schema"
    if format.schema is None:
        raise InvalidRequest(f"{where}: Field required", param=where)
    check_schema(format.schema, where)
    return OutputFormat("json_schema", format.schema, format.name, strict=True)


def _session_and_user(metadata: wire.Metadata | None) -> tuple[str | None, str | None]:
    """Return session and user from `metadata.user_id`.

    Claude Code writes JSON into it; older versions append the session at the end.
    """
    user_id = metadata.user_id if metadata is not None else None
    if not user_id:
        return None, None
    try:
        value = msgspec.json.decode(user_id)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    session = value.get("session_id") if isinstance(value, dict) else None
    if isinstance(session, str) and session:
        return session, None
    legacy = _LEGACY_SESSION.search(user_id)
    return (legacy[1], None) if legacy else (None, user_id)
