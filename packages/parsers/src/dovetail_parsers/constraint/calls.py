"""The grammar of calls, generated from a family's table in the form that the writer uses."""

from collections.abc import Sequence

from dovetail_parsers.constraint.bodies import GuidedTool, arguments_grammar, calls_grammar
from dovetail_parsers.constraint.nodes import EMPTY, Node, Rules, choice, repeat, sequence, text
from dovetail_parsers.constraint.parameters import parameters_grammar
from dovetail_parsers.constraint.walk import TableWalk, spelled_grammar
from dovetail_parsers.grammar import Channel, Mode, ToolFormat


class CallGrammar:
    """The calls of one table, starting at `entry`."""

    __slots__ = ("_entry", "_rules", "_walk")

    def __init__(self, family: str, tools: ToolFormat, entry: str, rules: Rules) -> None:
        self._walk = TableWalk(family, tools.modes, tools.lead)
        self._entry = entry
        self._rules = rules

    def build(self, tools: Sequence[GuidedTool], parallel: bool) -> Node:
        """Return the grammar of one call, or several, including the format's framing."""
        head, first = self._walk.path_to(self._entry, _begins_call)
        body = self._walk.modes[first].body
        if body is None:
            one, behind = self._named(first, tools)
        else:
            one, behind = calls_grammar(body, tools, self._rules, parallel), self._behind(first)
            one = sequence(one, self._pad(first))
        more: Node = EMPTY
        if parallel and not (body is not None and body.holds_many):
            whole = self._walk.modes[first]
            one = self._rules.share("call", one)
            more = repeat(sequence(self._walk.path_to(behind, lambda mode: mode is whole)[0], one))
        return sequence(head, one, more, self._leave(behind))

    def _named(self, name_mode: str, tools: Sequence[GuidedTool]) -> tuple[Node, str]:
        """Return the grammar from the name to the end of a call. All calls end in the same mode."""
        spell = self._walk.modes[name_mode].spell
        calls: list[Node] = []
        behind = ""
        for tool in tools:
            arguments, behind = self._arguments(name_mode, tool)
            calls.append(sequence(spelled_grammar(spell, tool.name), arguments))
        return choice(*calls), behind

    def _arguments(self, name_mode: str, tool: GuidedTool) -> tuple[Node, str]:
        before, at = self._walk.path_to(name_mode, _begins_arguments)
        body = self._walk.modes[at].body
        if body is None:
            return parameters_grammar(self._walk, name_mode, tool, self._rules)
        form = sequence(before, arguments_grammar(body, tool, self._rules), self._pad(at))
        return form, self._behind(at)

    def _pad(self, body_mode: str) -> Node:
        end = self._walk.modes[body_mode].end
        return text(end.pad) if end else EMPTY

    def _behind(self, body_mode: str) -> str:
        end = self._walk.modes[body_mode].end
        return end.mode if end else "text"

    def _leave(self, behind: str) -> Node:
        if self._walk.modes[behind].channel is Channel.TEXT:
            return EMPTY
        return self._walk.path_to(behind, lambda mode: mode.channel is Channel.TEXT)[0]


def _begins_call(mode: Mode) -> bool:
    return mode.channel is Channel.NAME or bool(mode.body and mode.body.holds_calls)


def _begins_arguments(mode: Mode) -> bool:
    return mode.channel in (Channel.BODY, Channel.KEY)
