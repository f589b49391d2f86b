"""Checks below the APIs: connections, compression, API keys, concurrency, disconnects."""

import asyncio
import gzip
import re
from collections.abc import Callable

import zstandard

from dovetail_verify.black_box.errors import require_refused
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import CheckFailed, check, require
from dovetail_verify.dialects import DIALECTS, Dialect
from dovetail_verify.exchange import HttpExchange, SentRequest
from dovetail_verify.http_client import open_connection
from dovetail_verify.target import TargetServer

_CONCURRENT_REQUESTS = 4
_MAX_RELEASE_SECONDS = 5.0  # from a disconnect to the end of the generation
_SLACK_SECONDS = 2.0  # tolerance for the duration of the next request
_RUNNING_METRIC = re.compile(
    r"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing"
    r"|\w*inflight_requests\w*)(?:\{[^}]*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)


def _served_dialect(target: TargetServer) -> Dialect:
    """Return an API that the server has."""
    return next(dialect for dialect in DIALECTS if dialect.api not in target.missing_apis)


@check(
    "transport.head",
    "CC-1",
    title="the server responds to HEAD /",
    why="Claude Code sends it at startup and waits for the response.",
)
async def head(target: TargetServer) -> str:
    async with open_connection(target.endpoint, target.timeout) as connection:
        status, _, body = await connection.request("HEAD", "/", {})
    sent, received = "HEAD /", f"{status}, {len(body)} bytes"
    require(status and not body, "the response to HEAD has a body", sent=sent, received=received)
    require(status < 500, f"returned {status}", sent=sent, received=received)
    return f"returned {status}"


@check(
    "transport.keep_alive",
    "WB-8",
    title="a connection can be used for several requests",
    why="Every request opens a new connection, which is slow, especially with TLS.",
)
async def keep_alive(target: TargetServer) -> str:
    dialect = _served_dialect(target)
    body = SentRequest(
        "POST", dialect.path, dialect.body(target.model, [QUESTION], max_tokens=16)
    ).payload
    headers = target.auth_headers(dialect.path)
    sent = f"POST {dialect.path} twice on one connection"
    async with open_connection(target.endpoint, target.timeout) as connection:
        for number in (1, 2):
            status, _, _ = await connection.request("POST", dialect.path, headers, body)
            require(
                status == 200,
                f"request {number} returned {status}",
                sent=sent,
                received=str(status),
            )
            reusable = connection.is_reusable or number == 2
            require(
                reusable, "the server closed it after one response", sent=sent, received=str(status)
            )
    return "two requests on one connection"


async def _post_compressed(
    target: TargetServer, coding: str, compress: Callable[[bytes], bytes]
) -> str:
    dialect = _served_dialect(target)
    plain = SentRequest(
        "POST", dialect.path, dialect.body(target.model, [QUESTION], max_tokens=16)
    ).payload
    headers = {"content-encoding": coding}
    exchange = await target.post(dialect.path, compress(plain), headers)
    received = exchange.summary
    sent = f"POST {dialect.path} with a body compressed with {coding}"
    require(exchange.status == 200, f"returned {exchange.status}", sent=sent, received=received)
    return f"{len(plain)} bytes, compressed to {len(compress(plain))}"


@check(
    "transport.zstd",
    "CX-16",
    title="a request body compressed with zstd is accepted",
    why="Codex with a ChatGPT login compresses every request, so all requests fail.",
)
async def zstd(target: TargetServer) -> str:
    return await _post_compressed(target, "zstd", zstandard.ZstdCompressor().compress)


@check(
    "transport.gzip",
    "CX-16",
    title="a request body compressed with gzip is accepted",
    why="Clients and proxies that compress requests get an error for every request.",
)
async def gzipped(target: TargetServer) -> str:
    return await _post_compressed(target, "gzip", gzip.compress)


@check(
    "transport.big_body",
    "WB-7",
    title="a request body of one megabyte is accepted",
    why="A session with many tools or with an image is rejected for its size.",
)
async def big_body(target: TargetServer) -> str:
    dialect = _served_dialect(target)
    body = dialect.body(target.model, [QUESTION], max_tokens=16)
    body["metadata"] = {"user_id": "x" * (1 << 20)} if dialect.api == "messages" else {}
    body["a_field_of_tomorrow"] = "x" * (1 << 20)
    exchange = await target.post(dialect.path, body)
    require(exchange.status != 413, "rejected for its size")
    require(exchange.status < 500, f"returned status {exchange.status}")
    return f"{len(exchange.request.payload) >> 10} KiB, returned {exchange.status}"


@check(
    "transport.concurrent",
    "WB-6",
    title="concurrent streams do not mix",
    why="Subagents run in parallel: one receives the output of another.",
)
async def concurrent(target: TargetServer) -> str:
    dialect = _served_dialect(target)
    bodies = [
        dialect.body(target.model, [f"{'Please. ' * (7 * n)}{QUESTION}"], max_tokens=24)
        for n in range(_CONCURRENT_REQUESTS)
    ]
    alone = [
        dialect.usage((await target.post(dialect.path, body)).require_ok()).prompt_tokens
        for body in bodies
    ]
    streams = [target.post(dialect.path, dialect.with_streaming(body)) for body in bodies]
    found = [exchange.require_ok() for exchange in await asyncio.gather(*streams)]
    together = [dialect.usage(exchange).prompt_tokens for exchange in found]
    require(
        together == alone,
        f"prompts of {alone} tokens are reported as {together} in concurrent requests",
    )
    ids = [dialect.response_id(exchange) for exchange in found]
    require(len(set(ids)) == len(ids), f"an id is repeated: {ids}")
    _require_separate_streams(found, ids)
    return f"{_CONCURRENT_REQUESTS} concurrent streams"


def _require_separate_streams(found: list[HttpExchange], ids: list[str]) -> None:
    for exchange, own in zip(found, ids, strict=True):
        strange = [id for id in ids if id != own and id.encode() in exchange.body]
        require(not strange, f"the stream of {own} contains {strange}")


@check(
    "transport.hang_up",
    "WB-5",
    title="a client disconnect frees its slot",
    why="Interrupted agents keep the engine busy, so other requests wait for output that no client "
    "reads.",
)
async def client_disconnect(target: TargetServer) -> str:
    if await _running_requests(target) is None:
        return await _judge_by_next_request(target)
    sent = await _abandon_request(target)
    for _ in range(int(_MAX_RELEASE_SECONDS / 0.25)):
        running = await _running_requests(target)
        if not running:
            return "no request is running"
        await asyncio.sleep(0.25)
    message = (
        f"{running:g} requests still run {_MAX_RELEASE_SECONDS:g} s after the client disconnected"
    )
    raise CheckFailed(message, sent, f"/metrics: {running:g}")


async def _abandon_request(target: TargetServer) -> str:
    """Request a long response and disconnect at its first bytes. Return the request as text."""
    dialect = _served_dialect(target)
    limit = min(4000, (target.context_length or 4096) // 2)
    body = dialect.body(
        target.model, ["Count from one to one thousand in words."], max_tokens=limit
    )
    sent = SentRequest("POST", dialect.path, dialect.with_streaming(body))
    async with target.open_stream(sent) as (response, _):
        async for _ in response.iter_chunks():
            break
    return f"{sent}, disconnected at the first bytes"


async def _judge_by_next_request(target: TargetServer) -> str:
    """Measure how long the next request waits, if /metrics does not report running requests."""
    dialect = _served_dialect(target)
    body = dialect.body(target.model, [QUESTION], max_tokens=16)
    await target.post(dialect.path, body)  # the first request may have to load the model
    before = (await target.post(dialect.path, body)).require_ok().total_seconds
    for _ in range(2):  # a single failure may be due to a busy machine
        sent = await _abandon_request(target)
        after = (await target.post(dialect.path, body)).require_ok().total_seconds
        note = f"the next request took {after:.1f} s, compared with {before:.1f} s before"
        if after <= 3 * before + _SLACK_SECONDS:
            return note
    raise CheckFailed(note, sent, note)


async def _running_requests(target: TargetServer) -> float | None:
    exchange = await target.request("GET", "/metrics")
    found = _RUNNING_METRIC.findall(exchange.body.decode("utf-8", "replace"))
    return max(map(float, found)) if exchange.status == 200 and found else None


@check(
    "transport.wrong_key",
    "WB-9",
    title="a wrong API key is rejected with 401 in the API's error format",
    why="To users, a wrong key looks like a broken server.",
    requires=("an API key",),
)
async def wrong_key(target: TargetServer) -> str:
    for dialect in DIALECTS:
        if dialect.api in target.missing_apis:
            continue
        body = dialect.body(target.model, [QUESTION], max_tokens=16)
        bad = {"x-api-key": "wrong", "authorization": "Bearer wrong"}
        exchange = await target.post(dialect.path, body, bad, authenticated=False)
        require_refused(exchange, dialect, 401, 403)
    return "401"


@check(
    "transport.unknown_path",
    "WB-3",
    title="an unknown path returns 404 with a JSON body",
    why="A base URL with a duplicate /v1 fails without a hint.",
)
async def unknown_path(target: TargetServer) -> str:
    exchange = await target.post("/v1/no/such/address", {})
    require(exchange.status == 404, f"returned status {exchange.status}")
    require(isinstance(exchange.json, dict), "the body is not a JSON object")
    return "404"


@check(
    "transport.health",
    "WB-10",
    title="/health reports that the server is healthy",
    why="Load balancers and startup scripts cannot wait for the server.",
)
async def health(target: TargetServer) -> str:
    exchange = await target.request("GET", "/health")
    require(exchange.status == 200, f"returned status {exchange.status}")
    return "200"


CHECKS = (
    head,
    keep_alive,
    zstd,
    gzipped,
    big_body,
    concurrent,
    client_disconnect,
    wrong_key,
    unknown_path,
    health,
)
