"""Reconstruct prompts: as a plain server renders a request, and as Dovetail would.

An observer does not know which tokens a model generated. They are reconstructed by rendering the
response in the model's own notation or with its template, whichever has as many tokens as the
server reports. If neither matches, or the server reports no counts, the results are estimates.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.turn_digest import compute_digest, digest_history, digest_turn
from dovetail.models.loader import Model, RendererCache
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.messages import MessageBuilder, ToolNames, format_tools
from dovetail.prompt.prefix_diagnostics import PrefixDiagnostics, PromptObservation
from dovetail.prompt.prefix_report import PrefixReport
from dovetail.prompt.template import RenderError
from dovetail.prompt.tool_fallback import to_plain_messages
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import ReasoningBlock, Request, TextBlock, ToolCallBlock, Turn
from dovetail_tokenizers import ControlTokenGuard

_TAIL_TOKENS = 24  # of a prompt, to detect whether it opens reasoning


@dataclass(frozen=True)
class BaselinePrompt:
    """A prompt of a plain server. `request` has its turns in order, nothing removed."""

    request: Request
    ids: "array[int]"
    observation: PromptObservation
    diagnosis: PrefixReport


class BaselinePrompts:
    """The template's own rendering of what the client sent, without a ledger."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._guard = ControlTokenGuard(model.tokenizer)
        self._renderers = RendererCache(model)
        self._diagnostics = PrefixDiagnostics(decode=model.tokenizer.decode)

    def render(self, request: Request) -> "array[int]":
        """Return the tokens of a request with ordered turns. Raises `RenderError`."""
        model = self._model
        chat_template = model.tool_chat_template if request.tools else model.chat_template
        switches = dict(request.thinking.template_kwargs)
        builder = MessageBuilder(chat_template.profile, _identity, ToolNames(request.tools))
        messages = builder.build(request.system, request.turns)
        tools = format_tools(request.tools, _identity)
        try:
            text = chat_template.template.render(messages, tools, switches=switches)
        except (
            RenderError
        ):  # a template without tools: a server would reject the request or fall back
            plain_messages = to_plain_messages(
                messages, tools, chat_template.profile, model.tool_parser
            )
            text = chat_template.template.render(plain_messages, switches=switches)
        return array(TOKEN_ID_TYPECODE, self._guard.encode(text, first=True))

    def examine(
        self, request: Request, ids: "array[int]", session: str, dropped: bool
    ) -> BaselinePrompt:
        """Compare a prompt with earlier ones. `dropped`: the template drops returned reasoning."""
        observation = PromptObservation(
            session=session,
            harness="",
            ids=ids,
            system=compute_digest(msgspec.json.encode(request.system)),
            tools=compute_digest(msgspec.json.encode(request.tools)),
            switches=compute_digest(msgspec.json.encode(request.thinking.template_kwargs)),
            turns=digest_history(request.turns),
            policy_dropped=dropped,
        )
        return BaselinePrompt(request, ids, observation, self._diagnostics.compare(observation))

    def record_response(self, baseline: BaselinePrompt, turn: Turn, ids: Sequence[int]) -> None:
        """Record what was generated for a prompt."""
        observation = baseline.observation
        self._diagnostics.record_output(
            observation.session, ids, turn=digest_turn(turn).digest, prompt=observation
        )

    def encode_response(
        self, request: Request, response: Turn, prompt: "array[int]"
    ) -> list[int] | None:
        """Return the tokens of a response as the template renders it after its own prompt.

        None if the template then renders that prompt differently.
        """
        turns = (*request.turns, response, Turn("user", (TextBlock("x"),)))
        try:
            ids = self.render(msgspec.structs.replace(request, turns=turns))
        except RenderError:
            return None
        if ids[: len(prompt)] != prompt:
            return None
        stops = self._model.stop_ids
        ends = (at for at in range(len(prompt), len(ids)) if ids[at] in stops)
        end = next(ends, None)
        return None if end is None else ids[len(prompt) : end].tolist()

    def drops_reasoning(self, request: Request, turn_index: int) -> bool:
        """Return whether the template drops the reasoning of the turn at this index."""
        renderer = self._renderers.get(bool(request.tools), dict(request.thinking.template_kwargs))
        return turn_index < renderer.replay_start(request.turns, bool(request.tools))


class DovetailPrompts:
    """The same requests through Dovetail's pipeline, with a ledger in memory."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._guard = ControlTokenGuard(model.tokenizer)
        self._writer = TurnWriter(model.tool_parser, model.reasoning_parser)
        # The observed server may see images, which cannot be reconstructed here.
        settings = PromptSettings(images="reject")
        ledger, keyring = Ledger(MemoryLedgerStore()), Keyring([bytes(32)])
        self._preparer = ChatPreparer(model, ledger, keyring, settings)

    async def prepare(self, request: Request) -> PreparedRequest:
        return await self._preparer.prepare(request)

    def encode_response(
        self, turn: Turn, request: Request, prompt: Sequence[int]
    ) -> list[int] | None:
        """Return the tokens of a response in the model's notation; None if it has no such form."""
        tail = self._model.tokenizer.decode(prompt[-_TAIL_TOKENS:])
        text = self._writer.write(turn, ToolNames(request.tools), self._guard.protect, tail)
        if text is None:
            return None
        stops = self._model.stop_strings
        stop_string = next((stop for stop in stops if text.rstrip().endswith(stop)), None)
        if stop_string is not None:
            text = text.rstrip().removesuffix(stop_string)
        return self._guard.encode(text, first=False)

    async def record_response(
        self, prepared: PreparedRequest, turn: Turn, ids: Sequence[int]
    ) -> bool:
        """Record the output. Returns False if it does not parse as the client's response."""
        calls = _call_ids(turn)
        generation = self._preparer.create_generation(prepared, lambda: next(calls))
        stop = min(self._model.stop_ids, default=None)
        generation.feed([*ids, *([] if stop is None else [stop])])
        generation.finish("stop")
        parsed = Turn("assistant", generation.message().blocks)
        if digest_turn(parsed).digest != digest_turn(turn).digest:
            return False
        await self._preparer.record(prepared, generation)
        return True

    async def close(self) -> None:
        await self._preparer.close()


def strip_reasoning(request: Request) -> Request:
    """Return the request as seen by a server that ignores the reasoning of earlier turns."""
    turns = tuple(
        Turn(turn.role, tuple(b for b in turn.blocks if not isinstance(b, ReasoningBlock)))
        if turn.role == "assistant"
        else turn
        for turn in request.turns
    )
    return msgspec.structs.replace(request, turns=turns)


def _call_ids(turn: Turn) -> Iterator[str]:
    """Yield the ids that the client received, in order; then generated ones."""
    received = [block.id for block in turn.blocks if isinstance(block, ToolCallBlock)]
    yield from received
    number = 0
    while True:
        number += 1
        yield f"unseen_{number}"


def _identity(text: str, /) -> str:
    """Return the text: a plain server does not escape control tokens in client text."""
    return text
