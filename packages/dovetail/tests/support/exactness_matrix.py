"""The exactness matrix: every model at hand, every harness, the scripted session, measured.

A step goes from one prompt to the next. It is exact if the next prompt begins with the prompt
before and all that was generated behind it, token for token. The test asserts what is measured
here, and the document states it.
"""

import asyncio
from array import array
from dataclasses import dataclass, field
from functools import cache
from typing import Literal
from unicodedata import normalize
from unittest.mock import patch

from agent_clients import AGENTS, Agent, MessagesAgent
from real_models import Pair, model
from scripted_run import Played, Player
from session_script import SCRIPT, question, result, scribe

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer, PromptSettings
from dovetail.prompt.prompt import PromptOrigin
from dovetail.prompt.renderer import PromptRenderer

Policy = Literal["keeps", "drops at a user turn", "drops at the answer", "moves the tools"]
Follower = Literal["tool", "user"]
KEY = Keyring([bytes(range(32))])
OFF = PromptSettings(replay="client")


@dataclass(frozen=True)
class Step:
    """From a prompt and its turn to the next prompt.

    `kept`: the model's own policy keeps the turn. `ends_well`: the token that the model ended it
    with stands behind it. `as_cold`: the prompt is what a server without memory makes of the
    request. `keeps_earlier`: all that stands before the last loop is still as it was. `generated`
    are the turn's tokens; `again` those that had been in the engine's cache and have to be
    prefilled once more, `again_off` the same without the ledger, and `again_clean` without it for a
    model whose spacing and tokens are as its template and tokenizer would have them.
    """

    follower: Follower
    how: PromptOrigin
    kept: bool
    exact: bool
    ends_well: bool
    as_cold: bool
    keeps_earlier: bool
    generated: int
    again: int
    again_off: int
    again_clean: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One agent's session with one model."""

    agent: str
    policy: Policy
    steps: tuple[Step, ...]

    @property
    def kept(self) -> list[Step]:
        return [step for step in self.steps if step.kept]

    @property
    def exact(self) -> list[Step]:
        return [step for step in self.kept if step.exact]


@dataclass(frozen=True)
class Row:
    """All sessions with one model. `left_out` is what its notation cannot say of the script."""

    pair: Pair
    policy: Policy
    left_out: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass
class Session:
    """A session as it was played. `cold` has the prompts of a server that remembers nothing."""

    pair: Pair
    played: list[Played] = field(default_factory=list)
    questions: dict[int, str] = field(default_factory=dict)
    cold: dict[int, "array[int]"] = field(default_factory=dict)

    def follower(self, at: int) -> Follower:
        """What comes behind a turn."""
        return "tool" if self.played[at].heard else "user"


def policy_of(found: Model) -> Policy:
    """What a model's template does to earlier turns when the user speaks, by what was probed."""
    facts = found.facts
    if found.reasoning_parser is None:
        return "keeps" if facts.keeps_plain else "moves the tools"
    if facts.keeps_plain and facts.keeps_at_user:
        return "keeps"
    return "drops at the answer" if facts.drops_at_final else "drops at a user turn"


def policy_for(found: Model, kind: type[Agent]) -> Policy:
    """The same for a client that may ask for all thoughts to be kept, as Claude Code does."""
    asks = "context_management" in kind().body()
    return "keeps" if asks and found.facts.keep_switches else policy_of(found)


def preparer(pair: Pair, settings: PromptSettings | None = None) -> ChatPreparer:
    return ChatPreparer(model(pair), Ledger(MemoryLedgerStore()), KEY, settings)


def player(pair: Pair, prepares: ChatPreparer) -> Player:
    return Player(prepares, model(pair).tokenizer, 0, scribe(pair).writer)


async def turn(session: Session, play: Player, agent: Agent, *, clean: bool = False) -> Played:
    """The next turn of the script, and the agent's answer to it."""
    at = len(session.played)
    prepared = await play.prepare(agent)
    played = await play.say(agent, prepared, scribe(session.pair).ids(at, prepared, clean=clean))
    session.played.append(played)
    if played.heard:
        results = [(heard, result(session.pair, at, n)) for n, heard in enumerate(played.heard)]
        agent.answer(results)
    else:
        ask(session, agent)
    return played


def ask(session: Session, agent: Agent) -> None:
    at = len(session.played)
    session.questions[at] = question(session.pair, at)
    agent.ask(session.questions[at])


async def play_session(
    pair: Pair,
    kind: type[Agent],
    settings: PromptSettings | None = None,
    compare: ChatPreparer | None = None,
    *,
    clean: bool = False,
) -> Session:
    """The whole script. `compare` prepares the prompts behind a user's turn once more."""
    session, agent = Session(pair), kind(session=kind.name)
    play = player(pair, preparer(pair, settings))
    ask(session, agent)
    for at in range(len(SCRIPT)):
        if compare is not None and at in session.questions:
            body, headers = agent.request()
            prepared = await compare.prepare(agent.codec.decode(body, headers))
            session.cold[at] = prepared.prompt.ids
        await turn(session, play, agent, clean=clean)
    return session


@cache
def measure(pair: Pair) -> Row:
    """One row of the matrix."""
    return asyncio.run(_measure(pair))


async def _measure(pair: Pair) -> Row:
    new = await new_tokens(pair)
    compare = preparer(pair, OFF)
    cells = []
    for kind in AGENTS:
        session = await play_session(pair, kind, compare=compare)
        off = await play_session(pair, kind, OFF), await play_session(pair, kind, OFF, clean=True)
        policy = policy_for(model(pair), kind)
        steps = [_step(session, off, at, new[at], policy) for at in range(1, len(SCRIPT))]
        cells.append(Cell(kind.name, policy, tuple(steps)))
    left_out = tuple(sorted(scribe(pair).left_out))
    return Row(pair, policy_of(model(pair)), left_out, tuple(cells))


async def new_tokens(pair: Pair) -> list[int]:
    """How many tokens of each prompt nobody has seen before.

    They are what is left to prefill if no template ever has its way with an earlier turn.
    """
    with patch.object(PromptRenderer, "start", return_value=0):
        session = await play_session(pair, MessagesAgent)
    sizes = [len(session.played[0].prepared.prompt.ids)]
    for before, after in zip(session.played, session.played[1:], strict=False):
        ids = after.prepared.prompt.ids
        assert ids[: len(before.whole)] == before.whole
        sizes.append(len(ids) - len(before.whole))
    return sizes


def again_tokens(session: Session, at: int, new: int) -> int:
    """What has to be prefilled for a turn, less what is new in its prompt."""
    ids, before = session.played[at].prepared.prompt.ids, session.played[at - 1].whole
    return max(0, len(ids) - common_prefix(before, ids) - new)


def _step(
    session: Session, off: tuple[Session, Session], at: int, new: int, policy: Policy
) -> Step:
    prompt, before = session.played[at].prepared.prompt, session.played[at - 1].whole
    exact = prompt.ids[: len(before)] == before
    follower = session.follower(at - 1)
    return Step(
        follower=follower,
        how=prompt.origin,
        kept=policy == "keeps" or follower == "tool",
        exact=exact,
        ends_well=not exact or _ends_well(session, at),
        as_cold=session.cold.get(at) == prompt.ids,
        keeps_earlier=_keeps_earlier(session, at),
        generated=len(session.played[at - 1].generation.ids),
        again=again_tokens(session, at, new),
        again_off=again_tokens(off[0], at, new),
        again_clean=again_tokens(off[1], at, new),
        notes=prompt.notes,
    )


def _ends_well(session: Session, at: int) -> bool:
    """Whether the token that the model ended its turn with stands behind it in the next prompt."""
    before = session.played[at - 1]
    follows = session.played[at].prepared.prompt.ids[len(before.whole)]
    controls = model(session.pair).tokenizer.controls
    stop = before.generation.build_entry().stop
    if session.pair.name == "gpt-oss" and stop == controls["<|return|>"]:
        stop = controls["<|end|>"]  # sampled at the end of an answer, never written in a history
    return follows == stop


def _keeps_earlier(session: Session, at: int) -> bool:
    """Whether the next prompt begins with all up to the question that opened the last loop.

    A template that moves its tools has them before that question: there it is all before it.
    """
    prompt, before = session.played[at].prepared.prompt, session.played[at - 1].whole
    opened = max(n for n in session.questions if n < at)
    if policy_of(model(session.pair)) == "moves the tools":
        opened = max((n for n in session.questions if n < opened), default=0)
        if opened == 0:
            return True
    same = model(session.pair).tokenizer.decode(before[: common_prefix(before, prompt.ids)])
    # Some tokenizers put accents and letters together.
    return normalize("NFC", session.questions[opened].strip()) in normalize("NFC", same)


def common_prefix(one: "array[int]", other: "array[int]") -> int:
    """How many tokens two prompts begin with together."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
