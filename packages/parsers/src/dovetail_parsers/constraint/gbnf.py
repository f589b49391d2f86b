"""Forms in GBNF, the notation of llama.cpp. Free text is an automaton, a rule for each state."""

from dovetail_parsers.constraint.automaton import State, automaton, first_state
from dovetail_parsers.constraint.bnf import RuleWriter, char_class, each
from dovetail_parsers.constraint.nodes import Form, Free, Token


def write_gbnf(form: Form) -> str:
    return _Gbnf(form).text()


class _Gbnf(RuleWriter):
    def token(self, token: Token) -> str:
        return f"<[{token.id}]>"

    def free(self, name: str, free: Free) -> str:
        """The rules go on at their ends only."""
        states = automaton(free)
        for number, state in enumerate(states):
            self.lines[f"{name}-{number}"] = _moves(name, state, ends=not free.stops)
        if not free.not_first:
            return f"{name}-0"
        first = first_state(free, states[0])
        self.lines[f"{name}-first"] = _moves(name, first, ends=not free.stops)
        return f"{name}-first"


def _moves(name: str, state: State, ends: bool) -> str:
    targets: dict[int | None, str] = {}
    for char, target in state.moves.items():
        targets[target] = targets.get(target, "") + char
    elsewhere = "".join(sorted({*state.moves, *state.dead})) or "\0"  # an empty class is no class
    ways = [char_class(each(elsewhere), negated=True) + f" {name}-0"]
    for target, chars in targets.items():
        ways.append(char_class(each(chars)) + (f" {name}-{target}" if target is not None else ""))
    return " | ".join([*ways, '""'] if ends else ways)
