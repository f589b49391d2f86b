"""Who can use the web UI over HTTP, and what it returns."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from http_fixture import Stage, head, run, serving
from simulated_sessions import SimulatedSession

from dovetail.access.auth import ApiKeys
from dovetail.access.browser import BrowserPolicy
from dovetail.access.key_file import ApiKey, read_keys
from dovetail.http.options import HttpOptions, build_http_options
from dovetail.settings.config import Config
from dovetail.telemetry.record import RequestContents
from dovetail.telemetry.trace.reader import read_traces
from dovetail.telemetry.trace.writer import TraceFile, TraceWriter
from dovetail.ui.page import read_static_files

PATHS = ("/ui", "/ui/app.js", "/ui/api/overview", "/ui/api/sessions", "/ui/api/events")
OPEN = HttpOptions(ui=True)


async def statuses(stage: Stage, paths: tuple[str, ...] = PATHS[:4], **headers: str) -> set[int]:
    return {(await stage.request("GET", path, b"", **headers)).status for path in paths}


def test_ui_is_served_to_this_machine_without_keys() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            assert await statuses(stage) == {200}
            for name, (body, kind) in read_static_files().items():
                reply = await stage.request("GET", f"/ui/{name}")
                assert (reply.body, reply.headers["content-type"]) == (body, kind)
            assert (await stage.request("GET", "/ui/")).headers["location"] == "../ui"
            assert await statuses(stage, ("/ui/no.js", "/ui/../x", "/ui/api/none")) == {404}
            assert (await stage.request("GET", "/ui/api/session", id="nobody")).status == 404
            assert (await stage.request("POST", "/ui", {})).status == 405

    run(scene)


def test_offset_of_any_length() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            for offset in ("-1", "x", "\u0663", "9" * 5000):
                path = f"/ui/api/sessions?offset={quote(offset)}"
                reply = await stage.request("GET", path, b"")
                assert (reply.status, reply.json["offset"]) == (200, 0)

    run(scene)


def test_ui_can_be_disabled() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(ui=False)) as stage:
            assert await statuses(stage) == {404}
            assert stage.app.ui is None

    run(scene)
    assert build_http_options(Config()).ui
    assert not build_http_options(Config(ui=False)).ui


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example"},
        {"host": "192.0.2.7"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "cors"},
        {"x_forwarded_for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"via": "1.1 proxy"},
    ],
)
def test_foreign_pages_and_proxies_are_rejected_without_keys(headers: dict[str, str]) -> None:
    async def scene() -> None:
        policy = BrowserPolicy(["192.0.2.7"])  # allowed for the APIs, but not this machine
        async with serving(HttpOptions(ui=True, browser_policy=policy)) as stage:
            assert await statuses(stage, PATHS[:4], **headers) == {403}

    run(scene)


def test_other_machines_are_rejected_without_keys() -> None:
    """The address of the connection counts, even if addresses are not logged."""

    async def scene() -> None:
        async with serving(OPEN) as stage:
            app = stage.app
            sent: list[int] = []

            async def send(message: dict[str, object]) -> None:
                if message["type"] == "http.response.start":
                    status = message["status"]
                    assert isinstance(status, int)
                    sent.append(status)

            async def receive() -> dict[str, object]:
                return {"type": "http.request", "body": b"", "more_body": False}

            for client in (("203.0.113.9", 1), None, ("127.0.0.1", 1), ("::ffff:127.0.0.1", 1)):
                scope = {
                    "type": "http",
                    "method": "GET",
                    "path": "/ui/api/overview",
                    "raw_path": b"/ui/api/overview",
                    "query_string": b"",
                    "headers": [(b"host", b"localhost:8000")],
                    "client": client,
                }
                await app(scope, receive, send)  # type: ignore[arg-type]
            assert sent == [403, 403, 200, 200]

    run(scene)


def test_data_requires_an_admin_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    digest = ApiKeys(["user-key"])._static_keys[0].digest.hex()
    file.write_text(f"team:{digest}\n")
    keys = ApiKeys(["admin-key"], file=file)
    data = PATHS[2:]

    async def scene() -> None:
        async with serving(HttpOptions(ui=True, keys=keys)) as stage:
            assert await statuses(stage, PATHS[:2]) == {200}  # the page itself has no data
            assert await statuses(stage, data) == {401}
            assert await statuses(stage, data, x_api_key="wrong") == {401}
            assert await statuses(stage, data, x_api_key="user-key") == {403}
            assert await statuses(stage, data[:2], x_api_key="admin-key") == {200}
            bearer = {"authorization": "Bearer admin-key"}
            assert await statuses(stage, data[:2], **bearer) == {200}
            foreign = {"x_api_key": "admin-key", "origin": "https://evil.example"}
            assert await statuses(stage, PATHS, **foreign) == {403}
            assert await statuses(stage, PATHS, x_api_key="admin-key", host="evil.example") == {403}

    assert isinstance(read_keys(file, keys._limits)[0], ApiKey)
    run(scene)


def test_responses_have_a_strict_policy_and_are_not_cached() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            for path in PATHS[:4]:
                headers = (await stage.request("GET", path)).headers
                policy = headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert "*" not in policy
                assert headers["cache-control"] == "no-store"
                assert headers["x-content-type-options"] == "nosniff"

    run(scene)


async def read_event(reader: asyncio.StreamReader) -> dict[str, object]:
    while not (line := await reader.readline()).startswith(b"data: "):
        assert line
    event: dict[str, object] = json.loads(line[6:])
    return event


def test_events_are_sent_until_the_server_stops() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            assert stage.app.ui is not None
            reader, writer = await stage.connect()
            writer.write(head("GET", "/ui/api/events", 0))
            assert (await read_event(reader))["totals"]["requests"] == 0  # type: ignore[index]
            stage.app.ui.record_request(SimulatedSession("s").turn(1.0), RequestContents())
            while (await read_event(reader))["totals"]["requests"] == 0:  # type: ignore[index]
                pass
            stage.app.draining.start()
            rest = await reader.read()
            assert rest.endswith(b"0\r\n\r\n")
            writer.close()

    run(scene)


def test_key_that_is_revoked_ends_the_stream() -> None:
    keys = ApiKeys(["admin-key"])

    async def scene() -> None:
        async with serving(HttpOptions(ui=True, keys=keys)) as stage:
            reader, writer = await stage.connect()
            writer.write(head("GET", "/ui/api/events", 0, {"x-api-key": "admin-key"}))
            await read_event(reader)
            keys._table.clear()
            rest = await reader.read()
            assert rest.endswith(b"0\r\n\r\n")
            assert (await stage.request("HEAD", "/ui/api/events", b"")).status == 401
            writer.close()

    run(scene)


def test_payloads_need_keys_and_do_not_reach_the_trace(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--ui-payloads requires"):
        build_http_options(Config(ui_payloads=True))
    options = build_http_options(Config(ui_payloads=True, api_key=("admin-key",)))
    assert options.capture_payloads
    writer = TraceWriter(TraceFile(tmp_path / "trace.jsonl", 0, 0), payloads=False)
    contents = RequestContents(body=b"secret", response_body=b"secret")
    writer.record_request(SimulatedSession("s").turn(1.0), contents)
    writer.close()
    assert read_traces([tmp_path / "trace.jsonl"]).lines[0].payload is None
    assert "secret" not in (tmp_path / "trace.jsonl").read_text()


def test_texts_are_not_returned_without_payloads() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            assert stage.app.ui is not None
            contents = RequestContents(body=b"secret", divergence=("secret", "secret", "secret"))
            made = SimulatedSession("s").turn(1.0)
            stage.app.ui.record_request(made, contents)
            reply = await stage.request("GET", "/ui/api/session?id=s")
            assert reply.status == 200
            assert b"secret" not in reply.body
            assert (
                await stage.request("GET", f"/ui/api/payload?id=s&turn={made.id}")
            ).status == 404

    run(scene)


def test_requests_of_the_page_are_not_counted() -> None:
    async def scene() -> None:
        async with serving(OPEN) as stage:
            await statuses(stage)
            overview = (await stage.request("GET", "/ui/api/overview")).json
            assert overview["totals"]["requests"] == 0
            assert overview["running"] == overview["queued"] == 0
            assert stage.ended.empty()

    run(scene)
