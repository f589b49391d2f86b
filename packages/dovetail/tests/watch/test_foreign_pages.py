"""Web pages cannot use the server behind the relay."""

import asyncio
import random
from collections.abc import Sequence

import pytest
from http_fixture import Stage, head, read_reply, run, service, serving
from watch_fixture import endpoint, listening, relaying

from dovetail.access.browser import BrowserPolicy
from dovetail.http.app import App
from dovetail.http.options import HttpOptions
from dovetail.server.http_server import create_server, wait_until_started
from dovetail.watch.fix import FixApp
from dovetail.watch.request_heads import MAX_HEAD_BYTES, RequestHeadFilter
from dovetail_model import Forbidden

EVIL = "https://evil.example"
FOREIGN: Sequence[tuple[str, dict[str, str]]] = [
    ("/v1/models", {"host": "evil.example"}),
    ("/v1/models", {"host": "localhost.evil.example:8001"}),
    ("/v1/models", {"origin": EVIL}),
    ("/v1/models", {"origin": "null"}),
    ("/v1/models", {"Origin": EVIL, "origin": "http://localhost"}),
    ("/v1/models", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    ("http://evil.example/v1/models", {}),
    ("http://localhost/v1/models", {"host": "evil.example"}),
    ("HTTP://localhost@evil.example/v1/models", {}),
]


@pytest.mark.parametrize(("target", "headers"), FOREIGN)
def test_relay_refuses_foreign_pages(target: str, headers: dict[str, str]) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(-1))

    async def scene() -> None:
        async with listening(serve) as port, relaying(port, policy=BrowserPolicy()) as (relay, own):
            reader, writer = await asyncio.open_connection("127.0.0.1", own)
            for byte in head("POST", target, 2, headers) + b"{}":
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            reply = await read_reply(reader)
            assert reply.status == 403
            assert b"--allowed-" in reply.body
            writer.close()
            assert relay.stats.refused == 1
        assert b"".join(received) == b""

    run(scene)


def test_every_request_of_a_connection_is_checked() -> None:
    body = b"x" * 100
    allowed = head("POST", "/v1/messages", len(body), {"connection": "keep-alive"}) + body
    chunked = (
        b"POST /v1/messages HTTP/1.1\r\nHost: [::1]:8001\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5\r\nHost:\r\n0\r\n\r\n"
    )
    refused = head("POST", "/v1/messages", len(body), {"origin": EVIL}) + body
    for seed in range(20):
        passed: list[bytes] = []
        with pytest.raises(Forbidden, match="evil"):
            feed_in_pieces(allowed + chunked + allowed + refused, random.Random(seed), passed)
        forwarded = b"".join(passed)
        assert forwarded == (allowed + chunked + allowed)[: len(forwarded)]
        assert len(forwarded) > len(allowed + chunked)


def feed_in_pieces(data: bytes, chance: random.Random, passed: list[bytes]) -> None:
    heads = RequestHeadFilter(BrowserPolicy())
    while data:
        size = chance.choice((1, 7, 60))
        passed.append(heads.feed(data[:size]))
        data = data[size:]


def test_allowed_hosts_and_origins_pass_unchanged() -> None:
    policy = BrowserPolicy(["watch.local"], ["http://app.example"])
    for headers in ({"host": "watch.local:1"}, {"origin": "http://app.example"}, {}):
        data = head("GET", "/v1/models", 0, headers)
        assert RequestHeadFilter(policy).feed(data) == data


def test_endless_head_is_refused() -> None:
    heads = RequestHeadFilter(BrowserPolicy())
    assert heads.feed(b"x" * MAX_HEAD_BYTES) == b""
    with pytest.raises(Forbidden, match="head of a request"):
        heads.feed(b"x")


def test_fix_mode_forwards_nothing_of_foreign_pages() -> None:
    async def scene() -> None:
        policy = BrowserPolicy(allowed_origins=["http://app.example"])
        app = App(service()[0], HttpOptions(browser_policy=policy))
        async with serving() as stage:
            fixed = FixApp(app, endpoint(stage.port), lambda _: None, lambda _: None)
            server = create_server(fixed, "127.0.0.1", 0, drain=app.draining)
            task = asyncio.create_task(server.serve())
            assert await wait_until_started(server, task)
            own = server.servers[0].sockets[0].getsockname()[1]
            front = Stage(app, stage.engine, own, server, stage.ended)
            for path in ("/version", "/v1/models", "/v1/messages"):
                for target, headers in FOREIGN:
                    if "Origin" in headers or "@" in target:
                        continue  # rejected by the HTTP parser
                    called = target.replace("/v1/models", path)
                    assert (await front.request("GET", called, b"", **headers)).status == 403
            assert (await front.request("GET", "/v1/models")).status == 200
            preflight = await front.request(
                "OPTIONS",
                "/v1/messages",
                origin="http://app.example",
                access_control_request_method="POST",
            )
            assert preflight.status == 204
            server.should_exit = True
            await task

    run(scene)
