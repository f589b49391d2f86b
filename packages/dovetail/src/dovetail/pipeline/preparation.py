"""Prepare decoded requests for the engine, and record the generated turns in the ledger."""

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from dovetail.ledger.entry import LedgerEntry, create_entry_id, normalize_session_name
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.store import OpenTurn
from dovetail.models.loader import Model
from dovetail.pipeline.concurrency import MIN_OFFLOAD_SIZE
from dovetail.pipeline.generation import Generation, OutputSpec, TurnOwner
from dovetail.pipeline.rendering import ConversationRenderer, PromptSettings, RenderedRequest
from dovetail.prompt.history_index import history_keys, text_key
from dovetail.prompt.moved_content import NO_TURNS, SentTurns
from dovetail.prompt.prefix_diagnostics import (
    PrefixDiagnostics,
    PromptObservation,
    count_common_ids,
)
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.prompt import Prompt
from dovetail_model import (
    AppliedEdit,
    Identity,
    Request,
    TextBlock,
    Thinking,
    Turn,
)

CallIdFactory = Callable[[], str]
MIN_WARM_TOKENS = 16  # the block size of an engine's prefix cache


@dataclass(frozen=True)
class PreparedRequest:
    """A request ready for the engine.

    `diagnosis` compares its prompt with its session's last. `applied_edits` are the context edits
    in force. `turns` are its turns before normalization.
    """

    request: Request
    prompt: Prompt
    owner: TurnOwner
    prefix_snapshot: PromptObservation
    diagnosis: PrefixReport
    applied_edits: tuple[AppliedEdit, ...] = ()
    turns: SentTurns = NO_TURNS


class RequestPreparer(Protocol):
    """Prepares the prompts of requests and records the generated turns.

    A turn is opened before its first event is emitted, and recorded before its finish is emitted:
    other processes, and this one after a crash, must know about it. A turn of which nothing was
    emitted is closed instead.
    """

    async def start(self) -> None: ...

    async def prepare(
        self, request: Request, harness: str = "", max_tokens: int | None = None
    ) -> PreparedRequest: ...

    async def render(self, request: Request, max_tokens: int | None = None) -> "array[int]": ...

    async def count_tokens(
        self, request: Request, window: int | None = None, *, edit: bool = True
    ) -> int: ...

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

    def release_session(self, identity: Identity) -> None: ...

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
        settings = settings or PromptSettings()
        self._ledger = ledger
        self._clock = clock
        self._renderer = ConversationRenderer(
            model,
            ledger,
            keyring,
            settings,
            clock,
            min_offload_chars=min_offload_chars,
        )
        self._output_spec = OutputSpec(
            model.tokenizer,
            model.stop_ids,
            model.tool_parser,
            model.reasoning_parser,
            model.fingerprint,
            settings.stop_scope,
        )
        self._prefix_diagnostics = PrefixDiagnostics(decode=model.tokenizer.decode)

    async def start(self) -> None:
        """Connect the ledger before the first request."""
        await self._ledger.start()

    async def prepare(
        self, request: Request, harness: str = "", max_tokens: int | None = None
    ) -> PreparedRequest:
        """Prepare a request for the engine. `harness` names the client, for prefix diagnostics.

        Raises `ContextOverflow` early if a very large request is certain to exceed `max_tokens`.
        The caller must check the length of the prompt nevertheless.
        """
        rendered = await self._renderer.render(request, max_tokens, window=max_tokens)
        snapshot = self._prefix_diagnostics.identify(_snapshot_prefix(rendered, harness))
        diagnosis = self._prefix_diagnostics.compare(snapshot)
        return PreparedRequest(
            rendered.request,
            rendered.prompt,
            rendered.owner,
            snapshot,
            diagnosis,
            rendered.applied_edits,
            rendered.turns,
        )

    async def render(self, request: Request, max_tokens: int | None = None) -> "array[int]":
        """Return the prompt that `prepare` would build. The session is not affected."""
        return (await self._renderer.render(request, max_tokens, window=max_tokens)).prompt.ids

    async def count_tokens(
        self, request: Request, window: int | None = None, *, edit: bool = True
    ) -> int:
        """Count the prompt tokens of a request, with or without context edits.

        A request that has tools but no messages is counted with a one-letter message.
        """
        if not request.turns:
            request = msgspec.structs.replace(request, turns=(Turn("user", (TextBlock("x"),)),))
        return len((await self._renderer.render(request, window=window, edit=edit)).prompt.ids)

    def template_switches(self, thinking: Thinking) -> dict[str, Any]:
        """Return the template switches of a request with tools and these reasoning settings."""
        return self._renderer.resolve_switches(thinking, tools=True)

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
            snapshot.session,
            generation.ids,
            turn=entry.chain,
            prompt=snapshot,
            history_keys=_turn_keys(prepared, generation, entry),
        )
        tail = self._renderer.record_sent(
            prepared.request.identity, prepared.turns, generation.message()
        )
        entry = msgspec.structs.replace(entry, request_tail=tail) if tail else entry
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
            ids = (await self._renderer.render(continuation)).prompt.ids
            shared = ids if shared is None else shared[: count_common_ids(shared, ids)]
        assert shared is not None
        return shared

    def release_session(self, identity: Identity) -> None:
        """Discard what is cached for a session that has ended. Its turns stay in the ledger."""
        if identity.session:
            self._prefix_diagnostics.release(_session_name(identity))
            self._ledger.release_session(identity.tenant, identity.session)

    async def close(self) -> None:
        """Flush and close the ledger."""
        await self._ledger.close()


def _open_turn(prepared: PreparedRequest, generation: Generation) -> OpenTurn:
    return OpenTurn(
        tenant=prepared.owner.tenant,
        id=generation.entry_id,
        chain_before=prepared.prompt.history.chain,
        session=normalize_session_name(prepared.request.identity.session or ""),
    )


def _turn_keys(
    prepared: PreparedRequest, generation: Generation, entry: LedgerEntry
) -> Iterator[bytes]:
    """Yield the keys by which a client without a session id continues a generated turn."""
    yield entry.id.encode()
    yield entry.chain
    turn = Turn("assistant", generation.message().blocks)
    if (key := text_key(prepared.owner.tenant, turn)) is not None:
        yield key


def _snapshot_prefix(rendered: RenderedRequest, harness: str) -> PromptObservation:
    """Collect the data for prefix diagnostics. Names include the tenant to separate tenants."""
    identity, prompt = rendered.request.identity, rendered.prompt
    head = prompt.head
    return PromptObservation(
        session=_session_name(identity) if identity.session else None,
        harness=f"{identity.tenant}\0{harness}",
        ids=prompt.ids,
        system=head.system,
        tools=head.tools,
        switches=head.switches,
        turns=prompt.history.digests,
        reused_tokens=prompt.reused_tokens,
        policy_dropped=prompt.reasoning_dropped,
        reasoning_cleared=rendered.reasoning_cleared,
        history_keys=()
        if identity.session
        else history_keys(identity.tenant, rendered.request.turns, prompt.history),
        context_edited=rendered.context_edited,
    )


def _session_name(identity: Identity) -> str:
    return f"{identity.tenant}\0{identity.session}"


def _possible_continuations(request: Request) -> Iterator[Request]:
    """Yield possible continuations. Their common prefix does not depend on the new text."""
    for text in ("a", "b"):
        turns = (*request.turns, Turn("user", (TextBlock(text),)))
        yield msgspec.structs.replace(request, turns=turns)
    if all(turn.role in ("system", "developer") for turn in request.turns):
        more = Turn("developer", (TextBlock("b"),))
        yield msgspec.structs.replace(request, turns=(*request.turns, more, turns[-1]))
