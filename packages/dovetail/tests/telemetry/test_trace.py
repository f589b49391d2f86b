"""Trace files: complete lines, rotation, and writers that never block."""

import asyncio
import errno
import gzip
import json
import os
import stat
import subprocess
import sys
from array import array
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
import zstandard
from http_fixture import NAME, run, serving

from dovetail.http import exchange as capturing
from dovetail.http.options import HttpOptions
from dovetail.settings.config import Config
from dovetail.telemetry.metrics import Metrics
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.telemetry.recorders import open_recorders
from dovetail.telemetry.trace.reader import TraceError, read_traces
from dovetail.telemetry.trace.writer import TraceFile, TraceWriter, hash_prefix_blocks

LINE = b"x" * 99 + b"\n"


def end(id: str = "r", **more: Any) -> RequestRecord:
    return RequestRecord(id=id, endpoint="messages", status=200, duration=0.5, **more)


def put_away(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*"))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("keep", "first"), [(1, 30), (2, 20), (3, 10), (4, 0), (9, 0)])
def test_a_full_file_is_rotated_and_the_oldest_are_deleted(
    tmp_path: Path, keep: int, first: int
) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, max_bytes=1000, max_rotated_files=keep)
    for number in range(45):
        file.write(b"%05d" % number + LINE[5:])
    file.close()
    rotated = put_away(path)
    assert len(rotated) == min(keep, 4)
    assert all(one.name.endswith("Z.gz") for one in rotated)
    lines = b"".join(gzip.decompress(one.read_bytes()) for one in rotated) + path.read_bytes()
    assert [int(line[:5]) for line in lines.splitlines()] == list(range(first, 45))
    assert all(mode(one) == 0o600 for one in (path, *rotated))


def test_no_rotation_without_a_limit_and_no_rotated_files_with_keep_zero(tmp_path: Path) -> None:
    endless = TraceFile(tmp_path / "endless", max_bytes=0, max_rotated_files=2)
    bare = TraceFile(tmp_path / "bare", max_bytes=150, max_rotated_files=0)
    for _ in range(5):
        endless.write(LINE)
        bare.write(LINE)
    endless.close()
    bare.close()
    assert (tmp_path / "endless").stat().st_size == 500
    assert (tmp_path / "bare").read_bytes() == LINE
    assert not put_away(tmp_path / "bare")


def test_files_left_by_a_crash_are_repaired(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"cut": ')
    path.chmod(0o644)
    left = path.with_name(f"{path.name}.20261115T084103.120000Z")
    left.write_bytes(LINE)
    stranger = path.with_name(f"{path.name}.notes")
    stranger.write_bytes(b"mine")
    file = TraceFile(path, max_bytes=1000, max_rotated_files=2)
    file.write(LINE)
    file.close()
    assert path.read_bytes() == b'{"cut": \n' + LINE
    assert mode(path) == 0o600
    assert not left.exists()
    assert gzip.decompress(Path(f"{left}.gz").read_bytes()) == LINE
    assert stranger.read_bytes() == b"mine"


def test_a_second_process_uses_another_file_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from dovetail.telemetry.trace.writer import TraceFile\n"
        "file = TraceFile(Path(sys.argv[1]), 1000, 2); file.write(b'theirs\\n')\n"
        "print(file.path.name, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    first = TraceFile(path, max_bytes=1000, max_rotated_files=2)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline().strip() == "trace-2.jsonl"
        first.write(b"ours\n")
        other.kill()
    first.close()
    assert (path.read_bytes(), (tmp_path / "trace-2.jsonl").read_bytes()) == (
        b"ours\n",
        b"theirs\n",
    )
    again = TraceFile(path, max_bytes=1000, max_rotated_files=2)  # both names are available again
    second = TraceFile(path, max_bytes=1000, max_rotated_files=2)
    assert (again.path.name, second.path.name) == ("trace.jsonl", "trace-2.jsonl")
    again.close()
    second.close()


class Stuck:
    """A file on a hanging disk."""

    path = Path("stuck")

    def __init__(self) -> None:
        self.begun, self.go_on = Event(), Event()
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        self.lines.append(line)

    def close(self) -> None: ...


def test_hanging_disk_delays_no_request_and_drops_are_counted() -> None:
    metrics, file = Metrics(), Stuck()
    inside = RequestContents(ids=array("I", range(1000)), key=b"k")
    writer = TraceWriter(file, metrics.count_trace_dropped, max_queued_bytes=20_000)  # type: ignore[arg-type]
    for number in range(100):
        writer.record_request(end(str(number)), inside)
    assert file.begun.wait(60)
    dropped = metrics.registry.get_sample_value("dovetail_trace_dropped_total")
    assert dropped == 97
    file.go_on.set()
    writer.close()
    assert [json.loads(line)["id"] for line in file.lines] == ["0", "1", "2"]


class Full(Stuck):
    """A disk that is temporarily full."""

    def write(self, line: bytes) -> None:
        if len(self.lines) == 1 and not self.go_on.is_set():
            self.go_on.set()
            raise OSError(28, "No space left on device")
        self.lines.append(line)


def test_a_full_disk_drops_only_the_affected_lines() -> None:
    metrics, file = Metrics(), Full()
    writer = TraceWriter(file, metrics.count_trace_dropped)  # type: ignore[arg-type]
    for number in range(4):
        writer.record_request(end(str(number)), RequestContents())
    writer.close()
    assert metrics.registry.get_sample_value("dovetail_trace_dropped_total") == 1
    assert [json.loads(line)["id"] for line in file.lines] == ["0", "2", "3"]


def test_truncated_line_is_skipped_and_foreign_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    writer = TraceWriter(TraceFile(path, 0, 0))
    for began in (2.0, 1.0):
        writer.record_request(end(f"at {began}", began=began), RequestContents())
    writer.close()
    with path.open("ab") as file:
        file.write(b'{"schema": "dovetail.request/1", "id"')
    packed = tmp_path / "old.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    trace = read_traces([path, packed])
    assert [line.id for line in trace.lines] == ["at 1.0", "at 1.0", "at 2.0", "at 2.0"]
    assert trace.skipped_lines == 2
    assert {line.event for line in trace.lines} == {"request_end"}
    other = tmp_path / "other.jsonl"
    other.write_text('{"schema": "dovetail.request/2", "event": "request_end"}\n')
    with pytest.raises(TraceError, match="is not a trace"):
        read_traces([other])
    with pytest.raises(TraceError, match="cannot be read"):
        read_traces([tmp_path / "missing"])
    broken = tmp_path / "broken.gz"
    damaged = bytearray(packed.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    for content in (packed.read_bytes()[:-20], damaged):
        broken.write_bytes(content)
        with pytest.raises(TraceError, match="cannot be read"):
            read_traces([broken])


def test_an_unwritable_trace_is_reported_immediately(tmp_path: Path) -> None:
    config = Config(trace_file=tmp_path / "missing" / "trace.jsonl")
    with pytest.raises(OSError, match=r"--trace-file .* cannot be written: No such file"):
        open_recorders(config, Metrics())
    assert open_recorders(Config(), Metrics()) == []
    with pytest.raises(ValueError, match="requires --trace-file"):
        open_recorders(Config(trace_payloads=True), Metrics())


def test_digests_require_a_key_and_cover_complete_blocks() -> None:
    ids = array("I", range(1300))
    assert hash_prefix_blocks(ids, b"", "m") == ()
    found = hash_prefix_blocks(ids, b"k", "m")
    assert len(found) == 2
    assert hash_prefix_blocks(ids[:1024], b"k", "m") == found
    assert hash_prefix_blocks(ids[:1023], b"k", "m") == found[:1]
    assert not set(found) & set(hash_prefix_blocks(ids, b"k", "n"))
    changed = array("I", ids)
    changed[0] = 7
    assert not set(found) & set(hash_prefix_blocks(changed, b"k", "m"))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_payloads_are_written_only_on_request(tmp_path: Path, stream: bool) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "xylophone"}]}
    sent = zstandard.compress(json.dumps({**body, "stream": stream}).encode())

    async def one(keeps: bool) -> Any:
        path = tmp_path / f"{keeps}.jsonl"
        async with serving(HttpOptions(capture_payloads=keeps)) as stage:
            stage.engine.plan = stage.engine.script("A zither.")
            stage.app.recorders = [TraceWriter(TraceFile(path, 0, 0))]
            headers = {"content_encoding": "zstd"}
            reply = await stage.request("POST", "/v1/chat/completions", sent, **headers)
            assert reply.status == 200
            await stage.ended.get()
        return msgspec.json.decode(path.read_bytes()), reply.body

    async def scene() -> None:
        line, _ = await one(False)
        assert "payload" not in line
        line, response = await one(True)
        assert json.loads(line["payload"]["request"]) == {**body, "stream": stream}
        assert line["payload"]["answer"] == response.decode()

    run(scene)


def test_payloads_are_bounded() -> None:
    class Exchange:
        def __init__(self) -> None:
            self.extensions: dict[str, Any] = {}
            self.sent: list[bytes] = []

        async def send(self, message: dict[str, Any]) -> None:
            self.sent.append(message.get("body", b""))

    exchange: Any = Exchange()
    capture = capturing.PayloadCapture(exchange, max_bytes=40)

    async def scene() -> None:
        for _ in range(5):
            await exchange.send({"type": "http.response.body", "body": b"0123456789abcdef"})

    asyncio.run(scene())
    assert len(capture.response_body) == 40
    assert len(exchange.sent) == 5


def test_a_device_is_never_renamed(tmp_path: Path) -> None:
    """A pipe, for example, cannot be rotated."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = TraceFile(path, max_bytes=150, max_rotated_files=2)
    for _ in range(3):
        file.write(LINE)
    assert os.read(reader, 1000) == LINE * 3
    file.close()
    os.close(reader)
    assert not put_away(path)


def test_a_removed_file_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, max_bytes=250, max_rotated_files=2)
    file.write(LINE)
    path.rename(tmp_path / "taken")
    for _ in range(3):
        file.write(LINE)
    file.close()
    assert (tmp_path / "taken").read_bytes() == LINE * 2
    assert path.read_bytes() == LINE * 2


def test_the_old_file_stays_open_if_no_new_one_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its descriptor would be reused by another file or client, and then closed."""
    path = tmp_path / "trace.jsonl"
    file = TraceFile(path, max_bytes=150, max_rotated_files=2)
    file.write(LINE)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", _no_more_files)
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files"):
                file.write(LINE)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    file.write(LINE)
    file.close()
    os.close(other)
    assert path.read_bytes() == LINE
    assert [gzip.decompress(one.read_bytes()) for one in put_away(path)] == [LINE]


def _no_more_files(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
