"""What is served: models under their names, each with its engine."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from dovetail.engines.engine import UpstreamEngine
from dovetail.ledger.seal import Sealer
from dovetail.models.loader import Model
from dovetail.pipeline.guided_decoding import Demand, Guidance, Place
from dovetail.pipeline.preparation import Prepared, Prepares
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.routing.pool import ReplicaPool
from dovetail.storage.faults import StoreFaults
from dovetail_model import NotFound, Sampling
from dovetail_protocols import Memory

NO_LIMIT = 1 << 20  # tokens, where neither the model nor the engine says


@dataclass(frozen=True)
class Served:
    """A model under its public names, the first of which is its own.

    `defaults` are the operator's sampling values, stronger than the model's, weaker than a request.
    A stream whose replica dies may go on `migration_limit` times: on another one, or on the same
    if that comes back within `recovery_wait` seconds. `keep_logprobs`: the engine is asked for them
    though the client is not shown any.
    """

    names: tuple[str, ...]
    model: Model
    preparer: Prepares
    engine: ReplicaPool
    max_context: int | None = None
    migration_limit: int = 0
    recovery_wait: float = 0.0
    defaults: Sampling = field(default_factory=Sampling)
    keep_logprobs: bool = False
    created: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        """The window: the smallest that anybody names."""
        engine = self.engine.capabilities.context_length
        return _window(self.max_context, engine, self.model.context_length)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.model.warnings

    @cached_property
    def _guidance(self) -> Guidance:
        return Guidance(self.model)

    def demand(self, prepared: Prepared, place: Place = "start") -> Demand:
        """What the answer must look like from a place on, as far as the engine can see to it."""
        abilities = self.engine.capabilities
        where: Place = "answer" if abilities.constrains_after_reasoning else place
        return self._guidance.of(prepared, abilities.constraints, where)

    def sampling(self, asked: Sampling) -> Sampling:
        """The request's values, then the operator's, then the model's own."""
        merged = merged_sampling(asked, self.defaults, self.model.sampling)
        if self.keep_logprobs and merged.logprobs is None and self.engine.capabilities.logprobs:
            merged = msgspec.structs.replace(merged, logprobs=0)
        return merged

    async def close(self) -> None:
        """Writes down what is still to be written."""
        await self.preparer.close()


@dataclass(frozen=True)
class Relayed:
    """A model of an upstream that renders and parses by itself, under its public names.

    Its tokens are not known here: its turns are carried as text, and may not be exact.
    """

    names: tuple[str, ...]
    engine: UpstreamEngine
    stabilizer: PromptNormalizer
    sealer: Sealer
    max_context: int | None = None
    defaults: Sampling = field(default_factory=Sampling)
    created: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        return _window(self.max_context, self.engine.capabilities.context_length)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (f"the turns of {self.name} are another server's: they are not exact",)

    def sampling(self, asked: Sampling) -> Sampling:
        """The request's values, then the operator's. The rest is the upstream's."""
        return merged_sampling(asked, self.defaults)

    async def close(self) -> None:
        """Nothing was kept."""


Offered = Served | Relayed

_MERGED = tuple(n for n in Sampling.__struct_fields__ if n not in ("n", "stop", "max_tokens"))


def merged_sampling(asked: Sampling, *weaker: Sampling) -> Sampling:
    """The values that were asked for, and for the others the first that somebody names."""
    values = {
        name: next(
            (v for source in (asked, *weaker) if (v := getattr(source, name)) not in (None, ())),
            None,
        )
        for name in _MERGED
    }
    return msgspec.structs.replace(asked, **values)


def _window(*named: int | None) -> int:
    """The smallest window that anybody names."""
    return min((length for length in named if length), default=NO_LIMIT)


class Service:
    """Finds models by the names that clients use.

    `kept` are the responses that it remembers, `turns` what the store of its turns could not do.
    """

    def __init__(
        self,
        served: Sequence[Offered],
        aliases: Mapping[str, str] | None = None,
        kept: ResponseStore | None = None,
        turns: StoreFaults | None = None,
    ) -> None:
        self.served = tuple(served)
        self.kept = kept or ResponseStore(MemoryResponseBackend())
        self.stores = [one for one in (turns, self.kept.faults) if one is not None]
        self.memory = Memory()
        self._aliases = dict(aliases or {})
        self._by_name = {name: one for one in served for name in one.names}
        names = [name for one in served for name in one.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two models are called {', '.join(twice)}: --served-model-name")
        for alias, name in self._aliases.items():
            if name not in self._by_name:
                known = ", ".join(self._by_name)
                raise ValueError(f"the alias {alias!r} is of {name!r}, but served is {known}")

    def find(self, name: str) -> Offered:
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

    def named(self) -> Iterator[tuple[str, Offered]]:
        """Every name that can be listed: an alias with wildcards has no end of names."""
        for one in self.served:
            for name in one.names:
                yield name, one
        for alias, name in self._aliases.items():
            if alias not in self._by_name and not _WILD.search(alias):
                yield alias, self._by_name[name]

    async def start(self) -> None:
        """Makes every engine ready. A store that is not there is told of now, not later."""
        await self.kept.ping()
        for one in self.served:
            await one.engine.start()

    async def stop(self) -> None:
        for one in self.served:
            await one.engine.stop()
            await one.close()
        await self.kept.close()


_WILD = re.compile(r"[*?\[]")
