"""Agent sessions for replicas with small KV caches: shared heads, growing prompts, short pauses."""

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any

from kv_replicas import NAME
from server_process import Running

#: Blocks of each of two KV caches that do not hold all sessions that run at the same time.
FLEET_BLOCKS = 400


@dataclass(frozen=True)
class SessionPlan:
    """What the sessions are like.

    `clients`: the number of sessions that run at the same time.
    `forks`: the share of turns after which a subagent continues the history in another session.
    `seed`: determines all lengths and pauses.
    `texts`: determines all texts, so that a run finds nothing of another one in the caches.
    """

    texts: str
    sessions: int = 48
    clients: int = 32
    heads: int = 3
    head_tokens: int = 320
    turns: tuple[int, int] = (4, 9)
    input_tokens: tuple[int, int] = (60, 240)
    output_tokens: tuple[int, int] = (4, 16)
    pause_seconds: tuple[float, float] = (4.0, 10.0)
    forks: float = 0.1
    seed: int = 7


def play(server: Running, plan: SessionPlan) -> None:
    """Run all sessions to their ends."""
    with ThreadPoolExecutor(plan.clients) as pool:
        for _ in pool.map(lambda number: _play_session(server, plan, number), range(plan.sessions)):
            pass


def _play_session(server: Running, plan: SessionPlan, number: int) -> None:
    dice = random.Random(plan.seed * 1000 + number)
    head = _text(f"{plan.texts} head {dice.randrange(plan.heads)}", plan.head_tokens)
    messages = [{"role": "system", "content": head}]
    time.sleep(dice.uniform(0.0, plan.pause_seconds[1]))  # not all at once
    for turn in range(dice.randint(*plan.turns)):
        name = f"{plan.texts} {number} {turn}"
        messages.append({"role": "user", "content": _text(name, dice.randint(*plan.input_tokens))})
        reply = _send(server, messages, f"s{number}", dice.randint(*plan.output_tokens))
        messages.append({"role": "assistant", "content": reply})
        if dice.random() < plan.forks:
            task = {"role": "user", "content": _text(f"{name} fork", plan.input_tokens[0])}
            _send(server, [*messages, task], f"s{number}-{turn}", plan.output_tokens[0])
        time.sleep(dice.uniform(*plan.pause_seconds))


def _send(server: Running, messages: list[dict[str, str]], session: str, max_tokens: int) -> str:
    body = {"model": NAME, "messages": messages, "max_tokens": max_tokens}
    reply = server.post("/v1/chat/completions", body, x_session_id=session)
    return reply["choices"][0]["message"].get("content") or ""


def _text(name: str, tokens: int) -> str:
    """Return numbers of three digits. Each digit and each space is a token."""
    dice = random.Random(name)
    return " ".join(str(dice.randrange(100, 1000)) for _ in range(tokens // 4))


@dataclass(frozen=True)
class FleetCosts:
    """What the requests of a run cost, from the lines of its trace."""

    lines: Sequence[Mapping[str, Any]]

    @property
    def prompt_tokens(self) -> int:
        return sum(int(line["usage"]["input_tokens"]) for line in self.lines)

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that vLLM reported as cached."""
        cached = sum(int(line["usage"].get("cached_tokens", 0)) for line in self.lines)
        return cached / self.prompt_tokens

    @property
    def reprefilled_tokens(self) -> int:
        return sum(int(line.get("reprefilled", 0)) for line in self.lines)

    @property
    def balance(self) -> float:
        """The prefilled tokens of the replica with the most, relative to the mean."""
        sums: dict[int, int] = {}
        for line in self.lines:
            usage, replica = line["usage"], line.get("replica", 0)
            missing = usage["input_tokens"] - usage.get("cached_tokens", 0)
            sums[replica] = sums.get(replica, 0) + missing
        return max(sums.values()) * len(sums) / sum(sums.values())

    def ttft(self, quantile: float) -> float:
        """Return a quantile of the time to first token in seconds."""
        times = sorted(float(line["first_token"]) for line in self.lines)
        return times[min(len(times) - 1, int(quantile * len(times)))]

    @property
    def decode_seconds(self) -> float:
        """The median time of an output token."""
        return median(
            (float(line["duration"]) - float(line["first_token"]))
            / max(1, int(line["usage"]["output_tokens"]) - 1)
            for line in self.lines
        )

    @property
    def prefill_rate(self) -> float:
        """The median of prefilled tokens per second until the first token."""
        rates: list[float] = []
        for line in self.lines:
            usage = line["usage"]
            computed = usage["input_tokens"] - usage.get("cached_tokens", 0)
            rates.append(float(computed) / (line["first_token"] - line["prepared"]))
        return median(rates)
