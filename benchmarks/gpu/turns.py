"""G: sessions of ten turns with reasoning between calls, with the ledger and without."""

from collections.abc import Iterator

from benchmarks.gpu import claude
from benchmarks.gpu.claude import Message
from benchmarks.gpu.figures import Measure, saved, turns_row
from benchmarks.gpu.rounds import WARM_UP, Client

TITLE = "ten turns with reasoning between calls"
FRONTS = {"on": "default", "off": "forgetful"}


def session_names(repeats: int) -> list[str]:
    return [_name(ledger, at) for at in (WARM_UP, *range(repeats)) for ledger in FRONTS]


def hold(client: Client, ledger: str, name: str) -> list[Measure]:
    """Run one session. The client sends responses back unchanged and in order."""
    session_script = client.session_script(name)
    messages: list[Message] = [claude.user(session_script.question)]
    measures = []
    for at in range(len(session_script.outputs)):
        reply = client.send(FRONTS[ledger], name, messages)
        measures.append(client.measure(name, at, reply))
        if at < len(session_script.results):
            blocks = claude.fold(reply.frames)
            messages += [
                claude.assistant(blocks),
                claude.results(blocks, session_script.results[at]),
            ]
    return measures


def play(client: Client, repeats: int) -> Iterator[dict[str, object]]:
    """Yield the experiment after each round. A first warm-up round is not counted."""
    for ledger in FRONTS:
        hold(client, ledger, _name(ledger, WARM_UP))
    rounds: dict[str, list[list[Measure]]] = {ledger: [] for ledger in FRONTS}
    for at in range(repeats):
        for ledger, held in rounds.items():
            held.append(hold(client, ledger, _name(ledger, at)))
        on, off = (turns_row(ledger, held) for ledger, held in rounds.items())
        yield {"title": TITLE, "rows": [on, off], "saved": saved(on, off)}


def _name(ledger: str, at: int | str) -> str:
    return f"G{ledger}-{at}"
