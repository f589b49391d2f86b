"""Generate traces of agent sessions: a shared head, a growing prompt, pauses for tools."""

from dataclasses import dataclass
from random import Random

from dovetail.simulate.trace import RequestTrace, TraceRequest


@dataclass(frozen=True)
class AgentWorkload:
    """What the sessions of a generated trace are like.

    `sessions`: the number of sessions.
    `arrival_seconds`: the mean time between the starts of two sessions.
    `heads`: the number of different system prompts with tools.
    `hot_share`: the share of sessions that have the first head; the others have any.
    """

    sessions: int
    arrival_seconds: float = 2.0
    heads: int = 3
    head_tokens: int = 20_000
    hot_share: float = 0.0
    block_tokens: int = 64
    seed: int = 7


def generate_trace(workload: AgentWorkload) -> RequestTrace:
    """Generate a trace. The same workload gives the same trace."""
    random = Random(workload.seed)
    ids = iter(range(1 << 60))
    head_blocks = workload.head_tokens // workload.block_tokens
    heads = [[next(ids) for _ in range(head_blocks)] for _ in range(workload.heads)]
    requests: list[TraceRequest] = []
    start = 0.0
    for number in range(workload.sessions):
        start += random.expovariate(1 / workload.arrival_seconds)
        hot = random.random() < workload.hot_share
        blocks = list(heads[0 if hot else random.randrange(len(heads))])
        blocks += (next(ids) for _ in range(random.randint(8, 60)))
        time = start
        for _ in range(random.randint(6, 24)):
            output = random.randint(100, 500)
            requests.append(_request(time, output, blocks, number, workload.block_tokens))
            time += output * 0.02 + random.uniform(0.5, 30.0)
            grown = output + random.randint(200, 4000)
            blocks += (next(ids) for _ in range(grown // workload.block_tokens))
    return RequestTrace(tuple(sorted(requests, key=lambda one: one.time)), workload.block_tokens)


def _request(
    time: float, output: int, blocks: list[int], session: int, block_tokens: int
) -> TraceRequest:
    return TraceRequest(time, len(blocks) * block_tokens, output, tuple(blocks), f"s{session}")
