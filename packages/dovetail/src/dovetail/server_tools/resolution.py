"""Which server tools of a request the server can run.

Those become functions for the model. A tool that the server cannot run is never dropped silently: a
request that has no other tool fails, and otherwise the model is informed at the end of the prompt.
"""

import msgspec

from dovetail.storage.lru import LruCache
from dovetail_model import (
    ClientFields,
    InvalidRequest,
    Request,
    ServerTool,
    ServerToolKind,
    ToolCallBlock,
    ToolChoice,
    ToolSpec,
    Turn,
    Unsupported,
)

_MAX_CACHED_LISTS = 256
_TOOL_SEARCH = "tool_search"  # the types of searches for tools start with it
# Parts of the head of prompts: a change invalidates the prefixes of running conversations.
SEARCH_DESCRIPTION = (
    "Search the web and return numbered results, each with its title, URL and text. Use it for "
    "facts that are recent or that you are not sure of. Cite each result that a statement is based "
    "on by its number in square brackets directly after the statement, for example [1]."
)
FETCH_DESCRIPTION = (
    "Fetch a web page or a PDF file and return its text. Use only URLs from the conversation or "
    "from search results."
)
_REMEDIES: dict[ServerToolKind, str] = {
    "web_search": "no search provider is configured (--web-search)",
    "web_fetch": "fetching pages is not enabled (--web-fetch)",
    "other": "this server does not run tools of this type",
}

Tools = tuple[ToolSpec, ...]
_CacheKey = tuple[int, tuple[tuple[str, str, int], ...]]


class ServerToolResolver:
    """Resolves the server tools of requests. `kinds` are those that the server can run."""

    def __init__(self, kinds: frozenset[ServerToolKind] = frozenset()) -> None:
        self._kinds = kinds
        # The same declarations give the same tuple: later caches look up tools by identity.
        self._lists: LruCache[_CacheKey, tuple[Tools, Tools]] = LruCache(_MAX_CACHED_LISTS)

    def resolve_upstream(
        self, request: Request, hosted: frozenset[ServerToolKind], api: str | None = None
    ) -> Request:
        """Resolve the server tools of a request to an upstream, a server of OpenAI's APIs.

        It gets the tools of its own `api` as they are. Of other APIs, it runs the `hosted` kinds.
        While its API is not known, it gets the tools of both of OpenAI's APIs.
        """
        if request.client.api == api or (api is None and request.client.api != "messages"):
            return msgspec.structs.replace(request, server_tools=())
        found = tuple(tool for tool in request.server_tools if tool.kind in hosted)
        others = tuple(tool for tool in request.server_tools if tool not in found)
        fields = {tool.field for tool in found}
        request = msgspec.structs.replace(
            request,
            server_tools=others,
            hosted_tools=found,
            ignored=tuple(path for path in request.ignored if path not in fields),
            client=_without_rejected(request.client, fields),
        )
        return self.resolve(request)

    def resolve(self, request: Request) -> Request:
        """Return the request with the functions of its server tools.

        Raises `Unsupported` if its only tools are server tools that cannot be run.
        """
        declared = request.server_tools
        if not declared:
            return request
        request = self._show_deferred(request)
        usable = tuple(tool for tool in declared if tool.kind in self._kinds)
        if all(tool.implied for tool in usable):
            usable = ()
        for tool in usable:
            _check_domains(tool)
        missing = [tool for tool in declared if not (tool in usable or tool.implied)]
        if missing:
            self._check_usable(request, (*usable, *request.hosted_tools), missing[0])
        usable = tuple(_with_unused_name(tool, request.tools) for tool in usable)
        fields = {tool.field for tool in usable}
        if usable:
            fields.add("max_tool_calls")
        required = next((tool for tool in usable if tool.required), None)
        if required is not None:
            fields.add("tool_choice")
        elif (unmet := next((tool for tool in missing if tool.required), None)) is not None:
            raise _unavailable("tool_choice", unmet)
        absent = [tool.field for tool in missing if tool.field not in request.ignored]
        return msgspec.structs.replace(
            request,
            turns=_rename_calls(request.turns, usable),
            tools=self._add_functions(request.tools, usable) if usable else request.tools,
            tool_choice=_restrict_choice(request.tool_choice, usable, required),
            server_tools=usable,
            unavailable_tools=tuple(tool.name for tool in missing),
            ignored=(
                *(path for path in request.ignored if path not in fields),
                *(path for tool in usable for path in tool.unused),
                *absent,
            ),
            client=_without_rejected(request.client, fields.union(absent)),
        )

    def _show_deferred(self, request: Request) -> Request:
        """Show deferred tools if only a search for tools, which no server here runs, loads them."""
        tools = request.tools
        if not any(tool.type.startswith(_TOOL_SEARCH) for tool in request.server_tools):
            return request
        if not any(tool.deferred for tool in tools):
            return request
        known = self._lists.get((id(tools), ()))
        if known is None or known[0] is not tools:
            shown = tuple(msgspec.structs.replace(tool, deferred=False) for tool in tools)
            known = (tools, shown)
            self._lists.put((id(tools), ()), known)
        ignored = (*request.ignored, "tools[].defer_loading")
        return msgspec.structs.replace(request, tools=known[1], ignored=ignored)

    def _check_usable(
        self, request: Request, usable: tuple[ServerTool, ...], missing: ServerTool
    ) -> None:
        if request.tools or usable:
            return
        raise _unavailable(missing.field, missing)

    def _add_functions(self, tools: Tools, usable: tuple[ServerTool, ...]) -> Tools:
        key = (id(tools), tuple((tool.kind, tool.name, tool.position) for tool in usable))
        known = self._lists.get(key)
        if known is not None and known[0] is tools:
            return known[1]
        combined = list(tools)
        for count, tool in enumerate(usable):
            combined.insert(tool.position + count, define_tool(tool))
        found = tuple(combined)
        self._lists.put(key, (tools, found))
        return found


def _unavailable(field: str, tool: ServerTool) -> Unsupported:
    message = f"{field}: the tool '{tool.type}' is not available: {_REMEDIES[tool.kind]}"
    return Unsupported(message, param=field)


def _without_rejected(client: ClientFields, fields: set[str]) -> ClientFields:
    """Return the client's fields without those that were resolved instead of being rejected."""
    rejected = tuple(field for field in client.rejected if field.path not in fields)
    if len(rejected) == len(client.rejected):
        return client
    left = {name: value for name, value in client.fields.items() if name not in fields}
    return msgspec.structs.replace(client, rejected=rejected, fields=left)


def _with_unused_name(tool: ServerTool, tools: Tools) -> ServerTool:
    """Return the tool under a name that no client tool has."""
    if all(tool.name != one.model_name for one in tools):
        return tool
    return msgspec.structs.replace(tool, name=f"server_{tool.name}")


def _rename_calls(turns: tuple[Turn, ...], usable: tuple[ServerTool, ...]) -> tuple[Turn, ...]:
    """Return the history with the calls of server tools under the names that the model used.

    Clients return these calls under the name of the API.
    """
    names = {tool.kind: tool.name for tool in usable if tool.name != tool.kind}
    if not names:
        return turns
    return tuple(_rename_in_turn(turn, names) for turn in turns)


def _rename_in_turn(turn: Turn, names: dict[ServerToolKind, str]) -> Turn:
    blocks = tuple(
        msgspec.structs.replace(block, name=names[block.server])
        if isinstance(block, ToolCallBlock) and block.server in names
        else block
        for block in turn.blocks
    )
    return turn if blocks == turn.blocks else Turn(turn.role, blocks)


def _check_domains(tool: ServerTool) -> None:
    if tool.allowed_domains and tool.blocked_domains:
        message = (
            f"{tool.field}: `allowed_domains` and `blocked_domains` cannot be combined; send one "
            "of them"
        )
        raise InvalidRequest(message, param=tool.field)


def _restrict_choice(
    choice: ToolChoice, usable: tuple[ServerTool, ...], required: ServerTool | None
) -> ToolChoice:
    """Return the tool choice with the server tools that the client allows or requires."""
    listed = frozenset(tool.name for tool in usable if tool.listed)
    if choice.allowed is not None and listed:
        choice = msgspec.structs.replace(choice, allowed=choice.allowed | listed)
    if required is None:
        return choice
    return ToolChoice("named", required.name, choice.parallel, choice.allowed)


def define_tool(tool: ServerTool) -> ToolSpec:
    """Return the function that the model calls for a server tool."""
    if tool.kind == "web_search":
        return _define(tool.name, SEARCH_DESCRIPTION, "query", "The search query.")
    return _define(tool.name, FETCH_DESCRIPTION, "url", "The complete URL, with http or https.")


def _define(name: str, description: str, argument: str, meaning: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": {argument: {"type": "string", "description": meaning}},
            "required": [argument],
        },
    )
