"""Addresses of KV events: settings, what servers report, and the probe."""

import asyncio
import re

import pytest

from dovetail.engines.kv_cache import KvCacheInfo, parse_metrics, parse_server_info
from dovetail.routing.kv_endpoints import KvEventAddress, KvEventAddresses, probe_publisher

AUTO = KvCacheInfo(16, 100, 1, 5557, 5558)


@pytest.mark.parametrize(
    ("events", "replay", "info", "expected"),
    [
        (["tcp://*:5557"], [], KvCacheInfo(), KvEventAddress("tcp://gpu1:5557")),
        (
            ["tcp://*:5557"],
            ["tcp://*:6557"],
            KvCacheInfo(),
            KvEventAddress("tcp://gpu1:5557", "tcp://gpu1:6557"),
        ),
        (["tcp://10.0.0.1:1"], [], KvCacheInfo(), KvEventAddress("tcp://10.0.0.1:1")),
        (
            ["http://gpu1:8000/v1=tcp://other:1", "tcp://*:2"],
            [],
            KvCacheInfo(),
            KvEventAddress("tcp://other:1"),
        ),
        (["http://gpu2:8000=tcp://o:1", "tcp://*:2"], [], AUTO, KvEventAddress("tcp://gpu1:2")),
        (["auto"], [], AUTO, KvEventAddress("tcp://gpu1:5557", "tcp://gpu1:5558")),
    ],
)
def test_addresses(
    events: list[str], replay: list[str], info: KvCacheInfo, expected: KvEventAddress
) -> None:
    assert KvEventAddresses(events, replay).resolve("http://gpu1:8000", info) == expected


def test_ipv6_hosts_have_brackets() -> None:
    found = KvEventAddresses(["tcp://*:5557"]).resolve("http://[::1]:8000", KvCacheInfo())
    assert found.events == "tcp://[::1]:5557"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["5557"], "--kv-events must be tcp://HOST:PORT"),
        (["http://gpu1:5557"], "got 'http://gpu1:5557'"),
        (["tcp://gpu1"], "must be tcp://HOST:PORT"),
        (["tcp://gpu1:99999"], "must be tcp://HOST:PORT"),
        (["http://gpu1:8000=ipc:///a"], "got 'ipc:///a'"),
        (["=tcp://gpu1:1"], "--kv-events must have a URL before '=', got '=tcp://gpu1:1'"),
        (["tcp://[::1:5"], "--kv-events must be tcp://HOST:PORT"),
        (["tcp://*:1", "tcp://*:2"], "two addresses for all replicas"),
    ],
)
def test_invalid_addresses(events: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        KvEventAddresses(events)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (["http://gpu2:8000=tcp://o:1"], "--kv-events has no address for it"),
        (["auto"], "reports no KV events; start it with --kv-events-config"),
    ],
)
def test_replicas_without_an_address(events: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KvEventAddresses(events).resolve("http://gpu1:8000", KvCacheInfo(16))


def test_reports_of_servers() -> None:
    sample = 'vllm:cache_config_info{block_size="32",engine="%d",num_gpu_blocks="120"} 1.0\n'
    assert parse_metrics("# HELP x\n" + sample % 0) == KvCacheInfo(32, 120)
    assert parse_metrics(sample % 0 + sample % 1).ranks == 2
    assert parse_metrics('vllm:cache_config_info{block_size="auto"} 1.0\n') == KvCacheInfo()
    assert parse_metrics("python_info 1.0\n") == KvCacheInfo()
    info = {
        "max_total_num_tokens": 6400,
        "kv_events": {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": 5557,
            "block_size": 64,
            "dp_size": 1,
            "topic": "",
            "replay_endpoint_port_base": 5558,
        },
    }
    assert parse_server_info(info) == KvCacheInfo(64, 100, 1, 5557, 5558)
    assert parse_server_info({"kv_events": None}) == KvCacheInfo()
    assert parse_server_info({"kv_events": {"endpoint_port_base": "x"}}) == KvCacheInfo()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"\xff" + bytes(8) + b"\x7f\x03\x01", None),
        (b"HTTP/1.1 400 Bad Request", "is not a ZMQ socket"),
        (b"", "is not reachable"),
    ],
)
def test_probe(greeting: bytes, reason: str | None) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = await probe_publisher(f"tcp://127.0.0.1:{port}")
        assert found is None if reason is None else reason in str(found)
        assert "is not reachable" in str(await probe_publisher(f"tcp://127.0.0.1:{port}"))

    asyncio.run(main())
