"""The exactness matrix: every available model with every harness, measured.

A step leads from one prompt to the next. It is exact if the next prompt starts with the previous
prompt and the output after it, token for token. The test asserts the values that are measured here,
and the document states them.
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
from scripted_run import ScriptedRunner, ScriptedTurn
from session_script import SCRIPT, question, result, script_writer

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.ledger import Ledger
from dovetail.ledger.memory_store import MemoryLedgerStore
from dovetail.models.loader import Model
from dovetail.pipeline.preparation import ChatPreparer
from dovetail.pipeline.rendering import PromptSettings
from dovetail.prompt.prompt import PromptOrigin
from dovetail.prompt.renderer import PromptRenderer

Policy = Literal["keeps", "drops at a user turn", "drops at the answer", "moves the tools"]
Follower = Literal["tool", "user"]
KEY = Keyring([bytes(range(32))])
OFF = PromptSettings(replay="client")


@dataclass(frozen=True)
class Step:
    """A step from a prompt and its turn to the next prompt.

    `preserved`: the model's own policy keeps the turn. `ends_well`: its stop token follows it.
    `as_cold`: the prompt is what a server without a ledger renders. `keeps_earlier`: everything
    before the last loop is unchanged. `generated` is the number of tokens of the turn;
    `reprefilled` of those that were in the engine's cache and have to be prefilled again;
    `reprefilled_off` the same without the ledger; `reprefilled_clean` without it for a model whose
    spacing and tokens are those of its template and tokenizer.
    """

    follower: Follower
    origin: PromptOrigin
    preserved: bool
    exact: bool
    ends_well: bool
    as_cold: bool
    keeps_earlier: bool
    generated: int
    reprefilled: int
    reprefilled_off: int
    reprefilled_clean: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One agent's session with one model."""

    agent: str
    policy: Policy
    steps: tuple[Step, ...]

    @property
    def preserved(self) -> list[Step]:
        return [step for step in self.steps if step.preserved]

    @property
    def exact(self) -> list[Step]:
        return [step for step in self.preserved if step.exact]


@dataclass(frozen=True)
class Row:
    """All sessions with one model. `left_out` lists what its notation cannot express."""

    pair: Pair
    policy: Policy
    left_out: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass
class Session:
    """A session that was run. `cold` has the prompts of a server without a ledger."""

    pair: Pair
    turns: list[ScriptedTurn] = field(default_factory=list)
    questions: dict[int, str] = field(default_factory=dict)
    cold: dict[int, "array[int]"] = field(default_factory=dict)

    def follower(self, at: int) -> Follower:
        """Return what follows a turn."""
        return "tool" if self.turns[at].calls else "user"


def policy_of(found: Model) -> Policy:
    """Return what a model's template does to earlier turns at a user turn, by its profile."""
    facts = found.profile
    if found.reasoning_parser is None:
        return "keeps" if facts.keeps_plain else "moves the tools"
    if facts.keeps_plain and facts.keeps_at_user:
        return "keeps"
    return "drops at the answer" if facts.drops_at_final else "drops at a user turn"


def policy_for(found: Model, kind: type[Agent]) -> Policy:
    """The same for a client that may request to keep all reasoning, as Claude Code does."""
    requests_all = "context_management" in kind().body()
    return "keeps" if requests_all and found.profile.keep_switches else policy_of(found)


def make_preparer(pair: Pair, settings: PromptSettings | None = None) -> ChatPreparer:
    return ChatPreparer(model(pair), Ledger(MemoryLedgerStore()), KEY, settings)


def make_runner(pair: Pair, preparer: ChatPreparer) -> ScriptedRunner:
    return ScriptedRunner(preparer, model(pair).tokenizer, 0, script_writer(pair).writer)


async def run_turn(
    session: Session, runner: ScriptedRunner, agent: Agent, *, clean: bool = False
) -> ScriptedTurn:
    """Run the next turn of the script, and the agent's reply to it."""
    at = len(session.turns)
    prepared = await runner.prepare(agent)
    scripted_turn = await runner.run_tokens(
        agent, prepared, script_writer(session.pair).ids(at, prepared, clean=clean)
    )
    session.turns.append(scripted_turn)
    if scripted_turn.calls:
        results = [
            (call, result(session.pair, at, n)) for n, call in enumerate(scripted_turn.calls)
        ]
        agent.add_results(results)
    else:
        send_question(session, agent)
    return scripted_turn


def send_question(session: Session, agent: Agent) -> None:
    at = len(session.turns)
    session.questions[at] = question(session.pair, at)
    agent.add_user_message(session.questions[at])


async def run_session(
    pair: Pair,
    kind: type[Agent],
    settings: PromptSettings | None = None,
    compare: ChatPreparer | None = None,
    *,
    clean: bool = False,
) -> Session:
    """Run the complete script. `compare` also prepares the prompts after user turns again."""
    session, agent = Session(pair), kind(session=kind.name)
    runner = make_runner(pair, make_preparer(pair, settings))
    send_question(session, agent)
    for at in range(len(SCRIPT)):
        if compare is not None and at in session.questions:
            body, headers = agent.request()
            prepared = await compare.prepare(agent.codec.decode(body, headers))
            session.cold[at] = prepared.prompt.ids
        await run_turn(session, runner, agent, clean=clean)
    return session


@cache
def measure(pair: Pair) -> Row:
    """Measure one row of the matrix."""
    return asyncio.run(_measure(pair))


async def _measure(pair: Pair) -> Row:
    new = await new_tokens(pair)
    compare = make_preparer(pair, OFF)
    cells = []
    for kind in AGENTS:
        session = await run_session(pair, kind, compare=compare)
        off = await run_session(pair, kind, OFF), await run_session(pair, kind, OFF, clean=True)
        policy = policy_for(model(pair), kind)
        steps = [_step(session, off, at, new[at], policy) for at in range(1, len(SCRIPT))]
        cells.append(Cell(kind.name, policy, tuple(steps)))
    left_out = tuple(sorted(script_writer(pair).left_out))
    return Row(pair, policy_of(model(pair)), left_out, tuple(cells))


async def new_tokens(pair: Pair) -> list[int]:
    """Count the new tokens of each prompt.

    These remain to be prefilled if no template ever changes an earlier turn.
    """
    with patch.object(PromptRenderer, "replay_start", return_value=0):
        session = await run_session(pair, MessagesAgent)
    sizes = [len(session.turns[0].prepared.prompt.ids)]
    for before, after in zip(session.turns, session.turns[1:], strict=False):
        ids = after.prepared.prompt.ids
        assert ids[: len(before.token_ids)] == before.token_ids
        sizes.append(len(ids) - len(before.token_ids))
    return sizes


def count_reprefilled(session: Session, at: int, new: int) -> int:
    """Return the tokens that have to be prefilled for a turn, without those new in its prompt."""
    ids, before = session.turns[at].prepared.prompt.ids, session.turns[at - 1].token_ids
    return max(0, len(ids) - common_prefix(before, ids) - new)


def _step(
    session: Session, off: tuple[Session, Session], at: int, new: int, policy: Policy
) -> Step:
    prompt, before = session.turns[at].prepared.prompt, session.turns[at - 1].token_ids
    exact = prompt.ids[: len(before)] == before
    follower = session.follower(at - 1)
    return Step(
        follower=follower,
        origin=prompt.origin,
        preserved=policy == "keeps" or follower == "tool",
        exact=exact,
        ends_well=not exact or _ends_well(session, at),
        as_cold=session.cold.get(at) == prompt.ids,
        keeps_earlier=_keeps_earlier(session, at),
        generated=len(session.turns[at - 1].generation.ids),
        reprefilled=count_reprefilled(session, at, new),
        reprefilled_off=count_reprefilled(off[0], at, new),
        reprefilled_clean=count_reprefilled(off[1], at, new),
        notes=prompt.notes,
    )


def _ends_well(session: Session, at: int) -> bool:
    """Whether the stop token that the model sampled follows its turn in the next prompt."""
    before = session.turns[at - 1]
    follows = session.turns[at].prepared.prompt.ids[len(before.token_ids)]
    controls = model(session.pair).tokenizer.controls
    stop = before.generation.build_entry().stop
    if session.pair.name == "gpt-oss" and stop == controls["<|return|>"]:
        stop = controls["<|end|>"]  # sampled at the end of a final turn, never written in a history
    return follows == stop


def _keeps_earlier(session: Session, at: int) -> bool:
    """Whether the next prompt starts with everything up to the user turn before the last loop.

    A template that moves its tools has them before that user turn: then everything before it
    counts.
    """
    prompt, before = session.turns[at].prepared.prompt, session.turns[at - 1].token_ids
    opened = max(n for n in session.questions if n < at)
    if policy_of(model(session.pair)) == "moves the tools":
        opened = max((n for n in session.questions if n < opened), default=0)
        if opened == 0:
            return True
    same = model(session.pair).tokenizer.decode(before[: common_prefix(before, prompt.ids)])
    # Some tokenizers join accents and letters.
    return normalize("NFC", session.questions[opened].strip()) in normalize("NFC", same)


def common_prefix(one: "array[int]", other: "array[int]") -> int:
    """Count the tokens that two prompts have in common at their start."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
