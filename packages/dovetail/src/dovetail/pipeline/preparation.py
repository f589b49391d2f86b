"""Prepare prompts for decoded requests and record the generated turns in the ledger.

Request ─normalize─▶ Request ─recognize─▶ known turns ─render─▶ Prompt(ids)
"""

import threading
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from dovetail.ledger.entry import LedgerEntry, create_entry_id, normalize_session_name
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
from dovetail.ledger.store import OpenTurn
from dovetail.models.loader import Model, RendererCache
from dovetail.models.thinking import merge_thinking, resolve_switches
from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, MIN_OFFLOAD_SIZE, run_in_thread
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.pipeline.token_bound import check_prompt_fits, count_text_chars
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prefix_diagnostics import (
    PrefixDiagnostics,
    PromptObservation,
    count_common_ids,
)
from dovetail.prompt.prefix_report import PrefixReport
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
_MIN_OFFLOAD_TURNS = 1000  # 1 to 10 ms of normalization
MIN_WARM_TOKENS = 16  # the block size of an engine's prefix cache


@dataclass(frozen=True)
class PromptSettings:
    """The operator's settings. `hide_unusable_tools` omits tools if `tool_choice` is `none`."""

    replay: ReplayPolicy = "auto"
    normalization: NormalizationOptions = field(default_factory=NormalizationOptions)
    default_thinking: Literal["enabled", "disabled"] | None = None
    template_switches: Mapping[str, Any] = field(default_factory=dict)
    resume_drop_thinking: float | None = None
    hide_unusable_tools: bool = False


@dataclass(frozen=True)
class PreparedRequest:
    """A request ready for the engine. `diagnosis` compares its prompt with its session's last."""

    request: Request
    prompt: Prompt
    owner: TurnOwner
    prefix_snapshot: PromptObservation
    diagnosis: PrefixReport


class RequestPreparer(Protocol):
    """Prepares the prompts of requests and records the generated turns.

    A turn is opened before its first event is emitted, and recorded before its finish is emitted:
    other processes, and this one after a crash, must know about it. A turn of which nothing was
    emitted is closed instead.
    """

    async def prepare(
        self, request: Request, harness: str = "", max_tokens: int | None = None
    ) -> PreparedRequest: ...

    async def count_tokens(self, request: Request) -> int: ...

    def template_switches(self, thinking: Thinking) -> dict[str, Any]: ...

    def create_generation(
        self, prepared: PreparedRequest, new_call_id: CallIdFactory
    ) -> Generation: ...

    async def open_turn(self, prepared: PreparedRequest, generation: Generation) -> None: ...

    async def close_turn(self, prepared: PreparedRequest, generation: Generation) -> None: ...

    async def record(self, prepared: PreparedRequest, generation: Generation) -> None: ...

    async def predict_next_prompt(
        self, prepared: PreparedRequest, generation: Generation
    ) -> "array[int] | None": ...

    async def shared_prompt_prefix(self, request: Request) -> "array[int] | None": ...

    async def close(self) -> None: ...


class ChatPreparer:
    """Prepares the requests of one model and records its turns."""

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
        # Used in threads, and therefore not shared with the event loop.
        self._large_normalizer = PromptNormalizer(self._settings.normalization)
        self._large_lock = threading.Lock()
        self._renderers = RendererCache(model)
        restorer = SealRestorer(self._sealer, self._renderers.default.encode_blocks)
        self._recognizer = TurnRecognizer(ledger, restorer, replay=self._settings.replay)
        self._output_spec = OutputSpec(
            model.tokenizer,
            model.stop_ids,
            model.tool_parser,
            model.reasoning_parser,
            model.fingerprint,
        )
        self._owners: dict[str, TurnOwner] = {}
        self._prefix_diagnostics = PrefixDiagnostics(decode=model.tokenizer.decode)

    async def prepare(
        self, request: Request, harness: str = "", max_tokens: int | None = None
    ) -> PreparedRequest:
        """Prepare a request for the engine. `harness` names the client, for prefix diagnostics.

        Raises `ContextOverflow` early if a very large request is certain to exceed `max_tokens`.
        The caller must check the length of the prompt nevertheless.
        """
        request, prompt, owner, cleared = await self._render(request, max_tokens)
        snapshot = _snapshot_prefix(request, prompt, harness, reasoning_cleared=cleared)
        return PreparedRequest(
            request, prompt, owner, snapshot, self._prefix_diagnostics.compare(snapshot)
        )

    async def count_tokens(self, request: Request) -> int:
        """Count the prompt tokens of a request.

        A request that has tools but no messages is counted with a one-letter message.
        """
        if not request.turns:
            request = msgspec.structs.replace(request, turns=(Turn("user", (TextBlock("x"),)),))
        _, prompt, _, _ = await self._render(request)
        return len(prompt.ids)

    def template_switches(self, thinking: Thinking) -> dict[str, Any]:
        """Return the template switches of a request with tools and these reasoning settings."""
        return self._resolve_switches(thinking, tools=True)

    async def _normalize(self, request: Request, max_tokens: int | None) -> Request:
        """Normalize a request. A very large one uses a thread, and is checked for `max_tokens`."""
        chars = count_text_chars(request)
        if chars < MIN_HUGE_SIZE and len(request.turns) < _MIN_OFFLOAD_TURNS:
            return self._normalizer.normalize(request)

        def work() -> Request:
            with self._large_lock:
                normalized = self._large_normalizer.normalize(request)
            if max_tokens is not None:
                check_prompt_fits(normalized, self._model.tokenizer, max_tokens)
            return normalized

        return await run_in_thread(chars, work, min_size=0)

    async def _render(
        self, request: Request, max_tokens: int | None = None
    ) -> tuple[Request, Prompt, TurnOwner, bool]:
        """Return the normalized request, its prompt, its owner, and if reasoning was cleared."""
        request = await self._normalize(request, max_tokens)
        if not request.turns and not request.system:
            raise InvalidRequest("The request contains no messages.", param="messages")
        newest = request.turns[-1].blocks if request.turns else ()
        if any(map(_lacks_text, newest)):
            name = request.model or self._model.name
            raise Unsupported(f"The model {name} accepts only text, not images or files.")
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
        match = await self._recognizer.match_turns(request.turns, scope)
        request = _inherit_thinking(request, await self._recognizer.find_last_entry(match, scope))
        switches = self._resolve_switches(request.thinking, tools=bool(request.tools))
        renderer = self._renderers.get(bool(request.tools), switches)
        head = renderer.digest_head(request, switches).whole
        start = renderer.replay_start(request.turns, bool(request.tools))
        history = await self._recognizer.resolve(match, replace(scope, head=head, start=start))
        loop_start = 0
        if self._settings.resume_drop_thinking is not None:
            loop_start = find_loop_start(request.turns)
        clears = self._should_clear_reasoning(request, history, loop_start)
        if clears:
            request = _strip_reasoning(request, loop_start)
            history = history.without_entries(loop_start)
        new_chars = renderer.count_new_chars(request, history)
        try:
            prompt = await run_in_thread(
                new_chars,
                lambda: renderer.render(request, history, switches),
                min_size=self._min_offload_chars,
            )
        except RenderError as error:
            message = f"The chat template of the model rejected the conversation: {error}"
            raise InvalidRequest(message) from error
        return request, prompt, owner, clears

    def create_generation(
        self, prepared: PreparedRequest, new_call_id: CallIdFactory
    ) -> Generation:
        """Create the generation of a prepared request."""
        return Generation(
            self._output_spec,
            prepared.prompt,
            prepared.owner,
            prepared.request,
            entry_id=create_entry_id(),
            new_call_id=new_call_id,
        )

    async def open_turn(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Announce a turn to the ledger."""
        await self._ledger.open_turn(_open_turn(prepared, generation))

    async def close_turn(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Withdraw a turn of which nothing was emitted."""
        await self._ledger.close_turn(_open_turn(prepared, generation))

    async def record(self, prepared: PreparedRequest, generation: Generation) -> None:
        """Record the generated turn."""
        entry = generation.build_entry(self._clock())
        snapshot = prepared.prefix_snapshot
        self._prefix_diagnostics.record_output(
            snapshot.session, generation.ids, turn=entry.chain, prompt=snapshot
        )
        await self._ledger.record(entry, prepared.prompt.ids)

    async def predict_next_prompt(
        self, prepared: PreparedRequest, generation: Generation
    ) -> "array[int] | None":
        """Predict the prefix of the next prompt after a user turn, or None if it is cached already.

        If a template drops the reasoning of finished turns, the next prompt diverges from this one
        long before its end.
        """
        turns = (*prepared.request.turns, Turn("assistant", generation.message().blocks))
        ids = await self.shared_prompt_prefix(
            msgspec.structs.replace(prepared.request, turns=turns)
        )
        known = count_common_ids(ids, prepared.prompt.ids + generation.ids)
        return ids if len(ids) - known >= MIN_WARM_TOKENS else None

    async def shared_prompt_prefix(self, request: Request) -> "array[int]":
        """Return the common prefix of all prompts that continue this request with a user turn.

        Before the first user turn, further system turns may also follow.
        """
        shared: array[int] | None = None
        for continuation in _possible_continuations(request):
            _, prompt, _, _ = await self._render(continuation)
            shared = (
                prompt.ids if shared is None else shared[: count_common_ids(shared, prompt.ids)]
            )
        assert shared is not None
        return shared

    async def close(self) -> None:
        """Flush and close the ledger."""
        await self._ledger.close()

    def _should_clear_reasoning(
        self, request: Request, history: RecognizedHistory, loop_start: int
    ) -> bool:
        """Return whether a session is resumed so late that its prefix is no longer cached.

        Only the reasoning of finished loops is cleared, so there must be a finished loop.
        """
        after, last = self._settings.resume_drop_thinking, history.parent
        if after is None or last is None or self._clock() - last.created < after:
            return False
        earlier = [turn for turn in request.turns[:loop_start] if turn.role == "assistant"]
        return bool(earlier) and self._model.reasoning_parser is not None

    def _owner_of(self, tenant: str) -> TurnOwner:
        if tenant not in self._owners:
            self._owners[tenant] = TurnOwner(tenant, self._keyring.chain_key(tenant), self._sealer)
        return self._owners[tenant]

    def _resolve_switches(self, thinking: Thinking, *, tools: bool) -> dict[str, Any]:
        template = self._model.tool_chat_template if tools else self._model.chat_template
        return resolve_switches(
            thinking,
            template.profile,
            reasoning_parser=self._model.reasoning_parser,
            default_mode=self._settings.default_thinking,
            server_switches=self._settings.template_switches,
        )


def _open_turn(prepared: PreparedRequest, generation: Generation) -> OpenTurn:
    return OpenTurn(
        tenant=prepared.owner.tenant,
        id=generation.entry_id,
        chain_before=prepared.prompt.history.chain,
        session=normalize_session_name(prepared.request.identity.session or ""),
    )


def _inherit_thinking(request: Request, last: LedgerEntry | None) -> Request:
    """Fill in missing reasoning settings from the turn that the request continues."""
    if last is None or not last.thinking:
        return request
    before = msgspec.json.decode(last.thinking, type=Thinking)
    return msgspec.structs.replace(request, thinking=merge_thinking(before, request.thinking))


def _lacks_text(block: Block) -> bool:
    """Return whether a block has no text for the model."""
    if isinstance(block, DocumentBlock):
        return block.text is None
    return isinstance(block, ImageBlock)


def _strip_reasoning(request: Request, until: int) -> Request:
    """Remove the reasoning of the turns before `until`."""
    cleared = tuple(
        Turn(turn.role, tuple(b for b in turn.blocks if not isinstance(b, ReasoningBlock)))
        for turn in request.turns[:until]
    )
    return msgspec.structs.replace(request, turns=(*cleared, *request.turns[until:]))


def _snapshot_prefix(
    request: Request, prompt: Prompt, harness: str, *, reasoning_cleared: bool
) -> PromptObservation:
    """Collect the data for prefix diagnostics. Names include the tenant to separate tenants."""
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
        reasoning_cleared=reasoning_cleared,
    )


def _possible_continuations(request: Request) -> Iterator[Request]:
    """Yield possible continuations. Their common prefix does not depend on the new text."""
    for text in ("a", "b"):
        turns = (*request.turns, Turn("user", (TextBlock(text),)))
        yield msgspec.structs.replace(request, turns=turns)
    if all(turn.role in ("system", "developer") for turn in request.turns):
        more = Turn("developer", (TextBlock("b"),))
        yield msgspec.structs.replace(request, turns=(*request.turns, more, turns[-1]))
