"""`GET /admin/usage`: who may read it, its rows as JSON and CSV, and invalid parameters."""

import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
from http_fixture import NAME, Stage, run, serving

from dovetail.access.auth import ApiKeys, Caller, require_operator
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.usage.report import COLUMNS
from dovetail.usage.sqlite import SqliteUsageStore
from dovetail.usage.writer import UsageWriter
from dovetail_model import Forbidden

BODY: Any = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
KEYS = {"one": ("a", "laptop", False), "two": ("b", "", False), "root": ("ops", "", True)}


class Records:
    """Keeps the records that a trace would contain."""

    def __init__(self) -> None:
        self.found: list[RequestRecord] = []

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        self.found.append(record)

    def close(self) -> None:
        """Do nothing: everything is in memory."""


@asynccontextmanager
async def served(records: Records | None = None) -> AsyncIterator[Stage]:
    rows = [
        ApiKey(tenant, sha256(key.encode()).digest(), admin=admin, name=name)
        for key, (tenant, name, admin) in KEYS.items()
    ]
    options = HttpOptions(keys=ApiKeys(hashed=rows))
    usage = UsageWriter(SqliteUsageStore(None))
    async with serving(options, recorders=[records] if records else [], usage=usage) as stage:
        yield stage


async def report(stage: Stage, query: str = "", key: str = "root") -> Any:
    return await stage.request("GET", f"/admin/usage{query}", x_api_key=key)


def test_rows_equal_the_records_of_the_trace() -> None:
    async def scene() -> None:
        records = Records()
        async with served(records) as stage:
            for key, session, agent in (
                ("one", "s1", "claude-cli/2.1 (external, cli)"),
                ("one", "s1", "claude-cli/2.1 (external, cli)"),
                ("one", "s2", "codex_cli_rs/0.50"),
                ("two", "s1", "curl/8"),
            ):
                headers = {"x_api_key": key, "x_session_id": session, "user_agent": agent}
                reply = await stage.request("POST", "/v1/messages", BODY, **headers)
                assert reply.status == 200
            unknown = {**BODY, "model": "unknown"}  # it has no model, so it is not counted
            reply = await stage.request("POST", "/v1/messages", unknown, x_api_key="one")
            assert reply.status == 404
            by = ("tenant", "key", "model", "session", "harness")
            reply = await report(stage, f"?by={','.join(by)}")
            body = reply.json
            assert (body["object"], body["by"]) == ("usage", list(by))
            expected: dict[tuple[str, ...], dict[str, float]] = {}
            for record in records.found:
                if not record.model:
                    continue
                group = tuple(getattr(record, name) or "" for name in by)
                sums = expected.setdefault(
                    group, {"requests": 0, "prompt": 0, "output": 0, "µs": 0}
                )
                assert record.usage is not None
                sums["requests"] += 1
                sums["prompt"] += record.usage.input_tokens
                sums["output"] += record.usage.output_tokens
                sums["µs"] += round(record.duration * 1e6)
            assert [tuple(row[name] for name in by) for row in body["rows"]] == sorted(expected)
            for row in body["rows"]:
                sums = expected[tuple(row[name] for name in by)]
                assert (row["requests"], row["prompt_tokens"], row["output_tokens"]) == (
                    *(sums["requests"], sums["prompt"], sums["output"]),
                )
                assert row["seconds"] == sums["µs"] / 1e6
            second_key = sha256(b"two").hexdigest()[:12]
            assert {(row["key"], row["harness"]) for row in body["rows"]} == {
                *(("laptop", "claude"), ("laptop", "codex"), (second_key, "other")),
            }
            assert body["total"]["requests"] == 4
            assert set(body["total"]) == set(COLUMNS)

    run(scene)


def test_csv_has_the_same_rows_and_no_formulas() -> None:
    async def scene() -> None:
        async with served() as stage:
            for session in ("=1+1", 'a,"b'):
                await stage.request(
                    "POST", "/v1/messages", BODY, x_api_key="one", x_session_id=session
                )
            reply = await report(stage, "?by=session,day&format=csv")
            assert reply.headers["content-type"].startswith("text/csv")
            rows = list(csv.DictReader(io.StringIO(reply.body.decode())))
            assert [row["session"] for row in rows] == ["'=1+1", 'a,"b']
            assert {row["requests"] for row in rows} == {"1"}
            assert list(rows[0]) == ["session", "day", *COLUMNS]
            assert len(rows[0]["day"]) == len("2026-11-18")

    run(scene)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?by=tenant,color", "unknown dimension 'color'"),
        ("?by=tenant,tenant", "more than once"),
        ("?since=yesterday", "an age such as 12h"),
        ("?since=0d", "an age such as 12h"),
        ("?since=999999-01-01", "an age such as 12h"),
        ("?since=1d&until=2d", "must be later than since"),
        ("?format=xml", "must be json or csv"),
        ("?format=", "must be json or csv"),
        ("?group=tenant", "unknown parameter"),
        ("?group=", "unknown parameter"),
        ("?by=day&by=hour", "more than once"),
    ],
)
def test_invalid_parameters(query: str, words: str) -> None:
    async def scene() -> None:
        async with served() as stage:
            reply = await report(stage, query)
            assert reply.status == 400
            assert words in reply.json["error"]["message"]

    run(scene)


@pytest.mark.parametrize(
    ("query", "since", "until"),
    [
        ("?since=0001-01-01T00:00:00%2B05:00", "1970-01-01T00:00:00Z", None),
        ("?since=1969-01-01&until=9999-12-31T23:59:59", "1970-01-01T00:00:00Z", "9999-12-31"),
        ("?since=9999-12-31T23:59:59-05:00", "9999-12-31T00:00:00Z", None),
    ],
)
def test_times_out_of_range(query: str, since: str, until: str | None) -> None:
    async def scene() -> None:
        async with served() as stage:
            reply = await report(stage, query)
            assert (reply.status, reply.json["since"]) == (200, since)
            assert until is None or reply.json["until"].startswith(until)

    run(scene)


def test_empty_by_reports_only_the_total() -> None:
    async def scene() -> None:
        async with served() as stage:
            await stage.request("POST", "/v1/messages", BODY, x_api_key="one")
            body = (await report(stage, "?by=")).json
            assert body["by"] == []
            assert body["rows"] == [body["total"]]

    run(scene)


def test_an_admin_key_is_required() -> None:
    async def scene() -> None:
        async with served() as stage:
            assert (await report(stage, key="one")).status == 403
            assert (await report(stage, key="none")).status == 401
            assert (await report(stage)).status == 200

    run(scene)


def test_without_keys_only_the_own_machine_may_read() -> None:
    keys, caller = ApiKeys(), Caller(admin=True)
    require_operator(caller, keys, is_local=True)
    with pytest.raises(Forbidden, match="only on the machine"):
        require_operator(caller, keys, is_local=False)
    require_operator(caller, ApiKeys(["key"]), is_local=False)

    async def scene() -> None:
        async with serving(usage=UsageWriter(SqliteUsageStore(None))) as stage:
            assert (await stage.request("GET", "/admin/usage")).status == 200
            for header, value in (
                *(("host", "evil.example"), ("x_forwarded_for", "192.0.2.1")),
                *(("via", "1.1 proxy"), ("x_forwarded_proto", "https")),
            ):
                headers: dict[str, Any] = {header: value}
                foreign = await stage.request("GET", "/admin/usage", **headers)
                assert foreign.status == 403
        async with serving() as stage:
            reply = await stage.request("GET", "/admin/usage")
            assert reply.status == 404
            assert b"--no-usage" in reply.body

    run(scene)


def test_running_requests_are_shown() -> None:
    async def scene() -> None:
        async with served() as stage:
            stage.engine.plan = stage.engine.script("Hello there.", step=1)
            client = stage.anthropic("one")
            async with client.messages.stream(**BODY) as stream:
                async for _ in stream:
                    body = (await report(stage, "?by=key")).json
                    break
                assert body["total"]["running"] + body["total"]["requests"] == 1
            body = (await report(stage, "?by=key")).json
            assert body["total"]["running"] == 0
            assert body["total"]["requests"] == 1

    run(scene)
