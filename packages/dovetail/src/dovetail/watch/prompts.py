"""Prompts side by side: as a plain server makes them of a request, and as Dovetail would.

Nobody tells a bystander which tokens a model generated. They are worked out by writing the answer
in the model's own notation or as its template does, whichever has as many tokens as the server
counted. Where neither has, or it does not count, they are a guess, and what rests on it is called
an estimate.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from dovetail.ledger.entry import TOKEN_ID_TYPECODE
from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.ledger.turn_digest import compute_digest, digest_turn
from dovetail.models.loader import Model
from dovetail.models.renderers import RendererCache
from dovetail.pipeline.preparation import ChatPreparer, PreparedRequest
from dovetail.prompt.messages import MessageBuilder, ToolNames, format_tools
from dovetail.prompt.prefix_diagnostics import PrefixDiagnostics, PrefixReport, PromptObservation
from dovetail.prompt.template import RenderError
from dovetail.prompt.tool_fallback import to_plain_messages
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import ReasoningBlock, Request, TextBlock, ToolCallBlock, Turn
from dovetail_tokenizers import ControlTokenGuard

_TAIL_TOKENS = 24  # tokens of a prompt's end: whether it opens a thought


@dataclass(frozen=True)
class BaselinePrompt:
    """A prompt as a plain server makes it. `request` has its turns in order, nothing taken out."""

    request: Request
    ids: "array[int]"
    sighting: PromptObservation
    diagnosis: PrefixReport


class BaselinePrompts:
    """The template's own rendering of what the client sent: no ledger, nothing taken out."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._guard = ControlTokenGuard(model.tokenizer)
        self._renderers = RendererCache(model)
        self._diagnostics = PrefixDiagnostics(decode=model.tokenizer.decode)

    def render(self, request: Request) -> "array[int]":
        """The tokens of an arranged request. Raises `RenderError`."""
        model = self._model
        speech = model.tool_chat_template if request.tools else model.chat_template
        switches = dict(request.thinking.template_kwargs)
        conversation = MessageBuilder(speech.profile, _identity, ToolNames(request.tools))
        messages = conversation.build(request.system, request.turns)
        tools = format_tools(request.tools, _identity)
        try:
            text = speech.template.render(messages, tools, switches=switches)
        except RenderError:  # a template without a place for tools: a server would refuse, or help
            plain = to_plain_messages(messages, tools, speech.profile, model.tool_parser)
            text = speech.template.render(plain, switches=switches)
        return array(TOKEN_ID_TYPECODE, self._guard.encode(text, first=True))

    def examine(
        self, request: Request, ids: "array[int]", session: str, dropped: bool
    ) -> BaselinePrompt:
        """The prompt beside those before it. `dropped`: the template drops returned thoughts."""
        sighting = PromptObservation(
            session=session,
            harness="",
            ids=ids,
            system=compute_digest(msgspec.json.encode(request.system)),
            tools=compute_digest(msgspec.json.encode(request.tools)),
            switches=compute_digest(msgspec.json.encode(request.thinking.template_kwargs)),
            turns=tuple(digest_turn(turn).digest for turn in request.turns),
            policy_dropped=dropped,
        )
        return BaselinePrompt(request, ids, sighting, self._diagnostics.compare(sighting))

    def record_response(self, natural: BaselinePrompt, turn: Turn, ids: Sequence[int]) -> None:
        """What was generated on a prompt."""
        seen = natural.sighting
        self._diagnostics.record_output(
            seen.session, ids, turn=digest_turn(turn).digest, prompt=seen
        )

    def encode_response(
        self, request: Request, said: Turn, prompt: "array[int]"
    ) -> list[int] | None:
        """The tokens of an answer as the template writes it behind its own prompt.

        None where the template does not leave that prompt as it was.
        """
        turns = (*request.turns, said, Turn("user", (TextBlock("x"),)))
        try:
            whole = self.render(msgspec.structs.replace(request, turns=turns))
        except RenderError:
            return None
        if whole[: len(prompt)] != prompt:
            return None
        stops = self._model.stop_ids
        ends = (at for at in range(len(prompt), len(whole)) if whole[at] in stops)
        end = next(ends, None)
        return None if end is None else whole[len(prompt) : end].tolist()

    def drops_reasoning(self, request: Request, place: int) -> bool:
        """Whether the template drops the thoughts of a turn at this place."""
        renderer = self._renderers.get(bool(request.tools), dict(request.thinking.template_kwargs))
        return place < renderer.replay_start(request.turns, bool(request.tools))


class DovetailPrompts:
    """The same requests on their way through Dovetail, with a ledger in memory."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._guard = ControlTokenGuard(model.tokenizer)
        self._writer = TurnWriter(model.tool_parser, model.reasoning_parser)
        self._preparer = ChatPreparer(model, Ledger(MemoryLedgerStore()), Keyring([bytes(32)]))

    async def prepare(self, request: Request) -> PreparedRequest:
        return await self._preparer.prepare(request)

    def encode_response(
        self, turn: Turn, request: Request, prompt: Sequence[int]
    ) -> list[int] | None:
        """The tokens of an answer in the model's notation; None if that cannot write it."""
        end = self._model.tokenizer.decode(prompt[-_TAIL_TOKENS:])
        text = self._writer.write(turn, ToolNames(request.tools), self._guard.protect, end)
        if text is None:
            return None
        stops = self._model.stop_strings
        ended = next((stop for stop in stops if text.rstrip().endswith(stop)), None)
        if ended is not None:
            text = text.rstrip().removesuffix(ended)
        return self._guard.encode(text, first=False)

    async def record_response(
        self, prepared: PreparedRequest, turn: Turn, ids: Sequence[int]
    ) -> bool:
        """Records what was generated. False if it does not read as what the client was shown."""
        calls = _call_ids(turn)
        generation = self._preparer.create_generation(prepared, lambda: next(calls))
        stop = min(self._model.stop_ids, default=None)
        generation.feed([*ids, *([] if stop is None else [stop])])
        generation.finish("stop")
        read = Turn("assistant", generation.message().blocks)
        if digest_turn(read).digest != digest_turn(turn).digest:
            return False
        await self._preparer.record(prepared, generation)
        return True

    async def close(self) -> None:
        await self._preparer.close()


def strip_reasoning(request: Request) -> Request:
    """The request as a server sees it that does not read the thoughts of earlier turns."""
    turns = tuple(
        Turn(turn.role, tuple(b for b in turn.blocks if not isinstance(b, ReasoningBlock)))
        if turn.role == "assistant"
        else turn
        for turn in request.turns
    )
    return msgspec.structs.replace(request, turns=turns)


def _call_ids(turn: Turn) -> Iterator[str]:
    """The ids that the client was shown, in their order; then such as no client has."""
    shown = [block.id for block in turn.blocks if isinstance(block, ToolCallBlock)]
    yield from shown
    number = 0
    while True:
        number += 1
        yield f"unseen_{number}"


def _identity(text: str, /) -> str:
    """A plain server does not protect control tokens in what clients say."""
    return text
