"""What operators see in logs and metrics of failures outside of successful requests."""

import logging
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from background_fixture import Gate, until
from http_fixture import NAME, StageEngine, head, read_reply, run, serving, tiny_model
from openai import AsyncStream
from openai.types.responses import Response

from dovetail.access.auth import ApiKeys
from dovetail.access.key_file import ApiKey
from dovetail.http.options import HttpOptions
from dovetail.net import http_protocol as connection
from dovetail.net.http_protocol import ConnectionTimeouts
from dovetail.routing.pool import ReplicaPool
from dovetail.server import process as folders
from dovetail.server.process import (
    LOCK_FILE,
    PREFIX,
    create_runtime_dir,
    describe_exit_status,
    hold_runtime_dir,
)
from dovetail.telemetry.log import configure_logging
from dovetail.telemetry.log_throttle import DEFAULT_MAX_LINES
from dovetail.telemetry.metrics import Metrics
from dovetail_model import EngineUnavailable

LARGE = b"GET / HTTP/1.1\r\nx-long: " + b"x" * connection.MAX_HEADER_BYTES


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        (b"HELLO\r\n\r\n", 400, "malformed"),
        (b"GET / HT", 408, "slow_headers"),
        (LARGE, 431, "large_headers"),
    ],
)
def test_refused_connection_is_counted(sent: bytes, status: int, reason: str) -> None:
    timeouts = ConnectionTimeouts(header_seconds=0.02 if status == 408 else 20.0)

    async def scene() -> None:
        async with serving(timeouts=timeouts) as stage:
            reader, writer = await stage.connect()
            writer.write(sent)
            assert (await read_reply(reader)).status == status
            writer.close()
            assert stage.metric("dovetail_refused_connections_total", reason=reason) == 1

    run(scene)


def test_served_request_is_not_counted_as_refused() -> None:
    async def scene() -> None:
        async with serving() as stage:
            reader, writer = await stage.connect()
            writer.write(head("GET", "/nowhere", 0))
            assert (await read_reply(reader)).status == 404
            writer.close()
            lines = stage.app.metrics.render()[0].decode().splitlines()
            counts = [one for one in lines if one.startswith("dovetail_refused_connections_total{")]
            assert [one.split()[-1] for one in counts] == ["0.0"]

    run(scene)


def test_connections_over_the_limit_are_counted_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "max_connections", lambda: 0)

    async def scene() -> None:
        async with serving() as stage:
            for _ in range(5):
                reader, writer = await stage.connect()
                assert (await read_reply(reader)).status == 503
                writer.close()
            assert stage.metric("dovetail_refused_connections_total", reason="connections") == 5

    run(scene)
    logged = [one for one in caplog.records if one.message == "connection_limit_reached"]
    assert [one.levelname for one in logged] == ["WARNING"]


@pytest.mark.parametrize("path", ["/metrics", "/health"])
def test_key_guesses_at_probes_are_counted_and_bounded(path: str) -> None:
    """The response of a probe is the same with a wrong key as without a key."""
    options = HttpOptions(keys=ApiKeys(["key"]), metrics_need_key=True)

    async def scene() -> None:
        async with serving(options) as stage:
            bare = await stage.request("GET", path)
            for _ in range(DEFAULT_MAX_LINES + 5):
                guess = await stage.request("GET", path, x_api_key="guess")
                assert guess.status == bare.status
            assert (await stage.request("GET", path, x_api_key="key")).status == 200
            lines = [stage.ended.get_nowait() for _ in range(stage.ended.qsize())]
            assert len(lines) == DEFAULT_MAX_LINES
            assert {line["status"] for line in lines} == {401}
            assert lines[-1]["reason"] == "unknown_key"
            labels = {"model": "", "endpoint": path.strip("/"), "request_type": "unary"}
            refused = stage.metric("dovetail_requests_total", status="401", **labels)
            assert refused == DEFAULT_MAX_LINES + 5 + (bare.status == 401)

    run(scene)


@pytest.mark.parametrize("path", ["/ready", "/health"])
def test_engines_are_shown_only_with_a_key(path: str) -> None:
    team = ApiKey("team", sha256(b"key").digest())
    options = HttpOptions(keys=ApiKeys(["admin"], [team]))

    async def scene() -> None:
        async with serving(options) as stage:
            assert (await stage.request("GET", path)).json == {"status": "ready"}
            guess = await stage.request("GET", path, x_api_key="guess")
            assert guess.json == {"status": "ready"}
            shown = (await stage.request("GET", path, x_api_key="key")).json
            assert set(shown) == {"status", "engines"}
            assert set(shown["engines"][0]) == {"engine", "ready"}
            shown = (await stage.request("GET", path, x_api_key="admin")).json
            assert set(shown) == {"status", "engines", "stores"}
            assert set(shown["engines"][0]) == {"engine", "ready", "detail", "facts"}
        async with serving() as stage:
            assert "stores" in (await stage.request("GET", path)).json

    run(scene)


def test_key_without_access_to_metrics_is_logged() -> None:
    key = ApiKey("team", sha256(b"key").digest())
    options = HttpOptions(keys=ApiKeys(hashed=[key]), metrics_need_key=True)

    async def scene() -> None:
        async with serving(options) as stage:
            assert (await stage.request("GET", "/metrics", x_api_key="key")).status == 403
            line = stage.ended.get_nowait()
            assert (line["endpoint"], line["status"], line["tenant"]) == ("metrics", 403, "team")

    run(scene)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelled_response_is_not_logged_as_a_disconnect(stream: bool) -> None:
    async def scene() -> None:
        async with serving() as stage:
            Gate(stage)
            client = stage.openai()
            created = await client.responses.create(
                model=NAME, input="Tell", background=True, stream=stream
            )
            first_event: Any = (
                await anext(aiter(created)) if isinstance(created, AsyncStream) else None
            )
            id = created.id if isinstance(created, Response) else first_event.response.id
            await until(stage, id, "in_progress")
            await client.responses.cancel(id)
            line = await stage.ended.get()
            while line["endpoint"] != "responses":
                line = await stage.ended.get()
            assert (line["status"], line["finish"], line["stream"]) == (200, "cancelled", stream)
            assert "disconnected" not in line
            gone = stage.app.metrics.registry.get_sample_value(
                "dovetail_disconnected_clients_total", {"model": NAME}
            )
            assert not gone

    run(scene)


def test_response_aborted_by_the_server_is_logged_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        async with serving(HttpOptions(drain_timeout=0.05)) as stage:
            Gate(stage)
            created = await stage.openai().responses.create(model=NAME, input="Hi", background=True)
            await until(stage, created.id, "in_progress")

    run(scene)
    lines = [vars(one)["fields"] for one in caplog.records if one.message == "request_finished"]
    (line,) = [one for one in lines if one["endpoint"] == "responses"]
    assert (line["status"], line["reason"]) == (500, "draining")
    assert "disconnected" not in line


def test_build_and_process_metrics_are_present() -> None:
    metrics = Metrics()
    metrics.count_rate_limited("tokens")
    metrics.count_restarts(2)
    text = metrics.render()[0].decode()
    assert 'dovetail_build_info{version="' in text
    assert "process_resident_memory_bytes " in text
    assert "process_start_time_seconds " in text
    assert "dovetail_worker_restarts_total 2.0" in text
    assert "_created" not in text
    assert b"_created" not in metrics.render("application/openmetrics-text; version=1.0.0")[0]


def test_histograms_have_help_texts() -> None:
    for family in Metrics().registry.collect():
        if family.type == "histogram":
            name = family.name.removeprefix("dovetail_").replace("_", " ")
            assert family.documentation.lower().rstrip(".") != name


def test_single_engine_start_failure_is_reported_by_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise EngineUnavailable("no weights")

    async def scene(count: int) -> None:
        engines = [StageEngine(tiny_model()) for _ in range(count)]
        for engine in engines:
            engine.start = fail  # type: ignore[method-assign]
        with pytest.raises(EngineUnavailable, match="no weights"):
            await ReplicaPool(engines).start()

    run(lambda: scene(1))
    assert not caplog.records
    run(lambda: scene(2))
    assert [one.message for one in caplog.records] == ["replica_failed"] * 2


@pytest.mark.parametrize(("level", "lowest"), [("debug", "WARNING"), ("error", "ERROR")])
def test_uvicorn_logs_only_errors(level: str, lowest: str) -> None:
    root = logging.getLogger()
    before, handlers = root.level, root.handlers[:]
    try:
        configure_logging(level=level)
        assert logging.getLevelName(logging.getLogger("uvicorn.error").level) == lowest
    finally:
        root.setLevel(before)
        root.handlers[:] = handlers
        logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_lock_fds", [])
    return tmp_path


def let_go() -> None:
    """Release the locks, as if the process had ended."""
    while folders._lock_fds:
        os.close(folders._lock_fds.pop())


def test_stale_runtime_folder_is_removed(temporary: Path) -> None:
    left = create_runtime_dir()
    (left / "engine-0").touch()
    assert left.parent == temporary
    still = create_runtime_dir()
    assert left.exists()  # a process holds it
    let_go()
    assert create_runtime_dir() != left
    assert not left.exists()
    assert not still.exists()
    let_go()


def test_worker_that_outlives_its_parent_keeps_the_folder(temporary: Path) -> None:
    left = create_runtime_dir()
    parents = folders._lock_fds.pop()
    hold_runtime_dir(left)
    os.close(parents)
    create_runtime_dir()
    assert left.exists()
    let_go()


def test_only_folders_of_a_supervisor_are_removed(temporary: Path) -> None:
    """Not folders that others can access, that were never locked, links, or other names."""
    retained = [temporary / name for name in (f"{PREFIX}open", f"{PREFIX}bare", "other-folder")]
    for one in retained:
        one.mkdir(mode=0o700)
    for one in (retained[0], retained[2]):
        (one / LOCK_FILE).touch()
    retained[0].chmod(0o755)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / LOCK_FILE).touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    create_runtime_dir()
    assert all(
        one.exists() for one in [*retained, elsewhere / LOCK_FILE, temporary / f"{PREFIX}link"]
    )
    let_go()


def test_exit_status_is_described() -> None:
    assert [describe_exit_status(one) for one in (1, -9, -99)] == [
        "status 1",
        "SIGKILL",
        "signal 99",
    ]
