"""Decode tools and the tool choice.

Namespaces are flattened for the model: it sees `namespace__name`, and its calls are mapped back to
`namespace` and `name`. Hosted tools, which the API's own servers run, are listed separately: the
server decides which of them it can run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeGuard, get_args

import msgspec

from dovetail_model import InvalidRequest, ServerTool, ToolChoice, ToolReferenceBlock, ToolSpec
from dovetail_protocols.json_schema import check_schema
from dovetail_protocols.request_body import convert
from dovetail_protocols.responses import wire
from dovetail_protocols.responses.fields import RESPONSES_FIELDS
from dovetail_protocols.web_tools import decode_web_search, is_web_search

Mode = Literal["auto", "none", "required"]
ToolKey = tuple[str | None, str]

_SERVED = ("function", "custom", "namespace")
TOOL_SEARCH = "tool_search"
"""The type of a search for tools, and the name of the function that the model sees for it."""


class DeclaredTools(msgspec.Struct, frozen=True):
    """Tools as declared in a body, with their paths, and as JSON to repeat them."""

    tools: tuple[tuple[str, Any], ...]
    json: msgspec.Raw


class ResponsesTools(msgspec.Struct, frozen=True):
    """Tools that the client runs, hosted tools, and the paths of these and of unused fields."""

    specs: tuple[ToolSpec, ...]
    ignored: tuple[str, ...]
    server: tuple[ServerTool, ...] = ()


class ToolCollector:
    """Collects all tools of a request, including those from input items.

    A tool that is declared again keeps its position, to preserve the prompt's prefix, and takes
    the newer definition.
    """

    __slots__ = ("_specs", "ignored", "server")

    def __init__(self) -> None:
        self._specs: dict[ToolKey, ToolSpec] = {}
        self.ignored: dict[str, None] = {}
        self.server: list[ServerTool] = []

    def add(self, given: object, path: str, namespace: wire.ToolIn | None = None) -> None:
        """Add one declaration: a tool, or a namespace of tools."""
        given = _unwrap_function(given)
        if is_client_tool_search(given):
            given = {**given, "type": "function", "name": TOOL_SEARCH}
        if isinstance(given, dict) and given.get("type", "function") not in _SERVED:
            self.ignored[path] = None
            self._add_server_tool(given, path)
            return
        tool = convert(given, wire.ToolIn, path)
        self.ignored |= dict.fromkeys(RESPONSES_FIELDS.check_item("tools", given))
        if tool.type == "namespace":
            self._add_namespace(tool, path)
        else:
            spec = _spec(tool, path, namespace)
            known = self._specs.get(spec.key)
            if known is not None and not known.deferred:
                spec = msgspec.structs.replace(spec, deferred=False)
            self._specs[spec.key] = spec

    def _add_server_tool(self, given: dict[str, Any], path: str) -> None:
        kind = given.get("type")
        if is_web_search(kind):
            self.server += decode_web_search(given, path, str(kind), len(self._specs))
        elif isinstance(kind, str):
            self.server.append(ServerTool("other", kind, kind, path, len(self._specs)))

    def _add_namespace(self, tool: wire.ToolIn, path: str) -> None:
        """Add the tools of a namespace. Its description goes to the first one: no other place."""
        for at, inner in enumerate(tool.tools or ()):
            self.add(inner, f"{path}.tools[{at}]", tool)
            tool = msgspec.structs.replace(tool, description=None)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the tools as shown to the model, with unique names."""
        taken = {name for namespace, name in self._specs if namespace is None}
        return tuple(_with_unique_name(spec, taken) for spec in self._specs.values())


def apply_tool_choice(
    given: str | wire.Json | None, parallel: bool | None, specs: tuple[ToolSpec, ...]
) -> tuple[ToolChoice, tuple[ToolSpec, ...], tuple[str, ...]]:
    """Return the tool choice, the tools, and the paths of unsupported choices.

    A named tool has the name that the model sees, which is unique.
    """
    together = parallel is not False
    if given is None or isinstance(given, str):
        return _by_mode(_mode(given or "auto", "tool_choice"), specs, together)
    kind = given.get("type")
    if kind == "allowed_tools":
        mode = _mode(given.get("mode") or "auto", "tool_choice.mode")
        choice, specs, ignored = _by_mode(mode, specs, together)
        allowed = frozenset(spec.model_name for spec in _allowed(given.get("tools"), specs))
        unknown = _unknown_tools(given.get("tools"), specs)
        return msgspec.structs.replace(choice, allowed=allowed), specs, (*ignored, *unknown)
    if kind in get_args(Mode):
        return _by_mode(_mode(kind, "tool_choice.type"), specs, together)
    if kind not in ("function", "custom"):
        return ToolChoice(parallel=together), specs, ("tool_choice",)
    wanted = _find(_unwrap_function(given), specs)
    if not wanted:
        raise InvalidRequest("tool_choice: there is no such tool in `tools`", param="tool_choice")
    # A named tool is called once, unless the client requests parallel calls.
    return ToolChoice("named", wanted[0].model_name, parallel is True), specs, ()


def require_server_tool(
    given: str | wire.Json | None, tools: ResponsesTools
) -> tuple[ServerTool, ...]:
    """Return the hosted tools; the one that the tool choice names, or the only one, is required."""
    server, kind = tools.server, given.get("type") if isinstance(given, dict) else given
    if isinstance(given, dict) and kind == "allowed_tools":
        return _list_server_tools(given, tools)
    required = next((tool for tool in server if _is_type(tool, kind)), None)
    if kind == "required" and not tools.specs:
        required = next((tool for tool in server if tool.kind == "web_search"), None)
    return tuple(
        msgspec.structs.replace(tool, required=True) if tool is required else tool
        for tool in server
    )


def _list_server_tools(given: wire.Json, tools: ResponsesTools) -> tuple[ServerTool, ...]:
    """Mark the hosted tools of a list of allowed tools.

    The first one is required if the list requires a call and contains nothing else.
    """
    listed = given.get("tools")
    entries = [entry for entry in listed if isinstance(entry, dict)] if listed else []
    server = [
        msgspec.structs.replace(
            tool, listed=any(_is_type(tool, entry.get("type")) for entry in entries)
        )
        for tool in tools.server
    ]
    at = next((at for at, tool in enumerate(server) if tool.listed), None)
    if at is not None and given.get("mode") == "required" and not _allowed(listed, tools.specs):
        server[at] = msgspec.structs.replace(server[at], required=True)
    return tuple(server)


def _is_type(tool: ServerTool, kind: object) -> bool:
    """Return whether a type names a hosted tool. All types of web searches name the same one."""
    return kind == tool.type or (is_web_search(kind) and tool.kind != "other")


def _by_mode(
    mode: Mode, specs: tuple[ToolSpec, ...], parallel: bool
) -> tuple[ToolChoice, tuple[ToolSpec, ...], tuple[str, ...]]:
    if mode == "required" and not specs:
        # All tools that it may refer to were skipped: a text response is better than an error.
        return ToolChoice(parallel=parallel), specs, ("tool_choice",)
    return ToolChoice(mode, parallel=parallel), specs, ()


def _mode(given: object, path: str) -> Mode:
    for mode in get_args(Mode):
        if given == mode:
            return mode  # type: ignore[no-any-return]
    modes = ", ".join(get_args(Mode))
    raise InvalidRequest(f"{path}: must be one of {modes}, got {given!r}", param=path)


def _allowed(given: object, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """Return the tools that a list of allowed tools leaves, in their own order."""
    names = given if isinstance(given, list) else []
    allowed = {id(spec) for entry in names for spec in _find(_unwrap_function(entry), specs)}
    return tuple(spec for spec in specs if id(spec) in allowed)


def _unknown_tools(given: object, specs: tuple[ToolSpec, ...]) -> tuple[str, ...]:
    """Return the paths of functions and custom tools in a list of allowed tools that do not exist.

    The list may also contain hosted tools, which have no names.
    """
    return tuple(
        f"tool_choice.tools[{at}]"
        for at, entry in enumerate(given if isinstance(given, list) else ())
        if not isinstance(entry, dict)
        or (
            entry.get("type") in ("function", "custom")
            and not _find(_unwrap_function(entry), specs)
        )
    )


def _find(entry: object, specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    """Return the tools that an entry names; a bare name also finds a tool in a namespace."""
    if not isinstance(entry, dict):
        return []
    name, namespace = entry.get("name"), entry.get("namespace")
    if not isinstance(name, str):
        return []  # a hosted tool
    if entry.get("type") == "namespace":
        return [spec for spec in specs if spec.namespace == name]
    found = [spec for spec in specs if name in (spec.name, spec.shown_as)]
    exact = [spec for spec in found if spec.namespace == namespace]
    return exact[:1] or (found[:1] if namespace is None else [])


def is_client_tool_search(given: object) -> TypeGuard[dict[str, Any]]:
    """Return whether a declaration is a search for tools that the client runs."""
    return (
        isinstance(given, dict)
        and given.get("type") == TOOL_SEARCH
        and given.get("execution") == "client"
    )


def is_served_tool(given: Mapping[str, Any]) -> bool:
    """Return whether a declared tool is one that clients run, so that every engine has it."""
    return given.get("type", "function") in _SERVED or is_client_tool_search(given)


def find_references(given: object) -> list[ToolReferenceBlock]:
    """Return references to the tools of a list, including those in namespaces."""
    found: list[ToolReferenceBlock] = []
    for tool in map(_unwrap_function, given if isinstance(given, list) else ()):
        if not isinstance(tool, dict):
            continue
        inner, name = tool.get("tools"), tool.get("name")
        if isinstance(inner, list):
            namespace = name if isinstance(name, str) else None
            found += [ToolReferenceBlock(ref.name, namespace) for ref in find_references(inner)]
        elif isinstance(name, str):
            found.append(ToolReferenceBlock(name))
    return found


def _unwrap_function(given: object) -> object:
    """Unwrap `function`, in which Chat Completions nests the fields of a function."""
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        return {**given["function"], "type": "function"}
    return given


def _spec(tool: wire.ToolIn, path: str, namespace: wire.ToolIn | None) -> ToolSpec:
    where = f"{path}.name"
    if not tool.name:
        raise InvalidRequest(f"{where}: Field required", param=where)
    custom = tool.type == "custom"
    if tool.strict and not custom:
        check_schema(tool.parameters or {}, f"{path}.parameters")
    descriptions = [namespace.description if namespace else None, tool.description]
    return ToolSpec(
        name=tool.name,
        description="\n\n".join(filter(None, descriptions)),
        parameters=tool.parameters or {},
        namespace=namespace.name if namespace else None,
        custom=custom,
        grammar=_grammar(tool.format) if custom else None,
        strict=tool.strict is True,
        deferred=tool.defer_loading is True
        or (namespace is not None and namespace.defer_loading is True),
    )


def _grammar(format: wire.ToolFormat | None) -> str | None:
    """Return the grammar of a custom tool's input in Lark, converted if necessary."""
    if format is None or format.type != "grammar" or not format.definition:
        return None
    if format.syntax == "regex":
        return "start: /" + format.definition.replace("/", r"\/") + "/"
    return format.definition


def _with_unique_name(spec: ToolSpec, taken: set[str]) -> ToolSpec:
    """Return the tool under an unused name; `taken` contains those of the previous tools."""
    if spec.namespace is None:
        return spec
    joined = name = f"{spec.namespace}__{spec.name}"
    count = 1
    while name in taken:
        count += 1
        name = f"{joined}_{count}"
    taken.add(name)
    return msgspec.structs.replace(spec, shown_as=name)


def read_declared_tools(given: Sequence[Any]) -> DeclaredTools:
    """Read the body's own tools."""
    return DeclaredTools(
        tuple((f"tools[{at}]", tool) for at, tool in enumerate(given)),
        msgspec.Raw(msgspec.json.encode([_complete_function(tool) for tool in given])),
    )


def _complete_function(given: object) -> object:
    """Return a tool with all fields of a function, which clients of Open Responses require."""
    tool = _unwrap_function(given)
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        return given
    complete = {"type": "function", "description": None, "parameters": None, **tool}
    return complete | {"strict": tool.get("strict") is True}


def collect_tools(given: Iterable[tuple[str, Any]]) -> ResponsesTools:
    """Collect the tools of all declarations, each with its path."""
    collector = ToolCollector()
    for path, tool in given:
        collector.add(tool, path)
    return ResponsesTools(collector.specs(), tuple(collector.ignored), tuple(collector.server))
