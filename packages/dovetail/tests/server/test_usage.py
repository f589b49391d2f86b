"""Usage of real servers: sums equal the trace over workers, frontends, a restart and a SIGKILL."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from redis_server import RedisServer
from server_process import Running, dovetail, served
from workers_fixture import PATHS, PIECES, arguments, body, children, numbers, wait_until

from dovetail.telemetry.trace.reader import read_traces
from dovetail.telemetry.trace.writer import TraceLine
from dovetail.usage.counts import UsageCounts
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.store import STALE_SECONDS, UsageQuery

BY = ("tenant", "key", "model", "session", "harness")
KEYS = {"alpha": "a", "beta": "b"}
PRICES = ("--price-prompt", "1.5", "--price-cached", "0.25", "--price-output", "4")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


def key_file(folder: Path) -> Path:
    path = folder / "keys"
    digests = {key: sha256(key.encode()).hexdigest() for key in (*KEYS, "root", "limited")}
    lines = [f"{tenant}:{digests[key]} name={key}-key" for key, tenant in KEYS.items()]
    lines += [f"ops:{digests['root']} admin", f"c:{digests['limited']} tokens-per-day=1", ""]
    path.write_text("\n".join(lines))
    return path


def flags(folder: Path) -> tuple[str | Path, ...]:
    return ("--api-key-file", key_file(folder), "--trace-file", folder / "trace.jsonl", *PRICES)


@contextmanager
def serve(folder: Path, *more: str | Path, workers: int = 2) -> Iterator[Running]:
    """A server whose engine never finishes a response to "Hang"."""
    arguments_of_server = arguments(folder, *flags(folder), *more, workers=workers)
    rules = [{"when": {"text": "Hang"}, "text": "One moment.", "hang": 2}, {"chunks": list(PIECES)}]
    (folder / "script.yaml").write_text(json.dumps({"rules": rules}))
    with served(*arguments_of_server, home=folder / "home") as running:
        yield running


def send(running: Running, count: int, name: str) -> None:
    for at in range(count):
        path, key = PATHS[at % len(PATHS)], list(KEYS)[at % len(KEYS)]
        session = f"{name}-{at % 4}"
        running.post(path, body(path, f"Number {at}."), x_api_key=key, x_session_id=session)


def report(running: Running) -> dict[str, Any]:
    path = f"/admin/usage?by={','.join(BY)}"
    reply = running.request("GET", path, x_api_key="root")
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def traced(folder: Path) -> list[TraceLine]:
    lines = read_traces(sorted(folder.glob("trace*.jsonl"))).lines
    return [line for line in lines if line.model]


def sums(lines: list[TraceLine]) -> dict[tuple[str, ...], dict[str, float]]:
    """Add up a trace as the report does."""
    found: dict[tuple[str, ...], Counter[str]] = {}
    for line in lines:
        group = found.setdefault(tuple(getattr(line, name) or "" for name in BY), Counter())
        group["requests"] += 1
        group["failed"] += line.status >= 400
        group["microseconds"] += round(line.duration * 1e6)
        group["reprefilled_tokens"] += line.reprefilled or 0
        if line.usage is not None:
            group["prompt_tokens"] += line.usage.input_tokens
            group["cached_tokens"] += line.usage.cached_tokens
            group["output_tokens"] += line.usage.output_tokens
            group["reasoning_tokens"] += line.usage.reasoning_tokens
            fresh = line.usage.input_tokens - line.usage.cached_tokens
            cost = fresh * 1.5 + line.usage.cached_tokens * 0.25 + line.usage.output_tokens * 4
            group["nanos"] += round(cost * 1000)
    return {
        group: {**counts, "seconds": counts["microseconds"] / 1e6, "cost": counts["nanos"] / 1e9}
        for group, counts in found.items()
    }


def assert_equal(found: dict[str, Any], folder: Path) -> None:
    assert_rows(found, traced(folder))


def assert_rows(found: dict[str, Any], lines: list[TraceLine]) -> None:
    expected = sums(lines)
    rows = {tuple(row[name] for name in BY): row for row in found["rows"] if row["requests"]}
    assert rows.keys() == expected.keys()
    for group, counts in expected.items():
        for name in ("microseconds", "nanos"):
            counts.pop(name, None)
        row = rows[group]
        assert {name: row[name] for name in counts} == counts
    for name in ("prompt_tokens", "output_tokens", "requests"):
        assert found["total"][name] == sum(counts[name] for counts in expected.values()) > 0


def test_sums_equal_the_trace_over_workers_a_restart_and_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with serve(tmp_path) as running:
        send(running, 12, "first")
    with serve(tmp_path) as running:
        send(running, 4, "second")
        assert_budget_of_all_workers(running)
        wait_until_counted(running, 17)
        with interrupted_request(running):
            for pid in children(running):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: running.log.read_text().count("worker_crashed") == 2)
        wait_until(lambda: restarted_workers(running) == 2)
        send(running, 4, "third")
        wait_until_counted(running, 21)
        found = report(running)
        assert found["total"]["running"] + found["total"]["interrupted"] == 1
        wait_until(lambda: len(traced(tmp_path)) == 21)
    assert_equal(found, tmp_path)
    ended = dovetail("usage", "--by", ",".join(BY), "--json", home=home)
    printed = json.loads(ended.out)
    assert (printed["rows"], printed["total"]) == (found["rows"], found["total"])
    later = lambda: time.time() + STALE_SECONDS + 1  # noqa: E731
    counts, running_requests = asyncio.run(total_of(home, later))
    assert (counts.requests, counts.interrupted, running_requests) == (21, 1, 0)


@pytest.mark.long
def test_frontends_share_usage_and_budgets_through_redis(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Two servers with data folders of their own count together."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    store = ("--store", redis.url, "--budget-tokens-per-day", "1000000")
    with (
        serve(tmp_path / "one", *store, workers=1) as one,
        serve(tmp_path / "two", *store, workers=1) as two,
    ):
        send(one, 4, "first")
        send(two, 4, "second")
        wait_until_counted(one, 8)
        assert report(two)["rows"] == report(one)["rows"]
        wait_until(lambda: len([*traced(tmp_path / "one"), *traced(tmp_path / "two")]) == 8)
        lines = [*traced(tmp_path / "one"), *traced(tmp_path / "two")]
        assert_rows(report(one), lines)
        keys = key_file(tmp_path / "two")
        limited = keys.read_text().replace("name=alpha-key", "name=alpha-key tokens-per-day=1")
        keys.write_text(limited)
        two.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "keys_reloaded" in two.log.read_text())
        request = body("/v1/messages", "Once more.")
        assert two.request("POST", "/v1/messages", request, x_api_key="alpha").status == 429
        assert one.request("POST", "/v1/messages", request, x_api_key="alpha").status == 200
        ended = dovetail("usage", "--by", "key", "--csv", "--store", redis.url, home=tmp_path)
        assert [line.split(",")[0] for line in ended.out.splitlines()] == [
            *("key", "alpha-key", "beta-key"),
        ]


@contextmanager
def interrupted_request(running: Running) -> Iterator[None]:
    """A response that has begun when the block runs, and that never ends by itself."""
    request = body("/v1/messages", "Hang, please.", stream=True)
    with running.open("POST", "/v1/messages", request, x_api_key="alpha") as response:
        assert response.status == 200
        assert response.readline()
        wait_until(lambda: report(running)["total"]["running"] == 1)
        yield


def assert_budget_of_all_workers(running: Running) -> None:
    """Use up a budget with one request; then each worker rejects further ones."""
    request = body("/v1/chat/completions", "Once.")
    running.post("/v1/chat/completions", request, x_api_key="limited")
    wait_until(lambda: any(row["tenant"] == "c" and row["requests"] for row in rows_of(running)))
    before = numbers(running, "dovetail_rate_limited_requests_total")

    def is_rejected_by_all() -> bool:
        reply = running.request("POST", "/v1/chat/completions", request, x_api_key="limited")
        assert reply.status == 429
        rejected = numbers(running, "dovetail_rate_limited_requests_total")
        return len([worker for worker in rejected if rejected[worker] > before.get(worker, 0)]) == 2

    wait_until(is_rejected_by_all)


def wait_until_counted(running: Running, requests: int) -> None:
    """Wait until all processes have written their usage, a moment after the responses."""
    wait_until(lambda: report(running)["total"]["requests"] >= requests)
    assert report(running)["total"]["requests"] == requests


def rows_of(running: Running) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = report(running)["rows"]
    return rows


def restarted_workers(running: Running) -> int:
    try:
        return round(sum(numbers(running, "dovetail_worker_restarts_total").values()))
    except OSError:  # no worker accepts connections yet
        return 0


async def total_of(home: Path, clock: Callable[[], float]) -> tuple[UsageCounts, int]:
    store = SqliteUsageStore(home / "usage.sqlite", clock=clock)
    [row] = await store.read(UsageQuery())
    await store.close()
    return row.counts, row.running
