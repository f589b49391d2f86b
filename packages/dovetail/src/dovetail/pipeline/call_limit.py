"""Limits of the calls in an output, for engines that do not enforce them."""

from collections.abc import Iterable

from dovetail_model import CallOpen, ToolChoice, ToolSpec


class CallLimit:
    """Which calls a tool choice excludes. An output ends before such a call."""

    __slots__ = ("_allowed", "_only_one", "is_set")

    def __init__(self, choice: ToolChoice, tools: Iterable[ToolSpec]) -> None:
        self._only_one = not choice.parallel
        self._allowed: frozenset[tuple[str | None, str]] | None = None
        if choice.allowed is not None:
            self._allowed = frozenset(
                tool.key for tool in tools if tool.model_name in choice.allowed
            )
        #: Whether any call is excluded.
        self.is_set = self._only_one or self._allowed is not None

    def excludes(self, call: CallOpen) -> bool:
        """Return whether a call is one too many, or of a tool that is not allowed."""
        if self._only_one and call.index > 0:
            return True
        return self._allowed is not None and (call.namespace, call.name) not in self._allowed
