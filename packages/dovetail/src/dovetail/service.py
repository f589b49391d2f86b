"""What is served: models under their names, each with its engine."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from dovetail.catalog import Model
from dovetail.engines.engine import Constraint, TokenEngine
from dovetail.guidance import Guidance
from dovetail.preparation import Prepared, Prepares
from dovetail.rendering.writing import TurnWriter
from dovetail_model import NotFound, Sampling
from dovetail_protocols import Memory

NO_LIMIT = 1 << 20  # tokens, where neither the model nor the engine says


@dataclass(frozen=True)
class Served:
    """A model under its public names, the first of which is its own.

    `defaults` are the operator's sampling values, stronger than the model's, weaker than a request.
    """

    names: tuple[str, ...]
    model: Model
    preparer: Prepares
    engine: TokenEngine
    max_context: int | None = None
    defaults: Sampling = field(default_factory=Sampling)
    created: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        return self.names[0]

    @cached_property
    def context_length(self) -> int:
        """The window: the smallest that anybody names."""
        named = (self.max_context, self.engine.abilities.context_length, self.model.context_length)
        return min((length for length in named if length), default=NO_LIMIT)

    @cached_property
    def thought_closing(self) -> list[int]:
        """The tokens that end a thought; none for models that do not think."""
        if self.model.reasoning_parser is None:
            return []
        writer = TurnWriter(self.model.tool_parser, self.model.reasoning_parser)
        return self.model.tokenizer.encode(writer.thought_closing())

    @cached_property
    def _guidance(self) -> Guidance:
        return Guidance(self.model)

    def constraint(self, prepared: Prepared, *, after_thought: bool = False) -> Constraint | None:
        """What the answer must look like; None where the engine could not see to it anyway.

        `after_thought`: what is left of it once its thought has ended.
        """
        if "gbnf" not in self.engine.abilities.constraints:
            return None
        return self._guidance.of(prepared, after_thought=after_thought)

    def sampling(self, asked: Sampling) -> Sampling:
        """The request's values, then the operator's, then the model's own."""
        values = {
            name: next(
                (
                    value
                    for source in (asked, self.defaults, self.model.sampling)
                    if (value := getattr(source, name)) not in (None, ())
                ),
                None,
            )
            for name in _MERGED
        }
        return msgspec.structs.replace(asked, **values)


_MERGED = tuple(n for n in Sampling.__struct_fields__ if n not in ("n", "stop", "max_tokens"))


class Service:
    """Finds models by the names that clients use."""

    def __init__(self, served: Sequence[Served], aliases: Mapping[str, str] | None = None) -> None:
        self.served = tuple(served)
        self.memory = Memory()
        self._aliases = dict(aliases or {})
        self._by_name = {name: one for one in served for name in one.names}
        for alias, name in self._aliases.items():
            if name not in self._by_name:
                known = ", ".join(self._by_name)
                raise ValueError(f"the alias {alias!r} is of {name!r}, but served is {known}")

    def find(self, name: str) -> Served:
        """The model of a name: its own, an alias, or an alias with wildcards."""
        found = self._by_name.get(name) or self._by_name.get(self._aliases.get(name, ""))
        if found is None:
            found = next(
                (
                    self._by_name[target]
                    for pattern, target in self._aliases.items()
                    if _WILD.search(pattern) and fnmatchcase(name, pattern)
                ),
                None,
            )
        if found is None:
            known = ", ".join(self._by_name)
            raise NotFound(f"The model `{name}` does not exist. Served: {known}.", param="model")
        return found

    async def start(self) -> None:
        """Makes every engine ready."""
        for one in self.served:
            await one.engine.start()

    async def stop(self) -> None:
        for one in self.served:
            await one.engine.stop()
            await one.preparer.close()


_WILD = re.compile(r"[*?\[]")
