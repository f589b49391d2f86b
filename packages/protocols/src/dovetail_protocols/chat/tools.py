"""Decode tools and the tool choice, in the current and the legacy form."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dovetail_model import InvalidRequest, ServerTool, ToolChoice, ToolSpec
from dovetail_protocols.chat.fields import CHAT_FIELDS
from dovetail_protocols.chat.wire import ChatRequest, Custom, Function
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.request_body import RequestBody, convert
from dovetail_protocols.web_tools import decode_web_search, is_web_search

Tools = tuple[ToolSpec, ...]


class ChatTools(msgspec.Struct, frozen=True):
    """The tools of the model, the tool choice, and the paths of unsupported tools.

    `declared`: all tools as they were sent, with their paths.
    `server`: the tools that a server runs.
    """

    tools: Tools = ()
    choice: ToolChoice = ToolChoice()
    ignored: tuple[str, ...] = ()
    declared: tuple[tuple[str, Any], ...] = ()
    server: tuple[ServerTool, ...] = ()


def decode_tools(wire: ChatRequest, sent: RequestBody) -> ChatTools:
    """Decode tools and tool choice. A list of allowed tools does not change the offered tools."""
    given = wire.tools or ()
    tools, ignored, declared = sent.get_or_decode("chat.tools", given, lambda: _tools(sent, given))
    path = "tool_choice"
    tool_choice = wire.tool_choice
    if wire.functions and not wire.tools:
        tools = tuple(
            _function(function, f"functions[{at}]") for at, function in enumerate(wire.functions)
        )
    if tool_choice is None and wire.function_call is not None:
        path, tool_choice = "function_call", wire.function_call
    allowed: frozenset[str] | None = None
    if isinstance(tool_choice, dict) and tool_choice.get("type") == "allowed_tools":
        tool_choice, allowed, unknown = _allowed(tool_choice, tools)
        ignored = (*ignored, *unknown)
    elif isinstance(tool_choice, dict) and tool_choice.get("type") in (
        "auto",
        "none",
        "required",
        "any",
    ):
        tool_choice = str(tool_choice["type"])
    choice = _choice(tool_choice, tools, path, wire.parallel_tool_calls)
    if allowed is not None:
        choice = msgspec.structs.replace(choice, allowed=allowed)
    return ChatTools(tools, choice, ignored, declared, _server_tools(declared))


def _server_tools(declared: Iterable[tuple[str, Any]]) -> tuple[ServerTool, ...]:
    """Return the tools of other types: searches as in Responses, and those that nothing can run."""
    found: list[ServerTool] = []
    position = 0
    for path, tool in declared:
        kind = tool.get("type") or "function"
        if kind in ("function", "custom"):
            position += 1
        elif is_web_search(kind):
            found += decode_web_search(tool, path, kind, position)
        elif isinstance(kind, str):
            found.append(ServerTool("other", kind, kind, path, position))
    return tuple(found)


def _tools(
    sent: RequestBody, given: Iterable[msgspec.Raw]
) -> tuple[Tools, tuple[str, ...], tuple[tuple[str, Any], ...]]:
    """Return the supported tools, the paths of unsupported ones and of unused fields, and all."""
    found: list[ToolSpec] = []
    declared: list[tuple[str, Any]] = []
    ignored: dict[str, None] = {}
    for at, raw in enumerate(given):
        path = f"tools[{at}]"
        tool = convert(sent.value(raw, path), dict[str, Any], path)
        declared.append((path, tool))
        match tool.get("type") or "function":
            case "function":
                found.append(_function(*_inner(tool, "function", path)))
            case "custom":
                found.append(_custom(*_inner(tool, "custom", path)))
            case _:
                ignored[path] = None
                continue
        if "function" in tool or "custom" in tool:
            ignored |= dict.fromkeys(CHAT_FIELDS.check_item("tools", tool))
    return tuple(found), tuple(ignored), tuple(declared)


def _inner(tool: Mapping[str, Any], key: str, path: str) -> tuple[object, str]:
    """Return the definition of a tool; Responses clients omit the nested object."""
    return (tool[key], f"{path}.{key}") if key in tool else (tool, path)


def _function(value: object, path: str) -> ToolSpec:
    function = convert(value, Function, path)
    if function.strict:
        check_schema(function.parameters or {}, f"{path}.parameters")
    return ToolSpec(
        name=function.name,
        description=function.description or "",
        parameters=function.parameters or {},
        strict=bool(function.strict),
    )


def _custom(value: object, path: str) -> ToolSpec:
    custom = convert(value, Custom, path)
    return ToolSpec(
        name=custom.name,
        description=custom.description or "",
        custom=True,
        grammar=_grammar(custom.format or {}),
    )


def _grammar(format: Mapping[str, Any]) -> str | None:
    """Return the grammar of a custom tool's input in Lark; a regular expression is one rule."""
    inner = format.get("grammar", format)
    fields: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
    definition = fields.get("definition")
    if not isinstance(definition, str) or not definition:
        return None
    if fields.get("syntax") == "regex":
        return "start: /" + definition.replace("/", r"\/") + "/"
    return definition


def _allowed(
    tool_choice: dict[str, Any], tools: Tools
) -> tuple[str, frozenset[str], tuple[str, ...]]:
    """Return the mode, the names of the allowed tools, and the paths of those that do not exist."""
    inner = tool_choice.get("allowed_tools", tool_choice)
    fields: dict[str, Any] = inner if isinstance(inner, dict) else {}
    listed = fields.get("tools")
    references = listed if isinstance(listed, list) else []
    names = [_name(tool) if isinstance(tool, dict) else "" for tool in references]
    mode = "required" if fields.get("mode") == "required" else "auto"
    known = frozenset(tool.name for tool in tools)
    path = "tool_choice.allowed_tools" if inner is not tool_choice else "tool_choice"
    unknown = (f"{path}.tools[{at}]" for at, name in enumerate(names) if name not in known)
    return mode, known.intersection(names), tuple(unknown)


def _choice(
    tool_choice: str | dict[str, Any] | None, tools: Tools, path: str, requested: bool | None
) -> ToolChoice:
    """Decode the tool choice; `requested` is `parallel_tool_calls`."""
    parallel = requested is not False
    match tool_choice:
        case None | "auto":
            return ToolChoice(parallel=parallel)
        case "none":
            return ToolChoice("none", parallel=parallel)
        case "required" | "any" if tools:
            return ToolChoice("required", parallel=parallel)
        case dict():
            name = _name(tool_choice)
            if any(tool.name == name for tool in tools):
                # A named tool is called once, unless the client requests parallel calls.
                return ToolChoice("named", name, parallel=requested is True)
            raise InvalidRequest(f"{path}: there is no tool named '{name}'", param=path)
        case "required" | "any":
            raise InvalidRequest(f"{path}: requires a tool call, but `tools` is empty", param=path)
        case _:
            raise InvalidRequest(f"{path}: unknown value '{tool_choice}'", param=path)


def _name(tool: Mapping[str, Any]) -> str:
    """Return the name in a reference to a tool, nested or not."""
    inner = next((tool[key] for key in ("function", "custom") if key in tool), tool)
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""
