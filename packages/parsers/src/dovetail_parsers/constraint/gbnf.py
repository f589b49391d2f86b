"""Grammars in GBNF, the notation of llama.cpp. Free text is an automaton with a rule per state."""

from dataclasses import dataclass

from dovetail_parsers.constraint.bnf import RuleWriter, char_class, single_char_ranges
from dovetail_parsers.constraint.nodes import FreeText, GrammarSpec, Token


@dataclass(frozen=True)
class AutomatonState:
    """A state. `moves` maps characters to states; other characters lead to the first state.

    A move to None ends the text: a stop is complete. Characters in `forbidden` are not allowed.
    """

    moves: dict[str, int | None]
    forbidden: frozenset[str]


def first_state(free: FreeText, state: AutomatonState) -> AutomatonState:
    """Return the first state as it is before any character was read."""
    moves = {char: to for char, to in state.moves.items() if char not in free.not_first}
    return AutomatonState(moves, state.forbidden | frozenset(free.not_first))


def build_automaton(free: FreeText) -> list[AutomatonState]:
    """Return the states, starting with the first one."""
    markers = [*free.stops, *free.never]
    numbers = {prefix: i for i, prefix in enumerate(_prefixes(markers))}
    alphabet = sorted({char for marker in markers for char in marker})
    return [_state(prefix, alphabet, numbers, free) for prefix in numbers]


def _prefixes(markers: list[str]) -> list[str]:
    """Return every proper prefix of a marker that contains no full one, the empty one first."""
    found = {"": None} | {marker[:i]: None for marker in markers for i in range(len(marker))}
    return [prefix for prefix in found if not any(marker in prefix for marker in markers)]


def _state(
    prefix: str, alphabet: list[str], numbers: dict[str, int], free: FreeText
) -> AutomatonState:
    moves: dict[str, int | None] = {}
    forbidden: set[str] = set()
    for char in alphabet:
        read = prefix + char
        if read.endswith(free.never):
            forbidden.add(char)
        elif read.endswith(free.stops):
            moves[char] = None
        else:
            target = next(numbers[read[i:]] for i in range(len(read) + 1) if read[i:] in numbers)
            if target:
                moves[char] = target
    return AutomatonState(moves, frozenset(forbidden))


def write_gbnf(spec: GrammarSpec) -> str:
    return _GbnfWriter(spec).text()


class _GbnfWriter(RuleWriter):
    def token(self, token: Token) -> str:
        return f"<[{token.id}]>"

    def free(self, name: str, free: FreeText) -> str:
        """Add the rules of the automaton. They recurse only at their ends."""
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
    )  # an empty class is invalid
    ways = [char_class(single_char_ranges(elsewhere), negated=True) + f" {name}-0"]
    for target, chars in targets.items():
        ways.append(
            char_class(single_char_ranges(chars))
            + (f" {name}-{target}" if target is not None else "")
        )
    return " | ".join([*ways, '""'] if ends else ways)
