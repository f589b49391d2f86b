"""Render the prompt of a request: recognize its turns, then render what is new.

Request ─normalize─▶ Request ─recognize─▶ known turns ─render─▶ Prompt(ids)
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from dovetail.ledger.entry import LedgerEntry
from dovetail.ledger.history_match import HistoryMatch
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
from dovetail.models.loader import Model, RendererCache
from dovetail.models.thinking import merge_thinking, resolve_switches
from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, MIN_OFFLOAD_SIZE, run_in_thread
from dovetail.pipeline.documents import DocumentReader, lacks_text, max_document_chars
from dovetail.pipeline.stop_sequences import StopScope
from dovetail.pipeline.token_bound import check_prompt_fits, count_text_chars
from dovetail.pipeline.turn_record import TurnOwner
from dovetail.prompt.conversation_state import (
    EMPTY_RECORD,
    StateRecord,
    decode_state,
    digest_edits,
)
from dovetail.prompt.conversation_view import ConversationView, build_view
from dovetail.prompt.normalization import PromptNormalizer
from dovetail.prompt.prompt import Prompt
from dovetail.prompt.renderer import find_loop_start
from dovetail.prompt.template import RenderError
from dovetail.prompt.tool_plan import ToolPlanner
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import (
    InvalidRequest,
    ReasoningBlock,
    Request,
    Thinking,
    ToolSpec,
    Turn,
    Unsupported,
)

_MIN_OFFLOAD_TURNS = 1000  # 1 to 10 ms of normalization


@dataclass(frozen=True)
class PromptSettings:
    """The operator's settings.

    `hide_unusable_tools`: omit tools if `tool_choice` is `none`.
    `images`: whether images and files that the model cannot read are replaced or rejected.
    `max_context`: the operator's limit of the context length.
    `stop_scope`: where stop sequences are found.
    """

    replay: ReplayPolicy = "auto"
    normalization: NormalizationOptions = field(default_factory=NormalizationOptions)
    default_thinking: Literal["enabled", "disabled"] | None = None
    template_switches: Mapping[str, Any] = field(default_factory=dict)
    resume_drop_thinking: float | None = None
    hide_unusable_tools: bool = False
    images: Literal["replace", "reject"] = "replace"
    max_context: int | None = None
    stop_scope: StopScope = "text"


@dataclass(frozen=True)
class RenderedRequest:
    """A request and its prompt.

    `request`: the client's normalized messages, with the tools that the model may call.
    `reasoning_cleared`: whether earlier reasoning was removed because the session rested.
    """

    request: Request
    prompt: Prompt
    owner: TurnOwner
    reasoning_cleared: bool


class ConversationRenderer:
    """Renders the prompts of one model."""

    def __init__(
        self,
        model: Model,
        ledger: Ledger,
        keyring: Keyring,
        settings: PromptSettings,
        clock: Callable[[], float],
        *,
        min_offload_chars: int = MIN_OFFLOAD_SIZE,
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._min_offload_chars = min_offload_chars
        self._keyring = keyring
        self._settings = settings
        self._clock = clock
        self._sealer = Sealer(keyring)
        self._normalizer = PromptNormalizer(settings.normalization)
        # Used in threads, and therefore not shared with the event loop.
        self._large_normalizer = PromptNormalizer(settings.normalization)
        self._large_lock = threading.Lock()
        self._renderers = RendererCache(model)
        restorer = SealRestorer(self._sealer, self._renderers.default.encode_blocks)
        self._recognizer = TurnRecognizer(ledger, restorer, replay=settings.replay)
        self._tool_planner = ToolPlanner(self._renderers.default.tool_notation)
        self._owners: dict[str, TurnOwner] = {}
        self._documents = DocumentReader(
            max_document_chars(settings.max_context, model.context_length)
        )

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

    async def render(self, request: Request, max_tokens: int | None = None) -> RenderedRequest:
        """Render the prompt of a request."""
        request = await self._normalize(request, max_tokens)
        self._check_request(request)
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
        last = await self._recognizer.find_last_entry(match, scope)
        request = _inherit_thinking(request, last)
        view = build_view(
            request,
            await self._load_state(last),
            _entry_positions(match),
            self._tool_planner,
            match.chars if last is not None else 0,
        )
        prompt, cleared = await self._render_view(view, match, scope)
        return RenderedRequest(_with_tools(request, view.callable_tools), prompt, owner, cleared)

    def _check_request(self, request: Request) -> None:
        if not request.turns and not request.system:
            raise InvalidRequest("The request contains no messages.", param="messages")
        newest = request.turns[-1].blocks if request.turns else ()
        if self._settings.images == "reject" and any(map(lacks_text, newest)):
            name = request.model or self._model.name
            raise Unsupported(f"The model {name} accepts only text, not images or files.")

    async def _render_view(
        self, view: ConversationView, match: HistoryMatch, scope: RecognitionScope
    ) -> tuple[Prompt, bool]:
        """Render the prompt of a view. Also returns whether earlier reasoning was cleared."""
        request, media_notes = await self._documents.read(view.request)
        switches = self.resolve_switches(request.thinking, tools=bool(request.tools))
        renderer = self._renderers.get(bool(request.tools), switches)
        edits = digest_edits(view.record.state)
        head = renderer.digest_head(request, switches, edits).whole
        start = renderer.replay_start(request.turns, bool(request.tools))
        history = await self._recognizer.resolve(match, replace(scope, head=head, start=start))
        if notes := (*view.notes, *media_notes):
            history = replace(history, notes=(*notes, *history.notes))
        loop_start = 0
        if self._settings.resume_drop_thinking is not None:
            loop_start = find_loop_start(request.turns)
        cleared = self._should_clear_reasoning(request, history, loop_start)
        if cleared:
            request = _strip_reasoning(request, loop_start)
            history = history.without_entries(loop_start)
        new_chars = renderer.count_new_chars(request, history)
        try:
            prompt = await run_in_thread(
                new_chars,
                lambda: renderer.render(request, history, switches, view.record),
                min_size=self._min_offload_chars,
            )
        except RenderError as error:
            message = f"The chat template of the model rejected the conversation: {error}"
            raise InvalidRequest(message) from error
        return prompt, cleared

    async def _load_state(self, last: LedgerEntry | None) -> StateRecord:
        """Return the state of the conversation as of its last known turn."""
        if last is None:
            return EMPTY_RECORD
        if not last.state and last.state_entry:
            last = await self._ledger.get(last.tenant, last.state_entry)
        if last is None or not last.state:
            return EMPTY_RECORD
        return decode_state(last.state, last.id)

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

    def resolve_switches(self, thinking: Thinking, *, tools: bool) -> dict[str, Any]:
        template = self._model.tool_chat_template if tools else self._model.chat_template
        return resolve_switches(
            thinking,
            template.profile,
            reasoning_parser=self._model.reasoning_parser,
            default_mode=self._settings.default_thinking,
            server_switches=self._settings.template_switches,
        )


def _inherit_thinking(request: Request, last: LedgerEntry | None) -> Request:
    """Fill in missing reasoning settings from the turn that the request continues."""
    if last is None or not last.thinking:
        return request
    before = msgspec.json.decode(last.thinking, type=Thinking)
    return msgspec.structs.replace(request, thinking=merge_thinking(before, request.thinking))


def _entry_positions(match: HistoryMatch) -> dict[str, int]:
    """Return the index of each recognized turn by its entry id."""
    return {id: at for at in match.assistant_indexes if (id := match.steps[at].match.entry_id)}


def _with_tools(request: Request, tools: tuple[ToolSpec, ...]) -> Request:
    return request if tools is request.tools else msgspec.structs.replace(request, tools=tools)


def _strip_reasoning(request: Request, until: int) -> Request:
    """Remove the reasoning of the turns before `until`."""
    cleared = tuple(
        Turn(turn.role, tuple(b for b in turn.blocks if not isinstance(b, ReasoningBlock)))
        for turn in request.turns[:until]
    )
    return msgspec.structs.replace(request, turns=(*cleared, *request.turns[until:]))
