"""A to F, in rounds on one engine: stable prompts, varying prompts, and returned turns.

A: a stable prefix. B: a varying billing line, not removed. C: the same, removed. D: the next turn
after reasoning and calls that are sent back unchanged. E: with changed reasoning and no ledger.
E2: unchanged, no ledger. F: with calls as Claude Code rewrites them and the ledger. F2: the same
without the ledger.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.gpu import claude
from benchmarks.gpu.claude import Block, Message, Offer
from benchmarks.gpu.client import Reply, send_request
from benchmarks.gpu.figures import Measure
from benchmarks.gpu.processes import ServerProcess
from benchmarks.gpu.sample_texts import Count
from benchmarks.gpu.sessions import ScriptedSession, make_session

Copy = Callable[[list[Block]], list[Block]]


@dataclass(frozen=True)
class Case:
    """One experiment: the application of the server, and how the client copies a turn, if any."""

    title: str
    front: str = "default"
    varies: bool = False
    copy: Copy | None = None
    often: bool = False


CASES = {
    "A": Case("stable prefix", often=True),
    "C": Case("varying billing line, stripped", varies=True, often=True),
    "B": Case("varying billing line, left in", front="unstripped", varies=True),
    "D": Case("next turn, unchanged copy, ledger on", copy=list),
    "E": Case("next turn, thinking mutated, ledger off", front="forgetful", copy=claude.mutated),
    "E2": Case("next turn, unchanged copy, ledger off", front="forgetful", copy=list),
    "F": Case("next turn, calls rewritten, ledger on", copy=claude.rewritten),
    "F2": Case("next turn, calls rewritten, ledger off", front="forgetful", copy=claude.rewritten),
}
OFTEN = 4  # rounds of the cheap cases per round of the others
WARM_UP = "warm"


def session_names(chosen: list[str], repeats: int) -> list[str]:
    """Return the names of all sessions."""
    names = []
    for name in chosen:
        count = repeats * (OFTEN if CASES[name].often else 1)
        names += [f"{name}-{at}" for at in (WARM_UP, *range(count))]
    return names


@dataclass
class Client:
    """A client that sends the same requests as Claude Code."""

    server: ServerProcess
    offer: Offer
    count: Count
    headers: int = 0  # number of billing lines so far

    def send(self, front: str, name: str, messages: list[Message], header: int = 0) -> Reply:
        session = claude.session_id(name)
        body = claude.body(self.offer, messages, session, header)
        return send_request(self.server.ports[front], claude.PATH, body, claude.headers(session))

    def session_script(self, name: str) -> ScriptedSession:
        return make_session(name, self.count)

    def header(self, varies: bool) -> int:
        self.headers += varies
        return self.headers if varies else 0

    def measure(self, name: str, response_index: int, reply: Reply) -> Measure:
        """Return the engine's note of the last request, with the client's measurement."""
        session = claude.session_id(name)
        notes = self.server.notes()
        for number in reversed(range(len(notes))):
            note = notes[number]
            if (note.kind, note.session, note.response) == ("acted", session, response_index):
                return Measure(reply.begun, reply.first_ms, note, number)
        raise RuntimeError(f"the engine received no request for {name}")


def hold(client: Client, case: Case, name: str) -> Measure:
    """Run one session of a case, and measure its last request."""
    session_script = client.session_script(name)
    messages = [claude.user(session_script.question)]
    header = client.header(case.varies)
    reply = client.send(case.front, name, messages, header)
    if case.copy is None:
        return client.measure(name, 0, reply)
    blocks = claude.fold(reply.frames)
    messages += [
        claude.assistant(case.copy(blocks)),
        claude.results(blocks, session_script.results[0]),
    ]
    reply = client.send(case.front, name, messages, header)
    return client.measure(name, 1, reply)


def warm_up(client: Client, chosen: list[str]) -> None:
    """Run each case once without counting, so that the long prompt is cached everywhere."""
    for name in chosen:
        hold(client, CASES[name], f"{name}-{WARM_UP}")


def play(client: Client, chosen: list[str], repeats: int) -> Iterator[dict[str, list[Measure]]]:
    """Run all rounds. Yields the measurements after each round.

    The cases alternate, and every other round runs in reverse order, so that effects of the
    previous case on cache and clock frequency are distributed over all cases.
    """
    found: dict[str, list[Measure]] = {name: [] for name in chosen}
    often = OFTEN if any(CASES[name].often for name in chosen) else 1
    for at in range(repeats * often):
        for name in chosen if at % 2 == 0 else reversed(chosen):
            if CASES[name].often or at % often == 0:
                found[name].append(hold(client, CASES[name], f"{name}-{len(found[name])}"))
        yield found
