"""Tools as a client declares them, and its choice among them.

Namespaces are flattened for the model: it sees `namespace__name`, and the call that comes back
carries `namespace` and `name` again. Tools that only the API's own servers can run are skipped and
reported, never refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec

from dovetail_model import InvalidRequest, ToolChoice, ToolSpec
from dovetail_protocols.request_body import convert
from dovetail_protocols.responses import wire

Mode = Literal["auto", "none", "required"]
ToolKey = tuple[str | None, str]

_SERVED = ("function", "custom", "namespace")


class DeclaredTools(msgspec.Struct, frozen=True):
    """Tools as a body declares them, with their paths, and as JSON to repeat them."""

    tools: tuple[tuple[str, Any], ...]
    json: msgspec.Raw


class ResponsesTools(msgspec.Struct, frozen=True):
    """Tools that the model may call, and the paths of unsupported ones."""

    specs: tuple[ToolSpec, ...]
    ignored: tuple[str, ...]


class ToolCollector:
    """All tools of a request, those that came as input items among them.

    A tool that is declared again keeps its place, for the sake of the prompt's prefix, and takes
    the newer definition.
    """

    __slots__ = ("_specs", "ignored")

    def __init__(self) -> None:
        self._specs: dict[ToolKey, ToolSpec] = {}
        self.ignored: list[str] = []

    def add(self, given: object, path: str, namespace: wire.ToolIn | None = None) -> None:
        """One declaration: a tool, or a namespace of tools."""
        given = _unwrap_function(given)
        if isinstance(given, dict) and given.get("type", "function") not in _SERVED:
            self.ignored.append(path)
            return
        tool = convert(given, wire.ToolIn, path)
        if tool.type == "namespace":
            self._add_namespace(tool, path)
        else:
            spec = _spec(tool, path, namespace)
            self._specs[spec.namespace, spec.name] = spec

    def _add_namespace(self, tool: wire.ToolIn, path: str) -> None:
        """Its tools. What it says of all of them stands with the first: it has no other place."""
        for at, inner in enumerate(tool.tools or ()):
            self.add(inner, f"{path}.tools[{at}]", tool)
            tool = msgspec.structs.replace(tool, description=None)

    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is shown them: no two under one name."""
        taken = {name for namespace, name in self._specs if namespace is None}
        return tuple(_with_unique_name(spec, taken) for spec in self._specs.values())


def apply_tool_choice(
    given: str | wire.Json | None, parallel: bool | None, specs: tuple[ToolSpec, ...]
) -> tuple[ToolChoice, tuple[ToolSpec, ...], tuple[str, ...]]:
    """The choice, the tools it leaves, and the paths of what could not be honoured.

    A named tool is named as the model sees it, the one name that is unique.
    """
    together = parallel is not False
    if given is None or isinstance(given, str):
        return _by_mode(_mode(given or "auto", "tool_choice"), specs, together)
    kind = given.get("type")
    if kind == "allowed_tools":
        mode = _mode(given.get("mode") or "auto", "tool_choice.mode")
        return _by_mode(mode, _allowed(given.get("tools"), specs), together)
    if kind in get_args(Mode):
        return _by_mode(_mode(kind, "tool_choice.type"), specs, together)
    if kind not in ("function", "custom"):
        return ToolChoice(parallel=together), specs, ("tool_choice",)
    wanted = _find(_unwrap_function(given), specs)
    if not wanted:
        raise InvalidRequest("tool_choice: There is no such tool", param="tool_choice")
    return ToolChoice("named", wanted[0].model_name, together), specs, ()


def _by_mode(
    mode: Mode, specs: tuple[ToolSpec, ...], parallel: bool
) -> tuple[ToolChoice, tuple[ToolSpec, ...], tuple[str, ...]]:
    if mode == "required" and not specs:
        # Every tool it may have meant is one we skip: better an answer than none.
        return ToolChoice(parallel=parallel), specs, ("tool_choice",)
    return ToolChoice(mode, parallel=parallel), specs, ()


def _mode(given: object, path: str) -> Mode:
    for mode in get_args(Mode):
        if given == mode:
            return mode  # type: ignore[no-any-return]
    raise InvalidRequest(f"{path}: Expected one of {', '.join(get_args(Mode))}", param=path)


def _allowed(given: object, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """The tools that an allow-list leaves, in their own order."""
    names = given if isinstance(given, list) else []
    allowed = {id(spec) for entry in names for spec in _find(_unwrap_function(entry), specs)}
    return tuple(spec for spec in specs if id(spec) in allowed)


def _find(entry: object, specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    """The tools that an entry means; a bare name also finds a tool inside a namespace."""
    if not isinstance(entry, dict):
        return []
    name, namespace = entry.get("name"), entry.get("namespace")
    if entry.get("type") == "namespace":
        return [spec for spec in specs if spec.namespace == name]
    found = [spec for spec in specs if name in (spec.name, spec.shown_as)]
    exact = [spec for spec in found if spec.namespace == namespace]
    return exact[:1] or (found[:1] if namespace is None else [])


def _unwrap_function(given: object) -> object:
    """Chat Completions wraps a function's fields in `function`: unwrapped."""
    if isinstance(given, dict) and isinstance(given.get("function"), dict):
        return {**given["function"], "type": "function"}
    return given


def _spec(tool: wire.ToolIn, path: str, namespace: wire.ToolIn | None) -> ToolSpec:
    where = f"{path}.name"
    if not tool.name:
        raise InvalidRequest(f"{where}: A tool needs a name", param=where)
    custom = tool.type == "custom"
    descriptions = [namespace.description if namespace else None, tool.description]
    return ToolSpec(
        name=tool.name,
        description="\n\n".join(filter(None, descriptions)),
        parameters=tool.parameters or {},
        namespace=namespace.name if namespace else None,
        custom=custom,
        grammar=_grammar(tool.format) if custom else None,
        strict=tool.strict is True,
    )


def _grammar(format: wire.ToolFormat | None) -> str | None:
    """The grammar of a custom tool's input, in Lark whichever syntax it came in."""
    if format is None or format.type != "grammar" or not format.definition:
        return None
    if format.syntax == "regex":
        return "start: /" + format.definition.replace("/", r"\/") + "/"
    return format.definition


def _with_unique_name(spec: ToolSpec, taken: set[str]) -> ToolSpec:
    """The tool under a name that is still free; `taken` holds those of all tools before it."""
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
    """The body's own tools."""
    return DeclaredTools(
        tuple((f"tools[{at}]", tool) for at, tool in enumerate(given)),
        msgspec.Raw(msgspec.json.encode(given)),
    )


def collect_tools(given: Iterable[tuple[str, Any]]) -> ResponsesTools:
    """What all declarations, each with its path, offer the model."""
    collector = ToolCollector()
    for path, tool in given:
        collector.add(tool, path)
    return ResponsesTools(collector.specs(), tuple(collector.ignored))
