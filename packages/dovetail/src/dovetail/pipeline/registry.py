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
from dovetail.pipeline.guided_decoding import ConstraintBuilder, OutputConstraint, OutputPhase
from dovetail.pipeline.preparation import PreparedRequest, RequestPreparer
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.routing.pool import ReplicaPool
from dovetail.storage.faults import StoreFaults
from dovetail_model import NotFound, Sampling
from dovetail_protocols import DecodeCache

DEFAULT_CONTEXT_TOKENS = 1 << 20  # tokens, where neither the model nor the engine says


#: How long the start of a response waits for the engine: until then an error can be a status.
STREAM_START_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class TokenModel:
    """A model under its public names, the first of which is its own.

    `defaults` are the operator's sampling values, stronger than the model's, weaker than a request.
    A stream whose replica dies may go on `migration_limit` times: on another one, or on the same
    if that comes back within `recovery_wait` seconds. `keep_logprobs`: the engine is asked for them
    though the client is not shown any. The start of a response waits `start_timeout_seconds` for
    the engine.
    """

    names: tuple[str, ...]
    model: Model
    preparer: RequestPreparer
    engine: ReplicaPool
    max_context: int | None = None
    migration_limit: int = 0
    recovery_wait: float = 0.0
    default_sampling: Sampling = field(default_factory=Sampling)
    keep_logprobs: bool = False
    created: float = field(default_factory=time.time)
    start_timeout_seconds: float = STREAM_START_TIMEOUT_SECONDS

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        """The window: the smallest that anybody names."""
        engine = self.engine.capabilities.context_length
        return _min_context_length(self.max_context, engine, self.model.context_length)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.model.warnings

    @cached_property
    def _constraint_builder(self) -> ConstraintBuilder:
        return ConstraintBuilder(self.model)

    def output_constraint(
        self, prepared: PreparedRequest, phase: OutputPhase = "start"
    ) -> OutputConstraint:
        """What the answer must look like from a place on, as far as the engine can see to it."""
        abilities = self.engine.capabilities
        where: OutputPhase = "answer" if abilities.constrains_after_reasoning else phase
        return self._constraint_builder.build(prepared, abilities.constraints, where)

    def resolve_sampling(self, requested: Sampling) -> Sampling:
        """The request's values, then the operator's, then the model's own."""
        merged = merge_sampling(requested, self.default_sampling, self.model.sampling)
        if self.keep_logprobs and merged.logprobs is None and self.engine.capabilities.logprobs:
            merged = msgspec.structs.replace(merged, logprobs=0)
        return merged

    async def close(self) -> None:
        """Writes down what is still to be written."""
        await self.preparer.close()


@dataclass(frozen=True)
class UpstreamModel:
    """A model of an upstream that renders and parses by itself, under its public names.

    Its tokens are not known here: its turns are carried as text, and may not be exact.
    """

    names: tuple[str, ...]
    engine: UpstreamEngine
    normalizer: PromptNormalizer
    sealer: Sealer
    max_context: int | None = None
    default_sampling: Sampling = field(default_factory=Sampling)
    created: float = field(default_factory=time.time)
    start_timeout_seconds: float = STREAM_START_TIMEOUT_SECONDS

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        return _min_context_length(self.max_context, self.engine.capabilities.context_length)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (f"the turns of {self.name} are another server's: they are not exact",)

    def resolve_sampling(self, requested: Sampling) -> Sampling:
        """The request's values, then the operator's. The rest is the upstream's."""
        return merge_sampling(requested, self.default_sampling)

    async def close(self) -> None:
        """Nothing was kept."""


ModelEntry = TokenModel | UpstreamModel

_MERGED_FIELDS = tuple(
    n for n in Sampling.__struct_fields__ if n not in ("n", "stop", "max_tokens")
)


def merge_sampling(requested: Sampling, *fallbacks: Sampling) -> Sampling:
    """The values that were asked for, and for the others the first that somebody names."""
    values = {
        name: next(
            (
                v
                for source in (requested, *fallbacks)
                if (v := getattr(source, name)) not in (None, ())
            ),
            None,
        )
        for name in _MERGED_FIELDS
    }
    return msgspec.structs.replace(requested, **values)


def _min_context_length(*lengths: int | None) -> int:
    """The smallest window that anybody names."""
    return min((length for length in lengths if length), default=DEFAULT_CONTEXT_TOKENS)


class ModelRegistry:
    """Finds models by the names that clients use.

    `kept` are the responses that it remembers, `turns` what the store of its turns could not do.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        aliases: Mapping[str, str] | None = None,
        response_store: ResponseStore | None = None,
        ledger_faults: StoreFaults | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.response_store = response_store or ResponseStore(MemoryResponseBackend())
        self.store_faults = [
            one for one in (ledger_faults, self.response_store.faults) if one is not None
        ]
        self.memory = DecodeCache()
        self._aliases = dict(aliases or {})
        self._by_name = {name: one for one in entries for name in one.names}
        names = [name for one in entries for name in one.names]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two models are called {', '.join(twice)}: --served-model-name")
        for alias, name in self._aliases.items():
            if name not in self._by_name:
                known = ", ".join(self._by_name)
                raise ValueError(f"the alias {alias!r} is of {name!r}, but served is {known}")

    def find(self, name: str) -> ModelEntry:
        """The model of a name: its own, an alias, or an alias with wildcards."""
        found = self._by_name.get(name) or self._by_name.get(self._aliases.get(name, ""))
        if found is None:
            found = next(
                (
                    self._by_name[target]
                    for pattern, target in self._aliases.items()
                    if _WILDCARD.search(pattern) and fnmatchcase(name, pattern)
                ),
                None,
            )
        if found is None:
            known = ", ".join(self._by_name)
            raise NotFound(f"The model `{name}` does not exist. Served: {known}.", param="model")
        return found

    def iter_entries(self) -> Iterator[tuple[str, ModelEntry]]:
        """Every name that can be listed: an alias with wildcards has no end of names."""
        for one in self.entries:
            for name in one.names:
                yield name, one
        for alias, name in self._aliases.items():
            if alias not in self._by_name and not _WILDCARD.search(alias):
                yield alias, self._by_name[name]

    async def start(self) -> None:
        """Makes every engine ready. A store that is not there is told of now, not later."""
        await self.response_store.ping()
        for one in self.entries:
            await one.engine.start()

    async def stop(self) -> None:
        for one in self.entries:
            await one.engine.stop()
            await one.close()
        await self.response_store.close()


_WILDCARD = re.compile(r"[*?\[]")
