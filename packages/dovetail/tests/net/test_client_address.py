"""Client addresses: which address is logged, which proxies are trusted, and where it is omitted."""

import asyncio
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from http_fixture import ALIAS, head, read_reply, run, service, serving
from websocket_fixture import request_response, socket_to

from dovetail.access.auth import ApiKeys
from dovetail.access.limits import RateLimits
from dovetail.http.app import App
from dovetail.http.options import HttpOptions, build_http_options
from dovetail.net.client_address import ClientAddressResolver
from dovetail.server.http_server import create_server
from dovetail.settings.sources import load_config
from dovetail.telemetry.log_throttle import LogThrottle
from dovetail.telemetry.record import RequestContents, RequestRecord
from dovetail.telemetry.trace.writer import encode_trace_line

PROXIES = ("10.0.0.1", "10.1.0.0/16", "2001:db8:1::/48")
BODY = {"model": ALIAS, "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}


def resolve(peers: ClientAddressResolver, connected: str, *forwarded: str) -> Any:
    headers = [(b"x-forwarded-for", one.encode("latin-1")) for one in forwarded]
    scope = {"client": (connected, 5000), "headers": [(b"host", b"x"), *headers]}
    peers.set_client(scope)
    client: Any = scope["client"]
    return None if client is None else client[0]


@pytest.mark.parametrize(
    ("connected", "forwarded", "expected"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),  # the first is forged
        ("10.0.0.1", ["198.51.100.1", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, 10.1.2.3 ,10.0.0.1"], "203.0.113.9"),
        ("10.0.0.1", ["10.1.2.3, 10.1.2.4"], "10.1.2.3"),  # from the local network
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9, evil, 10.1.2.3"], "10.1.2.3"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9:47:11"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.900"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9\n"], "203.0.113.9"),
        ("10.0.0.1", ["2001:DB8:0::7"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]"], "2001:db8::7"),
        ("10.0.0.1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("10.0.0.1", ["[203.0.113.9"], "10.0.0.1"),
        ("10.0.0.1", ["fe80::1%evil text"], "10.0.0.1"),
        ("10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["1" * 65], "10.0.0.1"),
        ("10.0.0.1", ["\xb2\xb3.1.1.1"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9" + ", 10.1.2.3" * 40], "10.1.2.3"),  # too many hops
        ("10.0.0.2", ["203.0.113.9"], "10.0.0.2"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("::ffff:10.0.0.2", ["203.0.113.9"], "10.0.0.2"),
        ("2001:db8:1::5", ["2001:db8:1::6, 203.0.113.9, 2001:db8:1:2::3"], "203.0.113.9"),
        ("2001:db8:2::5", ["203.0.113.9"], "2001:db8:2::5"),
        ("fe80::1%eth0", ["203.0.113.9"], "fe80::1"),
    ],
)
def test_forwarded_addresses_of_trusted_proxies(
    connected: str, forwarded: list[str], expected: str
) -> None:
    assert resolve(ClientAddressResolver(PROXIES), connected, *forwarded) == expected


def test_no_proxy_is_trusted_by_default_and_addresses_can_be_disabled() -> None:
    assert resolve(ClientAddressResolver(), "127.0.0.1", "203.0.113.9") == "127.0.0.1"
    assert resolve(ClientAddressResolver(PROXIES, enabled=False), "10.0.0.1", "203.0.113.9") is None


@pytest.mark.parametrize("given", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", ""])
def test_invalid_proxy_is_reported_at_startup(given: str) -> None:
    config = load_config({"trusted_proxy": [given]}, {"DOVETAIL_CONFIG": ""}).config
    with pytest.raises(ValueError, match="--trusted-proxy: "):
        build_http_options(config)


def test_proxies_by_environment_are_a_list() -> None:
    variables = {"DOVETAIL_CONFIG": "", "DOVETAIL_TRUSTED_PROXY": "10.0.0.1, 2001:db8:1::/48"}
    options = build_http_options(load_config({}, variables).config)
    assert resolve(options.client_addresses, "2001:db8:1::5", "203.0.113.9") == "203.0.113.9"


class Ends:
    """A recorder, like a trace."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def record_request(self, record: RequestRecord, contents: RequestContents) -> None:
        self.lines.append(encode_trace_line(record, contents))

    def close(self) -> None:
        """Do nothing: there is no file to close."""


def test_address_is_in_request_logs_but_not_in_traces_or_metrics() -> None:
    """Rejections matter most: an operator may want to block their senders."""
    keys = ApiKeys(["key", "other"], limits=RateLimits(requests=2))
    options = HttpOptions(keys=keys, max_body_bytes=1000, metrics_need_key=True)
    ends = Ends()

    async def scene() -> None:
        async with serving(options, recorders=[ends]) as stage:
            good = {"x_api_key": "key", "x_forwarded_for": "203.0.113.9"}
            requests: list[tuple[int, str, str, Any, dict[str, str]]] = [
                (401, "POST", "/v1/messages", BODY, {"x_forwarded_for": "203.0.113.9"}),
                (401, "GET", "/v1/models", b"", {"x_api_key": "guess"}),
                (401, "GET", "/metrics", b"", {"x_api_key": "guess"}),
                (404, "GET", "/nowhere", b"", {}),
                (413, "POST", "/v1/messages", b"x" * 2000, good),
                (200, "POST", "/v1/messages", BODY, good),
                (429, "POST", "/v1/messages", BODY, good),
            ]
            for status, method, path, body, headers in requests:
                assert (await stage.request(method, path, body, **headers)).status == status
                line = await stage.ended.get()
                assert (line["status"], line["peer"]) == (status, "127.0.0.1")
            stage.app.draining.start()
            assert (
                await stage.request("POST", "/v1/messages", BODY, x_api_key="other")
            ).status == 503
            assert (await stage.ended.get())["peer"] == "127.0.0.1"
            assert b"127.0.0.1" not in stage.app.metrics.render()[0]

    run(scene)
    assert len(ends.lines) == 8
    assert not any(b"127.0.0.1" in one or b"203.0.113" in one for one in ends.lines)


def test_websocket_messages_have_the_address_of_the_client() -> None:
    """Headers inside a message are a claim of the client, not of the proxy."""
    options = HttpOptions(client_addresses=ClientAddressResolver(["127.0.0.0/8"]))
    claims = {"x-forwarded-for": "1.1.1.1", "ws_request_header_x-forwarded-for": "1.1.1.1"}

    async def scene() -> None:
        async with (
            serving(options) as stage,
            socket_to(stage, x_forwarded_for="203.0.113.9") as opened,
        ):
            await request_response(opened, client_metadata=claims)
            for status in (101, 200):
                line = await stage.ended.get()
                assert (line["status"], line["peer"]) == (status, "203.0.113.9")

    run(scene)


def test_a_log_without_addresses() -> None:
    async def scene() -> None:
        async with serving(
            HttpOptions(
                client_addresses=ClientAddressResolver(enabled=False), keys=ApiKeys(["key"])
            )
        ) as stage:
            for path in ("/v1/models", "/nowhere"):
                await stage.request("GET", path)
                assert "peer" not in await stage.ended.get()

    run(scene)


def test_unix_socket_client_has_no_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        app = App(
            service()[0],
            HttpOptions(
                keys=ApiKeys(["key"]), client_addresses=ClientAddressResolver(["127.0.0.1"])
            ),
        )
        with socket.socket(socket.AF_UNIX) as place:
            place.bind(str(tmp_path / "place"))
            running = create_server(app, drain=app.draining)
            task = asyncio.create_task(running.serve([place]))
            while not running.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_unix_connection(tmp_path / "place")
            writer.write(head("GET", "/v1/models", 0, {"x-forwarded-for": "203.0.113.9"}))
            assert (await read_reply(reader)).status == 401
            writer.close()
            running.should_exit = True
            await task

    with caplog.at_level(logging.INFO, "dovetail.request"):
        run(scene)
    [line] = [vars(one)["fields"] for one in caplog.records if one.name == "dovetail.request"]
    assert line["status"] == 401
    assert "peer" not in line


def test_suppressed_logs_are_summarized_per_address(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        throttle = LogThrottle(
            max_lines=1,
            interval_seconds=0.01,
            count_field="handshakes",
            max_peers=3,
            max_reported_peers=2,
        )
        assert throttle.allow("a")
        for peer, times in (("a", 5), ("b", 1), ("c", 3), ("d", 2), (None, 1)):
            assert [throttle.allow(peer) for _ in range(times)] == [False] * times
        while not caplog.records:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)

    run(scene)
    assert [vars(one)["fields"] for one in caplog.records] == [
        {"handshakes": 5, "peer": "a"},
        {"handshakes": 3, "peer": "c"},
        {"handshakes": 4},
    ]


def test_background_response_has_the_address() -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = {"model": ALIAS, "input": "Hi", "background": True}
            reply = await stage.request("POST", "/v1/responses", body)
            assert reply.json["status"] == "queued"
            assert (await stage.ended.get())["peer"] == "127.0.0.1"

    run(scene)
