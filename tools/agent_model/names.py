"""Random names, words and contents. Held-out tasks draw from pools that training never uses."""

import builtins
import keyword
import random
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from zlib import crc32

T = TypeVar("T")

HELD_OUT_PERCENT = 20


def _read_pools() -> dict[str, list[str]]:
    """Read the pools of words: a name in brackets, then its words."""
    parts = re.split(
        r"^\[(\w+)\]$", (Path(__file__).with_name("words.txt")).read_text(), flags=re.M
    )
    return {name: words.split() for name, words in zip(parts[1::2], parts[2::2], strict=True)}


_POOLS = _read_pools()
NOUNS = _POOLS["nouns"]
ADJECTIVES = _POOLS["adjectives"]
VERBS = _POOLS["verbs"]
FIRST_NAMES = _POOLS["first_names"]
LAST_NAMES = _POOLS["last_names"]
CITIES = _POOLS["cities"]
FOLDERS = _POOLS["folders"]
SYLLABLES = _POOLS["syllables"]

#: Words of the tokenizer, so that names of any kind are copied and not guessed.
VOCABULARY: list[str] = []
#: Names that Python has already: a file or a function of such a name would hide them.
_RESERVED = {*keyword.kwlist, *dir(builtins), *sys.stdlib_module_names}
_PLAIN_WORD = re.compile(r" [a-z]{3,10}")

STREETS = ("Street", "Lane", "Road", "Way", "Square", "Avenue")


def use_vocabulary(tokens: Iterable[str]) -> None:
    """Use the words among the tokens of a tokenizer as names."""
    words = {token[1:] for token in tokens if _PLAIN_WORD.fullmatch(token)} - _RESERVED
    VOCABULARY[:] = sorted(words)


def is_held_out(text: str) -> bool:
    """Return whether an entry of a pool is reserved for held-out tasks."""
    return crc32(text.encode()) % 100 < HELD_OUT_PERCENT


@dataclass
class Names:
    """A source of random names for one task. `held_out` selects the reserved pools."""

    rng: random.Random
    held_out: bool = False

    def pick(self, pool: Sequence[str]) -> str:
        """Pick an entry of the training pool or of the reserved pool."""
        own = [entry for entry in pool if is_held_out(entry) == self.held_out]
        return self.rng.choice(own or list(pool))

    def phrase(self, pool: Sequence[str]) -> str:
        """Pick a phrasing: the last one of each pool is reserved for held-out tasks."""
        return pool[-1] if self.held_out else self.rng.choice(pool[:-1])

    def choice(self, pool: Sequence[T]) -> T:
        return self.rng.choice(pool)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def number(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def invented(self) -> str:
        """Return a word that no pool has, so that copying is learned instead of a vocabulary."""
        if self.chance(0.3):
            letters = "abcdefghijklmnopqrstuvwxyz"
            return "".join(self.rng.choice(letters) for _ in range(self.rng.randint(3, 6)))
        return "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.randint(2, 3)))

    def noun(self) -> str:
        part = self.rng.random()
        if part < 0.15:
            return self.invented()
        if part < 0.7 and VOCABULARY:
            while is_held_out(word := self.rng.choice(VOCABULARY)) != self.held_out:
                pass
            return word
        return self.pick(NOUNS)

    def nouns(self, count: int) -> list[str]:
        """Return different nouns."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.noun()] = None
        return list(found)

    def identifier(self) -> str:
        """Return a name for code: one or two words in snake case."""
        if self.chance(0.5):
            return f"{self.pick(VERBS)}_{self.noun()}"
        return f"{self.noun()}_{self.noun()}" if self.chance(0.5) else self.noun()

    def adjective(self) -> str:
        return self.pick(ADJECTIVES)

    def person(self) -> str:
        return f"{self.pick(FIRST_NAMES)} {self.pick(LAST_NAMES)}"

    def path(self, *suffixes: str) -> str:
        """Return a path of a new file, in a folder or at the top."""
        stem = self._stem()
        name = f"{stem}.{self.rng.choice(suffixes)}"
        if self.chance(0.4):
            return name
        return f"{self.noun() if self.chance(0.3) else self.rng.choice(FOLDERS)}/{name}"

    def _stem(self) -> str:
        """Return the name of a file without its suffix."""
        stem, style = self.noun(), self.rng.random()
        if style < 0.6:
            return stem
        if style < 0.75:
            return f"{stem}{self.choice(('_', '-'))}{self.noun()}"
        if style < 0.85:
            return f"{stem}{self.choice(('', '_', '-'))}{self.number(1, 99)}"
        return stem.title() if style < 0.9 else stem.upper() if style < 0.95 else stem[:1]

    def paths(self, count: int, *suffixes: str) -> list[str]:
        """Return different paths."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.path(*suffixes)] = None
        return list(found)

    def value(self) -> str:
        """Return a plain value of a setting."""
        kind = self.number(0, 4)
        if kind < 2:
            return str(self.number(1, 99) if kind else self.number(100, 9999))
        return self.choice(("true", "false")) if kind == 2 else self.noun()

    def phrase_of_words(self) -> str:
        """Return a short instruction such as the item of a list."""
        kind = self.number(0, 2)
        if kind == 0:
            return f"{self.pick(VERBS)} the {self.pick(ADJECTIVES)} {self.noun()}"
        if kind == 1:
            return f"{self.pick(VERBS)} the {self.noun()}"
        return f"{self.pick(VERBS)} {self.number(2, 20)} {self.noun()}s"

    def sentence(self) -> str:
        """Return a plain sentence."""
        kind = self.number(0, 3)
        if kind == 0:
            return f"The {self.pick(ADJECTIVES)} {self.noun()} is next to the {self.noun()}."
        if kind == 1:
            return (
                f"{self.pick(FIRST_NAMES)} will {self.pick(VERBS)} the {self.noun()} on day "
                f"{self.number(1, 30)}."
            )
        if kind == 2:
            return f"Please {self.phrase_of_words()} before {self.pick(FIRST_NAMES)} comes."
        return (
            f"{self.pick(FIRST_NAMES)} has {self.number(2, 90)} {self.noun()}s and a {self.noun()}."
        )
