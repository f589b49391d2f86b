"""The served models with their names, engines and sampling defaults."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property

import msgspec

from dovetail.engines.engine import UpstreamEngine
from dovetail.engines.sampling import OPTIONAL_SAMPLING, check_sampling
from dovetail.ledger.seal import Sealer
from dovetail.models.loader import Model
from dovetail.pipeline.documents import DocumentReader
from dovetail.pipeline.guided_decoding import (
    ConstraintBuilder,
    GuidedFallback,
    OutputConstraint,
    OutputPhase,
)
from dovetail.pipeline.preparation import PreparedRequest, RequestPreparer
from dovetail.pipeline.recovery import NO_RECOVERY, RecoveryPolicy
from dovetail.pipeline.session_keys import named_session_key
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.responses.conversations import ConversationStore
from dovetail.responses.memory import MemoryResponseBackend
from dovetail.responses.store import ResponseStore
from dovetail.routing.pool import ReplicaPool
from dovetail.server_tools.replay import restore_results
from dovetail.server_tools.resolution import ServerToolResolver
from dovetail.server_tools.runner import ServerTools
from dovetail.storage.faults import StoreFaults
from dovetail.usage.prices import NO_PRICES, Prices
from dovetail_model import Identity, NotFound, Request, Sampling
from dovetail_protocols import DecodeCache

DEFAULT_CONTEXT_TOKENS = 1 << 20  # if neither the model nor the engine reports a length


#: How long the start of a response waits for the engine, so that an error can set the status.
STREAM_START_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True)
class TokenModel:
    """A model whose prompts and output are tokenized by this server.

    `names`: the public names; the first is the main name.
    `migration_limit`: how often a stream may be migrated after a failure of its replica.
    `recovery_wait`: how many seconds a stream waits for the recovery of the only replica.
    `default_sampling`: the operator's values. They override those of the model; a request
    overrides them.
    `keep_logprobs`: request and record logprobs even if the client did not request them.
    `start_timeout_seconds`: how long the start of a response waits for the engine.
    `codex_profile`: the entry of Codex's own catalog as which Codex sees the model.
    `raw_prompts`: prompts are texts of the client, so the output has no reasoning and no calls.
    `guided_fallback`: what happens to a constraint that the engine cannot enforce.
    `adapter`: the LoRA adapter that the engine applies. The model without an adapter, which uses
    the same engine, starts and stops it.
    `recovery`: which defective turns are recovered.
    `fallback`: the models that serve requests while no replica of this one is available.
    `prices`: what its tokens cost.
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
    codex_profile: str | None = None
    raw_prompts: bool = False
    guided_fallback: GuidedFallback = "reject"
    adapter: str | None = None
    recovery: RecoveryPolicy = NO_RECOVERY
    fallback: tuple[str, ...] = ()
    prices: Prices = NO_PRICES

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        """The context window: the minimum of setting, engine limit and model limit."""
        engine = self.engine.capabilities.context_length
        return _min_context_length(self.max_context, engine, self.model.context_length)

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """What the model reads. Prompts are token ids, which contain no images."""
        return ("text",)

    @property
    def warnings(self) -> tuple[str, ...]:
        return self.model.warnings

    @cached_property
    def _constraint_builder(self) -> ConstraintBuilder:
        return ConstraintBuilder(self.model, self.guided_fallback, raw_prompts=self.raw_prompts)

    async def output_constraint(
        self, prepared: PreparedRequest, phase: OutputPhase = "start"
    ) -> OutputConstraint:
        """Return the constraint on the output from `phase` on that the engine can enforce."""
        capabilities = self.engine.capabilities
        effective_phase: OutputPhase = (
            "after_reasoning" if capabilities.constrains_after_reasoning else phase
        )
        return await self._constraint_builder.build(
            prepared, capabilities.constraints, effective_phase
        )

    def resolve_sampling(self, requested: Sampling) -> Sampling:
        """Merge the values of the request, the operator and the model, in this order."""
        merged = merge_sampling(requested, self.default_sampling, self.model.sampling)
        if self.keep_logprobs and merged.logprobs is None and self.engine.capabilities.logprobs:
            merged = msgspec.structs.replace(merged, logprobs=0)
        return merged

    async def start(self) -> None:
        """Connect the stores of the preparer, then start the engine."""
        if self.adapter is None:
            await self.preparer.start()
            await self.engine.start()

    def ignored_fields(self, request: Request) -> tuple[str, ...]:
        """Return the paths of fields of a request that have no effect."""
        return request.ignored

    def check(self, request: Request) -> None:
        """Reject a request with a field or a sampling parameter that would not be applied."""
        request.client.reject_unsupported()
        check_sampling(request.sampling, self.engine.capabilities, self.engine.name)

    async def close(self) -> None:
        """Stop the engine, then flush and close the stores of the preparer."""
        if self.adapter is None:
            await self.engine.stop()
            await self.preparer.close()


@dataclass(frozen=True)
class PromptTokenizer:
    """The tokenizer and the chat template of an upstream's model, with which prompts are counted.

    The upstream renders prompts by itself, so a count is exact only if its template is the same.
    """

    model: Model
    preparer: RequestPreparer

    async def count(self, request: Request, window: int) -> int:
        """Count the prompt tokens of a request."""
        return await self.preparer.count_tokens(request, window)


def _create_document_reader() -> DocumentReader:
    """Create the reader of an upstream model, whose engine replaces images if necessary."""
    return DocumentReader(sees_images=True)


@dataclass(frozen=True)
class UpstreamModel:
    """A model on an upstream engine that renders prompts and parses output itself.

    This server does not have its tokens: turns are sent as text, so they may not be exact.
    `tokenizer`: counts prompts, if the settings name the model's tokenizer.
    """

    names: tuple[str, ...]
    engine: UpstreamEngine
    normalizer: PromptNormalizer
    sealer: Sealer
    max_context: int | None = None
    default_sampling: Sampling = field(default_factory=Sampling)
    document_reader: DocumentReader = field(default_factory=_create_document_reader)
    created: float = field(default_factory=time.time)
    start_timeout_seconds: float = STREAM_START_TIMEOUT_SECONDS
    codex_profile: str | None = None
    tokenizer: PromptTokenizer | None = None
    prices: Prices = NO_PRICES

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def context_length(self) -> int:
        return _min_context_length(self.max_context, self.engine.capabilities.context_length)

    @property
    def input_modalities(self) -> tuple[str, ...]:
        """What the model reads, as far as the upstream has not rejected it."""
        return ("text", "image") if self.engine.capabilities.images else ("text",)

    @property
    def warnings(self) -> tuple[str, ...]:
        return (f"{self.name}: the upstream server renders the prompts, so turns are not exact",)

    def ignored_fields(self, request: Request) -> tuple[str, ...]:
        """Return nothing: the engine reports the fields that its server does not get."""
        return ()

    def check(self, request: Request) -> None:
        """Do nothing: the engine rejects fields that its server's API does not have."""

    def resolve_sampling(self, requested: Sampling) -> Sampling:
        """Merge the values of the request and the operator. The upstream sets the others."""
        return merge_sampling(requested, self.default_sampling)

    async def start(self) -> None:
        """Start the engine. There is no store to connect."""
        await self.engine.start()

    async def close(self) -> None:
        """Stop the engine. There is no store to close."""
        await self.engine.stop()


ModelEntry = TokenModel | UpstreamModel

_MERGED_FIELDS = tuple(
    name
    for name in Sampling.__struct_fields__
    if name not in ("n", "stop", "max_tokens", "stop_token_ids", *OPTIONAL_SAMPLING)
)


def merge_sampling(requested: Sampling, *fallbacks: Sampling) -> Sampling:
    """Fill in the missing values of a request from the first fallback that has them."""
    values: dict[str, object] = {}
    for name in _MERGED_FIELDS:
        value = getattr(requested, name)
        for fallback in fallbacks:
            if value not in (None, ()):
                break
            value = getattr(fallback, name)
        values[name] = None if value == () else value
    return msgspec.structs.replace(requested, **values)


def _min_context_length(*lengths: int | None) -> int:
    """Return the minimum of the known context lengths."""
    return min(filter(None, lengths), default=DEFAULT_CONTEXT_TOKENS)


class ModelRegistry:
    """Finds models by name or alias.

    `response_store`: the stored responses.
    `conversations`: the stored conversations.
    `store_faults`: the failures of the stores.
    `server_tools`: runs server tools; None if the server runs none.
    `release_in_peers`: lets the other worker processes release a session that has ended.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        aliases: Mapping[str, str] | None = None,
        response_store: ResponseStore | None = None,
        ledger_faults: StoreFaults | None = None,
        server_tools: ServerTools | None = None,
    ) -> None:
        self.entries = tuple(entries)
        self.response_store = response_store or ResponseStore(MemoryResponseBackend())
        self.conversations = ConversationStore(self.response_store)
        self.store_faults = [
            one for one in (ledger_faults, self.response_store.faults) if one is not None
        ]
        self.memory = DecodeCache()
        self.server_tools = server_tools
        self.release_in_peers: Callable[[Identity], None] = lambda identity: None
        kinds = frozenset() if server_tools is None else server_tools.kinds
        self._tool_resolver = ServerToolResolver(kinds)
        self._aliases = dict(aliases or {})
        self._by_name = {name: one for one in entries for name in one.names}
        names = [name for one in entries for name in one.names]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            names_text = ", ".join(duplicates)
            raise ValueError(f"two models have the name {names_text}: use --served-model-name")
        self.fallbacks: Counter[tuple[str, str]] = Counter()  # requests by model and fallback
        for entry in entries:
            for name in entry.fallback if isinstance(entry, TokenModel) else ():
                if name not in self._by_name or self._by_name[name] is entry:
                    known = ", ".join(self._by_name)
                    raise ValueError(
                        f"the fallback of {entry.name!r} must be another served model, got "
                        f"{name!r}; served models: {known}"
                    )
        for alias, name in self._aliases.items():
            if name not in self._by_name:
                known = ", ".join(self._by_name)
                raise ValueError(f"the alias {alias!r} refers to {name!r}; served models: {known}")

    def release_session(self, identity: Identity) -> None:
        """Discard what is held for a session that has ended, of all models."""
        for entry in self.entries:
            if isinstance(entry, TokenModel):
                entry.preparer.release_session(identity)
                entry.engine.release_session(named_session_key(identity))

    def base_models(self) -> Iterator[TokenModel]:
        """Yield the models with an engine of their own: no adapters, no upstream models."""
        for entry in self.entries:
            if isinstance(entry, TokenModel) and entry.adapter is None:
                yield entry

    def find(self, name: str) -> ModelEntry:
        """Find a model by its own name, an alias, or an alias with wildcards."""
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
            message = f"The model `{name}` does not exist. Served models: {known}."
            raise NotFound(message, param="model")
        return found

    def find_available(self, name: str) -> ModelEntry:
        """Find a model, or the first of its fallbacks that is available while it is not.

        The model of a running response never changes: this is decided once per request.
        """
        entry = self.find(name)
        if not isinstance(entry, TokenModel) or not entry.fallback or entry.engine.available_count:
            return entry
        for other in map(self.find, entry.fallback):
            if not isinstance(other, TokenModel) or other.engine.available_count:
                self.fallbacks[entry.name, other.name] += 1
                return other
        return entry  # its error gives the reason

    def iter_entries(self) -> Iterator[tuple[str, ModelEntry]]:
        """Yield every name with its model, except aliases with wildcards."""
        for entry in self.entries:
            for name in entry.names:
                yield name, entry
        for alias, name in self._aliases.items():
            if alias not in self._by_name and not _WILDCARD.search(alias):
                yield alias, self._by_name[name]

    def resolve_tools(self, request: Request) -> Request:
        """Return a request with the functions of the server tools that can be run for its model.

        Results of such tools in its history are as the model read them.
        """
        if self.server_tools is not None:
            request = restore_results(request, self.server_tools.sealer)
        if not request.server_tools:
            return request
        entry = self.find(request.model)
        if isinstance(entry, UpstreamModel):
            found = entry.engine.capabilities
            return self._tool_resolver.resolve_upstream(request, found.hosted_tools, found.api)
        return self._tool_resolver.resolve(request)

    async def start(self) -> None:
        """Connect the stores and start all engines. Stores that are unavailable are logged."""
        await self.response_store.ping()
        for entry in self.entries:
            await entry.start()

    async def stop(self) -> None:
        for entry in self.entries:
            await entry.close()
        await self.response_store.close()


_WILDCARD = re.compile(r"[*?\[]")
