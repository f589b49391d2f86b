"""Forms in GBNF, the notation of llama.cpp. Free text is an automaton, a rule for each state."""

from dovetail_parsers.constraint.automaton import AutomatonState, build_automaton, first_state
from dovetail_parsers.constraint.bnf import RuleWriter, char_class, single_char_ranges
from dovetail_parsers.constraint.nodes import FreeText, GrammarSpec, Token


def write_gbnf(form: GrammarSpec) -> str:
    return _GbnfWriter(form).text()


class _GbnfWriter(RuleWriter):
    def token(self, token: Token) -> str:
        return f"<[{token.id}]>"

    def free(self, name: str, free: FreeText) -> str:
        """The rules go on at their ends only."""
        states = build_automaton(free)
        for number, state in enumerate(states):
            self.lines[f"{name}-{number}"] = _transitions(name, state, ends=not free.stops)
        if not free.not_first:
            return f"{name}-0"
        first = first_state(free, states[0])
        self.lines[f"{name}-first"] = _transitions(name, first, ends=not free.stops)
        return f"{name}-first"


def _transitions(name: str, state: AutomatonState, ends: bool) -> str:
    targets: dict[int | None, str] = {}
    for char, target in state.moves.items():
        targets[target] = targets.get(target, "") + char
    elsewhere = (
        "".join(sorted({*state.moves, *state.forbidden})) or "\0"
    )  # an empty class is no class
    ways = [char_class(single_char_ranges(elsewhere), negated=True) + f" {name}-0"]
    for target, chars in targets.items():
        ways.append(
            char_class(single_char_ranges(chars))
            + (f" {name}-{target}" if target is not None else "")
        )
    return " | ".join([*ways, '""'] if ends else ways)
