"""Render the prompt of a request: recognize its turns, then render what is new.

Request ─normalize─▶ Request ─recognize─▶ known turns ─render─▶ Prompt(ids)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import msgspec

from dovetail.ledger.entry import LedgerEntry, has_reasoning
from dovetail.ledger.history_match import HistoryMatch
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.recognition import ReplayPolicy, TurnRecognizer
from dovetail.ledger.recognized_history import RecognitionScope
from dovetail.ledger.restoration import SealRestorer
from dovetail.ledger.seal import Sealer
from dovetail.models.loader import Model, RendererCache
from dovetail.models.thinking import merge_thinking, resolve_switches
from dovetail.pipeline.concurrency import MIN_HUGE_SIZE, MIN_OFFLOAD_SIZE, run_in_thread
from dovetail.pipeline.context_editor import ContextEditor
from dovetail.pipeline.documents import DocumentReader, lacks_text, max_document_chars
from dovetail.pipeline.moved_content import MovedContentKeeper
from dovetail.pipeline.normalization import RequestNormalizer
from dovetail.pipeline.stop_sequences import StopScope
from dovetail.pipeline.token_bound import check_can_fit, count_text_chars
from dovetail.pipeline.turn_record import TurnOwner
from dovetail.prompt.context_edits import ContextEdits, apply_edits, clear_reasoning_before
from dovetail.prompt.conversation_state import (
    EMPTY_RECORD,
    StateRecord,
    decode_state,
    digest_edits,
)
from dovetail.prompt.conversation_view import ConversationView, ViewOptions, build_view
from dovetail.prompt.moved_content import NO_TURNS, SentTurns
from dovetail.prompt.prompt import Prompt
from dovetail.prompt.reasoning_retention import (
    ReasoningPolicy,
    apply_retention,
    find_loop_start,
)
from dovetail.prompt.renderer import PromptRenderer
from dovetail.prompt.request_tail import encode_tail
from dovetail.prompt.template import RenderError
from dovetail.prompt.tool_plan import ToolPlanner
from dovetail.prompt.volatile_text import NormalizationOptions
from dovetail_model import (
    AppliedEdit,
    ContextManagement,
    Identity,
    InvalidRequest,
    Message,
    ReasoningBlock,
    ReasoningRetention,
    Request,
    Thinking,
    ToolSpec,
    Unsupported,
)
from dovetail_parsers import default_retention

NO_CONTEXT = ContextManagement()
TRUNCATED_NOTE = "truncated_turns:"


@dataclass(frozen=True)
class PromptSettings:
    """The operator's settings.

    `hide_unusable_tools`: omit tools if `tool_choice` is `none`.
    `keep_moved_content`: keep content that a client moves where the model read it.
    `images`: whether images and files that the model cannot read are replaced or rejected.
    `max_context`: the operator's limit of the context length.
    `stop_scope`: where stop sequences are found.
    `reasoning_retention`: which turns keep their reasoning; None means the default of the parser
    family.
    `identical_calls`: after how many identical calls with identical results the model reads a
    notice; None means never.
    """

    replay: ReplayPolicy = "auto"
    normalization: NormalizationOptions = field(default_factory=NormalizationOptions)
    default_thinking: Literal["enabled", "disabled"] | None = None
    template_switches: Mapping[str, Any] = field(default_factory=dict)
    resume_drop_thinking: float | None = None
    reasoning_retention: ReasoningRetention | None = None
    hide_unusable_tools: bool = False
    keep_moved_content: bool = True
    images: Literal["replace", "reject"] = "replace"
    max_context: int | None = None
    stop_scope: StopScope = "text"
    identical_calls: int | None = None


@dataclass(frozen=True)
class RenderedRequest:
    """A request and its prompt.

    `request`: the client's normalized messages, with the tools that the model may call.
    `reasoning_cleared`: whether earlier reasoning was removed because the session rested.
    `context_edited`: whether the edits differ from those of the conversation so far.
    `applied_edits`: the effect of the context edits that the client requested.
    `turns`: the turns before normalization, for `record_sent`.
    """

    request: Request
    prompt: Prompt
    owner: TurnOwner
    reasoning_cleared: bool
    context_edited: bool = False
    applied_edits: tuple[AppliedEdit, ...] = ()
    turns: SentTurns = NO_TURNS


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
        self._view_options = ViewOptions(settings.keep_moved_content, settings.identical_calls)
        self._sealer = Sealer(keyring)
        self._normalizer = RequestNormalizer(model.tokenizer, settings.normalization)
        self._renderers = RendererCache(model)
        restorer = SealRestorer(self._sealer, self._renderers.default.encode_blocks)
        self._recognizer = TurnRecognizer(ledger, restorer, replay=settings.replay)
        self._tool_planner = ToolPlanner(self._renderers.default.tool_notation)
        self._moved = (
            MovedContentKeeper(self._recognizer, model.fingerprint)
            if settings.keep_moved_content
            else None
        )
        self._owners: dict[str, TurnOwner] = {}
        self._documents = DocumentReader(
            max_document_chars(settings.max_context, model.context_length)
        )

    async def _read_documents(
        self, request: Request, max_tokens: int | None, *, in_turns: bool
    ) -> tuple[Request, tuple[str, ...]]:
        """Replace documents by their texts, which are checked for `max_tokens` if they are long."""
        shown, notes = await self._documents.read(request, in_turns=in_turns)
        if shown is not request and (chars := count_text_chars(shown)) >= MIN_HUGE_SIZE:
            tokenizer = self._model.tokenizer
            await run_in_thread(chars, lambda: check_can_fit(shown, tokenizer, max_tokens))
        return shown, notes

    async def render(
        self,
        request: Request,
        max_tokens: int | None = None,
        window: int | None = None,
        *,
        edit: bool = True,
    ) -> RenderedRequest:
        """Render the prompt of a request.

        `window` is the size of the context window. Without `edit`, no context edit is in force.
        """
        sent = request.turns
        request = await self._moved.restore(request) if self._moved is not None else request
        used = request.turns
        request = await self._normalizer.normalize(request, max_tokens)
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
            match,
            self._tool_planner,
            last,
            self._view_options,
        )
        # A last turn that the model is to continue is not matched.
        in_turns = match.has_media or len(match.steps) < len(request.turns)
        shown, notes = await self._read_documents(view.request, max_tokens, in_turns=in_turns)
        if shown is not view.request or notes:
            view = replace(view, request=shown, notes=(*view.notes, *notes))
        job = _RenderJob(view, match, scope, *self._resolve_renderer(shown))
        edits = self._edits_in_force(job, last) if edit else job.no_edits
        before = view.record.state.edits
        editor = ContextEditor(
            view.request if edit else msgspec.structs.replace(view.request, context=NO_CONTEXT),
            lambda edits: self._render_view(job, edits),
            await self._find_reasoning_turns(job, edits) if request.context.edits else (),
            window,
            lambda turns: self._tool_planner.describe_missing(
                view.record.state, view.callable_tools, turns
            ),
        )
        prompt, edits = await editor.edit(edits)
        state = msgspec.structs.replace(view.record.state, edits=edits)
        return RenderedRequest(
            _with_tools(request, view.callable_tools),
            replace(prompt, state=view.record.with_state(state)),
            owner,
            edits.rested_until > before.rested_until,
            edits.is_different(before),
            edits.applied(job.policy.start),
            SentTurns(sent, used, match.chars),
        )

    def record_sent(self, identity: Identity, turns: SentTurns, response: Message) -> bytes:
        """Record a request and its response, to find content that the client moves.

        Returns the end of the request for the entry of the response.
        """
        if self._moved is None:
            return b""
        self._moved.record(identity, turns, response)
        return encode_tail(turns.used)

    def _check_request(self, request: Request) -> None:
        if not request.turns and not request.system:
            raise InvalidRequest("The request contains no messages.", param="messages")
        newest = request.turns[-1].blocks if request.turns else ()
        if self._settings.images == "reject" and any(map(lacks_text, newest)):
            name = request.model or self._model.name
            raise Unsupported(f"The model {name} accepts only text, not images or files.")

    def _resolve_renderer(
        self, request: Request
    ) -> tuple[PromptRenderer, dict[str, Any], ReasoningRetention]:
        """Return the renderer of a request, its template switches, and the retention."""
        retention = self._retention(request.thinking)
        switches = self.resolve_switches(request.thinking, tools=bool(request.tools))
        return self._renderers.get(bool(request.tools), switches), switches, retention

    async def _render_view(self, job: "_RenderJob", edits: ContextEdits) -> Prompt:
        """Render the prompt of a view with these context edits."""
        view, policy = job.view, job.policy
        edited = apply_edits(view.request.turns, edits, policy.dropped)
        request = msgspec.structs.replace(view.request, turns=edited.turns)
        record = StateRecord(msgspec.structs.replace(view.record.state, edits=edits))
        head = job.renderer.digest_head(request, job.switches, digest_edits(record.state)).whole
        scope = replace(
            job.scope,
            head=head,
            start=policy.start,
            forced_until=policy.forced_until,
            without_reasoning=edited.without_reasoning,
            without_arguments=edited.without_arguments,
        )
        history = await self._recognizer.resolve(job.match, scope)
        if edited.indexes is not None:
            history = history.select_turns(edited.indexes, edited.turns)
        notes = [*view.notes, *history.notes]
        if edits.dropped is not None:
            notes.append(f"{TRUNCATED_NOTE}{len(view.request.turns) - len(edited.turns)}")
        if notes:
            history = replace(history, notes=tuple(notes))
        new_chars = job.renderer.count_new_chars(request, history)
        try:
            return await run_in_thread(
                new_chars,
                lambda: job.renderer.render(request, history, job.switches, record),
                min_size=self._min_offload_chars,
            )
        except RenderError as error:
            message = f"The chat template of the model rejected the conversation: {error}"
            raise InvalidRequest(message) from error

    def _edits_in_force(self, job: "_RenderJob", last: LedgerEntry | None) -> ContextEdits:
        """Return the edits of the conversation that remain in force for a request.

        A session that is resumed so late that its prefix is no longer cached loses the reasoning of
        its finished tool loops.
        """
        request = job.view.request
        edits = job.view.record.state.edits.restricted_to(request.context)
        edits = msgspec.structs.replace(edits, retention=job.no_edits.retention)
        after = self._settings.resume_drop_thinking
        if after is None or last is None or self._clock() - last.created < after:
            return edits
        until = find_loop_start(request.turns)
        earlier = sum(turn.role == "assistant" for turn in request.turns[:until])
        if not earlier or self._model.reasoning_parser is None:
            return edits
        return clear_reasoning_before(edits, until, earlier, requested=False)

    async def _find_reasoning_turns(self, job: "_RenderJob", edits: ContextEdits) -> list[int]:
        """Return the turns that have reasoning in the prompt: the client's copy may omit it."""
        found: list[int] = []
        start = max(job.policy.start, edits.reasoning_until)
        for at in job.match.assistant_indexes:
            if at < start or at in job.policy.dropped:
                continue
            blocks = job.match.turns[at].blocks
            if any(isinstance(block, ReasoningBlock) and block.text for block in blocks):
                found.append(at)
                continue
            entry = await self._recognizer.load_entry(job.match, at, job.scope)
            if entry is not None and has_reasoning(entry):
                found.append(at)
        return found

    def _retention(self, thinking: Thinking) -> ReasoningRetention:
        """Return which turns keep their reasoning: for a request, by setting, or by family."""
        model = self._model
        return (
            thinking.retention
            or self._settings.reasoning_retention
            or default_retention(model.tool_parser, model.reasoning_parser)
        )

    async def _load_state(self, last: LedgerEntry | None) -> StateRecord:
        """Return the state of the conversation as of its last known turn."""
        if last is None:
            return EMPTY_RECORD
        if not last.state and last.state_entry:
            last = await self._ledger.get(last.tenant, last.state_entry)
        if last is None or not last.state:
            return EMPTY_RECORD
        return decode_state(last.state, last.id)

    def _owner_of(self, tenant: str) -> TurnOwner:
        if tenant not in self._owners:
            self._owners[tenant] = TurnOwner(tenant, self._keyring.chain_key(tenant), self._sealer)
        return self._owners[tenant]

    def resolve_switches(self, thinking: Thinking, *, tools: bool) -> dict[str, Any]:
        """Return the template switches of a request with these reasoning settings."""
        if self._retention(thinking) == "all":
            thinking = msgspec.structs.replace(thinking, keep="all")
        template = self._model.tool_chat_template if tools else self._model.chat_template
        return resolve_switches(
            thinking,
            template.profile,
            reasoning_parser=self._model.reasoning_parser,
            default_mode=self._settings.default_thinking,
            server_switches=self._settings.template_switches,
        )


@dataclass(frozen=True)
class _RenderJob:
    """A recognized request, which may be rendered several times with different context edits."""

    view: ConversationView
    match: HistoryMatch
    scope: RecognitionScope
    renderer: PromptRenderer
    switches: Mapping[str, Any]
    retention: ReasoningRetention

    @property
    def no_edits(self) -> ContextEdits:
        return ContextEdits(retention=self.retention)

    @cached_property
    def template_start(self) -> int:
        """The first turn whose tokens the template preserves."""
        request = self.view.request
        return self.renderer.replay_start(request.turns, bool(request.tools))

    @cached_property
    def policy(self) -> ReasoningPolicy:
        """The turns that keep their reasoning without edits."""
        return apply_retention(self.view.request.turns, self.retention, self.template_start)


def _inherit_thinking(request: Request, last: LedgerEntry | None) -> Request:
    """Fill in missing reasoning settings from the turn that the request continues."""
    if last is None or not last.thinking:
        return request
    before = msgspec.json.decode(last.thinking, type=Thinking)
    return msgspec.structs.replace(request, thinking=merge_thinking(before, request.thinking))


def _with_tools(request: Request, tools: tuple[ToolSpec, ...]) -> Request:
    return request if tools is request.tools else msgspec.structs.replace(request, tools=tools)
