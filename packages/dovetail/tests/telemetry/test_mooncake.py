"""Traces in Mooncake's format, from trace files of the server to the simulator."""

from array import array
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from dovetail.cli.main import build_app
from dovetail.simulate.simulation import ReplicaModel, Simulation
from dovetail.simulate.trace import read_trace
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.telemetry.trace.writer import encode_trace_line
from dovetail_model import Usage


def write_trace(path: Path, block_tokens: int) -> Path:
    """Write three requests: two of a session, and one that shares 64 tokens with them."""
    prompts = [
        ("red", "secret-name", [*range(100)]),
        ("red", "secret-name", [*range(150)]),
        ("red", None, [*range(64), *range(900, 936)]),
    ]
    lines = [
        encode_trace_line(
            RequestRecord(
                id=f"r{number}",
                endpoint="messages",
                status=200,
                duration=1.0,
                began=1000.0 + number,
                model="m",
                tenant=tenant,
                session=session,
                usage=Usage(len(ids), 7),
            ),
            RequestContents(ids=array("I", ids), key=b"key of red"),
            block_tokens,
        )
        for number, (tenant, session, ids) in enumerate(prompts)
    ]
    path.write_bytes(b"".join(lines))
    return path


def convert(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build_app(["trace"]), ["trace", "mooncake", *arguments])
    return result.exit_code, result.output


def test_conversion_keeps_shared_prefixes_and_drops_names(tmp_path: Path) -> None:
    status, text = convert(str(write_trace(tmp_path / "t.jsonl", 16)))
    assert status == 0
    assert "secret-name" not in text
    assert "red" not in text
    first, second, third = (msgspec.json.decode(line) for line in text.splitlines())
    assert [one["timestamp"] for one in (first, second, third)] == [0, 1000, 2000]
    assert (first["input_length"], first["output_length"]) == (100, 7)
    assert [len(one["hash_ids"]) for one in (first, second, third)] == [7, 10, 7]
    assert second["hash_ids"][:6] == first["hash_ids"][:6]
    assert second["hash_ids"][6] != first["hash_ids"][6]  # an incomplete block is not shared
    assert third["hash_ids"][:4] == first["hash_ids"][:4]
    assert not set(third["hash_ids"][4:]) & set(second["hash_ids"])
    assert first["session_id"] == second["session_id"] == "s0"
    assert "session_id" not in third


def test_simulator_reads_converted_traces(tmp_path: Path) -> None:
    source, target = write_trace(tmp_path / "t.jsonl", 16), tmp_path / "m.jsonl"
    assert convert(str(source), "-o", str(target), "--block-size", "32")[0] == 0
    trace = read_trace(target)
    assert trace.block_tokens == 32
    result = Simulation(trace, 1, ReplicaModel(100), "kv").run()
    assert [one.cached_tokens for one in result.requests] == [0, 96, 64]


@pytest.mark.parametrize("size", ["8", "24"])
def test_block_size_must_be_a_multiple(tmp_path: Path, size: str) -> None:
    status, text = convert(str(write_trace(tmp_path / "t.jsonl", 16)), "--block-size", size)
    assert status == 1
    assert "--block-size must be a multiple of 16" in text


def test_trace_without_requests_is_reported(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").touch()
    status, text = convert(str(tmp_path / "t.jsonl"))
    assert (status, "the trace files contain no requests" in text) == (1, True)
