"""From a decoded request to a prompt, and from the answer back into the ledger.

Request ─stabilize─▶ Request ─recall─▶ known turns ─render─▶ Prompt(ids)
"""

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from dovetail.ledger.entry import LedgerEntry, create_entry_id
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.recognition import (
    RecognitionScope,
    RecognizedHistory,
    ReplayPolicy,
    TurnRecognizer,
)
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import Sealer
from dovetail.models.loader import Model
from dovetail.models.renderers import RendererCache
from dovetail.models.thinking import merge_thinking, resolve_switches
from dovetail.pipeline.concurrency import MIN_OFFLOAD_SIZE, run_in_thread
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_diagnostics import (
    PrefixDiagnostics,
    PrefixReport,
    PromptObservation,
    count_common_ids,
)
from dovetail.prompt.prompt import Prompt
from dovetail.prompt.renderer import find_loop_start
from dovetail.prompt.template import RenderError
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import (
    Block,
    DocumentBlock,
    ImageBlock,
    InvalidRequest,
    ReasoningBlock,
    Request,
    TextBlock,
    Thinking,
    Turn,
    Unsupported,
)

CallIdFactory = Callable[[], str]
MIN_WARM_TOKENS = 16  # tokens: the block of an engine's cache


@dataclass(frozen=True)
class PromptSettings:
    """What an operator decides about prompts."""

    replay: ReplayPolicy = "auto"
    normalization: NormalizationOptions = field(default_factory=NormalizationOptions)
    default_thinking: Literal["enabled", "disabled"] | None = None
    template_switches: Mapping[str, Any] = field(default_factory=dict)
    resume_drop_thinking: float | None = None
    hide_unusable_tools: bool = False


@dataclass(frozen=True)
class PreparedRequest:
    """A request ready for the engine."""

    request: Request
    prompt: Prompt
    owner: TurnOwner
    prefix_snapshot: PromptObservation
    diagnosis: PrefixReport


class RequestPreparer(Protocol):
    """What the pipeline asks of whoever makes prompts.

    `records_first`: a turn is to be recorded before its end is told, since the next request may
    reach another process.
    """

    @property
    def records_before_finish(self) -> bool: ...

    async def prepare(self, request: Request, harness: str = "") -> PreparedRequest: ...

    async def count_tokens(self, request: Request) -> int: ...

    def template_switches(self, thinking: Thinking) -> dict[str, Any]: ...

    def create_generation(
        self, prepared: PreparedRequest, new_call_id: CallIdFactory
    ) -> Generation: ...

    async def record(self, prepared: PreparedRequest, generation: Generation) -> None: ...

    async def predict_next_prompt(
        self, prepared: PreparedRequest, generation: Generation
    ) -> "array[int] | None": ...

    async def shared_prompt_prefix(self, request: Request) -> "array[int] | None": ...

    async def close(self) -> None: ...


class ChatPreparer:
    """Prepares the requests of one model, and records its turns."""

    def __init__(
        self,
        model: Model,
        ledger: Ledger,
        keyring: Keyring,
        settings: PromptSettings | None = None,
        clock: Callable[[], float] = time.time,
        *,
        min_offload_chars: int = MIN_OFFLOAD_SIZE,
    ) -> None:
        self._model = model
        self._min_offload_chars = min_offload_chars
        self._ledger = ledger
        self._keyring = keyring
        self._settings = settings or PromptSettings()
        self._clock = clock
        self._sealer = Sealer(keyring)
        self._normalizer = PromptNormalizer(self._settings.normalization)
        self._renderers = RendererCache(model)
        restorer = SealRestorer(self._sealer, self._renderers.default.encode_blocks)
        self._recaller = TurnRecognizer(ledger, restorer, replay=self._settings.replay)
        self._output_spec = OutputSpec(
            model.tokenizer,
            model.stop_ids,
            model.tool_parser,
            model.reasoning_parser,
            model.fingerprint,
        )
        self._owners: dict[str, TurnOwner] = {}
        self._prefix_diagnostics = PrefixDiagnostics(decode=model.tokenizer.decode)

    @property
    def records_before_finish(self) -> bool:
        return self._ledger.has_worker_peers

    async def prepare(self, request: Request, harness: str = "") -> PreparedRequest:
        """The request as the model gets it. `harness` names the client, for comparisons."""
        request, prompt, owner, cleared = await self._render(request)
        sighting = _snapshot_prefix(request, prompt, harness, deliberate=cleared)
        return PreparedRequest(
            request, prompt, owner, sighting, self._prefix_diagnostics.compare(sighting)
        )

    async def count_tokens(self, request: Request) -> int:
        """The number of tokens of a request's prompt. Leaves no trace.

        A client may ask what its tools alone cost: they are counted beside a one-letter message.
        """
        if not request.turns:
            request = msgspec.structs.replace(request, turns=(Turn("user", (TextBlock("x"),)),))
        _, prompt, _, _ = await self._render(request)
        return len(prompt.ids)

    def template_switches(self, thinking: Thinking) -> dict[str, Any]:
        """The switches of the template in an agent's session that asks this about thoughts."""
        return self._resolve_switches(thinking, tools=True)

    async def _render(self, request: Request) -> tuple[Request, Prompt, TurnOwner, bool]:
        request = self._normalizer.normalize(request)
        if not request.turns and not request.system:
            raise InvalidRequest("The request has no message.", param="messages")
        newest = request.turns[-1].blocks if request.turns else ()
        if any(map(_lacks_text, newest)):
            name = request.model or self._model.name
            raise Unsupported(f"The model {name} is served as text: it takes no images or files.")
        if self._settings.hide_unusable_tools and request.tool_choice.mode == "none":
            request = msgspec.structs.replace(request, tools=())
        owner = self._owner_of(request.identity.tenant)
        scope = RecognitionScope(
            tenant=owner.tenant,
            chain_key=owner.chain_key,
            model=self._model.fingerprint,
            tools=request.tools,
            session=request.identity.session,
        )
        walk = await self._recaller.match_turns(request.turns, scope)
        request = _inherit_thinking(request, await self._recaller.find_last_entry(walk, scope))
        steering = self._resolve_switches(request.thinking, tools=bool(request.tools))
        renderer = self._renderers.get(bool(request.tools), steering)
        head = renderer.digest_head(request, steering).whole
        start = renderer.replay_start(request.turns, bool(request.tools))
        recalled = await self._recaller.resolve(walk, replace(scope, head=head, start=start))
        loop = 0
        if self._settings.resume_drop_thinking is not None:
            loop = find_loop_start(request.turns)
        clears = self._should_clear_reasoning(request, recalled, loop)
        if clears:
            request, recalled = _strip_reasoning(request, loop), recalled.without_entries(loop)
        new = renderer.count_new_chars(request, recalled)
        try:
            prompt = await run_in_thread(
                new,
                lambda: renderer.render(request, recalled, steering),
                min_size=self._min_offload_chars,
            )
        except RenderError as error:
            message = f"The model's chat template refuses this conversation: {error}"
            raise InvalidRequest(message) from error
        return request, prompt, owner, clears

    def create_generation(
        self, prepared: PreparedRequest, new_call_id: CallIdFactory
    ) -> Generation:
        """The answer to a prepared request, ready to be fed."""
        return Generation(
            self._output_spec,
            prepared.prompt,
            prepared.owner,
            prepared.request,
            entry_id=create_entry_id(),
            new_call_id=new_call_id,
        )

    async def record(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Keeps the turn that was generated."""
        entry = generation.build_entry(self._clock())
        seen = prepared.prefix_snapshot
        self._prefix_diagnostics.record_output(
            seen.session, generation.ids, turn=entry.chain, prompt=seen
        )
        await self._ledger.record(entry, prepared.prompt.ids)

    async def predict_next_prompt(
        self, prepared: PreparedRequest, generation: Generation
    ) -> "array[int] | None":
        """How the next prompt will begin if a user speaks next; None if the engine has all of it.

        A template that drops the thoughts of finished turns lets the next prompt leave this one
        long before its end.
        """
        turns = (*prepared.request.turns, Turn("assistant", generation.message().blocks))
        ids = await self.shared_prompt_prefix(
            msgspec.structs.replace(prepared.request, turns=turns)
        )
        known = count_common_ids(ids, prepared.prompt.ids + generation.ids)
        return ids if len(ids) - known >= MIN_WARM_TOKENS else None

    async def shared_prompt_prefix(self, request: Request) -> "array[int]":
        """How every prompt begins that goes on from this request with a user's words.

        Where nobody has spoken yet, more may be said to the system before.
        """
        shared: array[int] | None = None
        for asked in _possible_continuations(request):
            _, prompt, _, _ = await self._render(asked)
            shared = (
                prompt.ids if shared is None else shared[: count_common_ids(shared, prompt.ids)]
            )
        assert shared is not None
        return shared

    async def close(self) -> None:
        """Writes down what is still to be written."""
        await self._ledger.close()

    def _should_clear_reasoning(
        self, request: Request, recalled: RecognizedHistory, loop: int
    ) -> bool:
        """Whether a session comes back so late that nothing of it can be cached any more.

        Only thoughts of finished loops may go, and only if there are any.
        """
        after, last = self._settings.resume_drop_thinking, recalled.parent
        if after is None or last is None or self._clock() - last.created < after:
            return False
        earlier = [turn for turn in request.turns[:loop] if turn.role == "assistant"]
        return bool(earlier) and self._model.reasoning_parser is not None

    def _owner_of(self, tenant: str) -> TurnOwner:
        if tenant not in self._owners:
            self._owners[tenant] = TurnOwner(tenant, self._keyring.chain_key(tenant), self._sealer)
        return self._owners[tenant]

    def _resolve_switches(self, thinking: Thinking, *, tools: bool) -> dict[str, Any]:
        speech = self._model.tool_chat_template if tools else self._model.chat_template
        return resolve_switches(
            thinking,
            speech.profile,
            reasoning_parser=self._model.reasoning_parser,
            default_mode=self._settings.default_thinking,
            server_switches=self._settings.template_switches,
        )


def _inherit_thinking(request: Request, last: LedgerEntry | None) -> Request:
    """The request with what it leaves unsaid about thoughts as the line that it goes on had it."""
    if last is None or not last.thinking:
        return request
    before = msgspec.json.decode(last.thinking, type=Thinking)
    return msgspec.structs.replace(request, thinking=merge_thinking(before, request.thinking))


def _lacks_text(block: Block) -> bool:
    """Whether a block has no text that the model could read."""
    if isinstance(block, DocumentBlock):
        return block.text is None
    return isinstance(block, ImageBlock)


def _strip_reasoning(request: Request, until: int) -> Request:
    """The request without the thoughts of the turns before a place."""
    cleared = tuple(
        Turn(turn.role, tuple(b for b in turn.blocks if not isinstance(b, ReasoningBlock)))
        for turn in request.turns[:until]
    )
    return msgspec.structs.replace(request, turns=(*cleared, *request.turns[until:]))


def _snapshot_prefix(
    request: Request, prompt: Prompt, harness: str, *, deliberate: bool
) -> PromptObservation:
    """What the doctor needs to know. Tenants are never set beside each other."""
    identity, head = request.identity, prompt.head
    return PromptObservation(
        session=f"{identity.tenant}\0{identity.session}" if identity.session else None,
        harness=f"{identity.tenant}\0{harness}",
        ids=prompt.ids,
        system=head.system,
        tools=head.tools,
        switches=head.switches,
        turns=prompt.history.digests,
        reused_tokens=prompt.reused_tokens,
        policy_dropped=prompt.reasoning_dropped,
        reasoning_cleared=deliberate,
    )


def _possible_continuations(request: Request) -> Iterator[Request]:
    """Ways in which it may go on: what their prompts share does not depend on what is said."""
    for text in ("a", "b"):
        turns = (*request.turns, Turn("user", (TextBlock(text),)))
        yield msgspec.structs.replace(request, turns=turns)
    if all(turn.role in ("system", "developer") for turn in request.turns):
        more = Turn("developer", (TextBlock("b"),))
        yield msgspec.structs.replace(request, turns=(*request.turns, more, turns[-1]))
