"""Limits of the calls in an output, for engines that do not enforce them."""

from dovetail_model import CallOpen, Request


class CallLimit:
    """Which calls a request excludes. An output ends before such a call.

    Calls of server tools and of the client do not follow each other if the client's API hides the
    former: the next request would return only a part of the turn, without the server's results.
    """

    __slots__ = ("_allowed", "_first_is_server", "_only_one", "_server", "is_set")

    def __init__(self, request: Request) -> None:
        choice, tools = request.tool_choice, request.tools
        self._only_one = not choice.parallel
        self._server: frozenset[str] = frozenset()
        if request.hides_server_calls:
            self._server = frozenset(tool.name for tool in request.server_tools)
        self._first_is_server = False
        self._allowed: frozenset[tuple[str | None, str]] | None = None
        if choice.allowed is not None:
            self._allowed = frozenset(
                tool.key for tool in tools if tool.model_name in choice.allowed
            )
        #: Whether any call is excluded.
        self.is_set = self._only_one or self._allowed is not None or bool(self._server)

    def excludes(self, call: CallOpen) -> bool:
        """Return whether a call is one too many, or of a tool that is not allowed."""
        if self._only_one and call.index > 0:
            return True
        is_server = call.name in self._server
        if call.index == 0:
            self._first_is_server = is_server
        elif is_server != self._first_is_server:
            return True
        return self._allowed is not None and (call.namespace, call.name) not in self._allowed
