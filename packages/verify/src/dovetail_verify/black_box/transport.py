"""Below the APIs: connections, compression, keys, several requests at once, hanging up."""

import asyncio
import gzip
import re
from collections.abc import Callable

import zstandard

from dovetail_verify.black_box.refusals import refused
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import Failed, check, require
from dovetail_verify.dialects import DIALECTS, Dialect
from dovetail_verify.exchange import Exchange, Sent
from dovetail_verify.http_client import line
from dovetail_verify.target import Stage

_AT_ONCE = 4
_FREE_AFTER = 5.0  # seconds after which a request that was given up must be gone
_GRACE = 2.0  # seconds that a request may take longer than one before
_RUNNING = re.compile(
    r"^(?:vllm:num_requests_running|sglang:num_running_reqs|llamacpp:requests_processing"
    r"|\w*inflight_requests\w*)(?:\{[^}]*\})? ([0-9.e+]+)$",
    re.MULTILINE,
)


def _dialect(stage: Stage) -> Dialect:
    """Any API that is served."""
    return next(dialect for dialect in DIALECTS if dialect.api not in stage.missing)


@check(
    "transport.head",
    "CC-1",
    title="HEAD / is answered",
    why="Claude Code asks it at start-up, and waits.",
)
async def head(stage: Stage) -> str:
    async with line(stage.endpoint, stage.timeout) as held:
        status, _, body = await held.ask("HEAD", "/", {})
    sent, came = "HEAD /", f"{status}, {len(body)} bytes"
    require(status and not body, "the answer to HEAD has a body", sent=sent, came=came)
    require(status < 500, f"answered with {status}", sent=sent, came=came)
    return f"answered with {status}"


@check(
    "transport.keep_alive",
    "WB-8",
    title="a connection can be used for several requests",
    why="Every request pays for a new connection, which costs most with TLS.",
)
async def keep_alive(stage: Stage) -> str:
    dialect = _dialect(stage)
    body = Sent("POST", dialect.path, dialect.body(stage.model, [QUESTION], limit=16)).payload
    headers = stage.auth(dialect.path)
    sent = f"POST {dialect.path} twice on one connection"
    async with line(stage.endpoint, stage.timeout) as held:
        for number in (1, 2):
            status, _, _ = await held.ask("POST", dialect.path, headers, body)
            require(status == 200, f"request {number}: {status}", sent=sent, came=str(status))
            again = held.reusable or number == 2
            require(again, "the server closed it after one answer", sent=sent, came=str(status))
    return "two requests on one connection"


async def _compressed(stage: Stage, coding: str, pack: Callable[[bytes], bytes]) -> str:
    dialect = _dialect(stage)
    plain = Sent("POST", dialect.path, dialect.body(stage.model, [QUESTION], limit=16)).payload
    headers = {"content-encoding": coding}
    exchange = await stage.post(dialect.path, pack(plain), headers)
    came = exchange.came
    sent = f"POST {dialect.path} with a body in {coding}"
    require(exchange.status == 200, f"answered with {exchange.status}", sent=sent, came=came)
    return f"{len(plain)} bytes read from {len(pack(plain))}"


@check(
    "transport.zstd",
    "CX-16",
    title="a body in zstd is accepted",
    why="Codex with a ChatGPT login compresses every request: none works.",
)
async def zstd(stage: Stage) -> str:
    return await _compressed(stage, "zstd", zstandard.ZstdCompressor().compress)


@check(
    "transport.gzip",
    "CX-16",
    title="a body in gzip is accepted",
    why="Clients and proxies that compress get an error for every request.",
)
async def gzipped(stage: Stage) -> str:
    return await _compressed(stage, "gzip", gzip.compress)


@check(
    "transport.big_body",
    "WB-7",
    title="a request of a megabyte is read",
    why="A session with many tools, or with a picture, is refused by its size.",
)
async def big_body(stage: Stage) -> str:
    dialect = _dialect(stage)
    body = dialect.body(stage.model, [QUESTION], limit=16)
    body["metadata"] = {"user_id": "x" * (1 << 20)} if dialect.api == "messages" else {}
    body["a_field_of_tomorrow"] = "x" * (1 << 20)
    exchange = await stage.post(dialect.path, body)
    require(exchange.status != 413, "refused by its size")
    require(exchange.status < 500, f"answered with status {exchange.status}")
    return f"{len(exchange.sent.payload) >> 10} KiB, answered with {exchange.status}"


@check(
    "transport.concurrent",
    "WB-6",
    title="streams at the same time do not mix",
    why="Subagents run side by side: one gets the words of the other.",
)
async def concurrent(stage: Stage) -> str:
    dialect = _dialect(stage)
    bodies = [
        dialect.body(stage.model, [f"{'Please. ' * (7 * n)}{QUESTION}"], limit=24)
        for n in range(_AT_ONCE)
    ]
    alone = [dialect.used((await stage.post(dialect.path, body)).ok()).prompt for body in bodies]
    asked = [stage.post(dialect.path, dialect.streamed(body)) for body in bodies]
    found = [exchange.ok() for exchange in await asyncio.gather(*asked)]
    together = [dialect.used(exchange).prompt for exchange in found]
    require(together == alone, f"prompts of {alone} tokens came back as {together}")
    ids = [dialect.answer_id(exchange) for exchange in found]
    require(len(set(ids)) == len(ids), f"ids came twice: {ids}")
    _unmixed(found, ids)
    return f"{_AT_ONCE} streams side by side"


def _unmixed(found: list[Exchange], ids: list[str]) -> None:
    for exchange, own in zip(found, ids, strict=True):
        strange = [id for id in ids if id != own and id.encode() in exchange.body]
        require(not strange, f"the stream of {own} holds {strange}")


@check(
    "transport.hang_up",
    "WB-5",
    title="a client that hangs up frees its place",
    why="Interrupted agents leave the engine busy: everybody waits for answers nobody reads.",
)
async def hang_up(stage: Stage) -> str:
    if await _running(stage) is None:
        return await _by_next_request(stage)
    sent = await _give_up(stage)
    for _ in range(int(_FREE_AFTER / 0.25)):
        running = await _running(stage)
        if not running:
            return "no request runs any more"
        await asyncio.sleep(0.25)
    told = f"{running:g} requests still run {_FREE_AFTER:g} s after the client hung up"
    raise Failed(told, sent, f"/metrics: {running:g}")


async def _give_up(stage: Stage) -> str:
    """Asks for a long answer and hangs up at its first bytes. Gives what was sent."""
    dialect = _dialect(stage)
    limit = min(4000, (stage.window or 4096) // 2)
    body = dialect.body(stage.model, ["Count from one to one thousand in words."], limit=limit)
    sent = Sent("POST", dialect.path, dialect.streamed(body))
    async with stage.open(sent) as (reply, _):
        async for _ in reply.iter_chunks():
            break
    return f"{sent}, hung up at the first bytes"


async def _by_next_request(stage: Stage) -> str:
    """Where the server does not tell what runs: another request must not have to wait."""
    dialect = _dialect(stage)
    body = dialect.body(stage.model, [QUESTION], limit=16)
    await stage.post(dialect.path, body)  # what it has to load, it has loaded
    before = (await stage.post(dialect.path, body)).ok().ended
    for _ in range(2):  # once may be a busy machine
        sent = await _give_up(stage)
        after = (await stage.post(dialect.path, body)).ok().ended
        told = f"the next request took {after:.1f} s, and {before:.1f} s before"
        if after <= 3 * before + _GRACE:
            return told
    raise Failed(told, sent, told)


async def _running(stage: Stage) -> float | None:
    exchange = await stage.ask("GET", "/metrics")
    found = _RUNNING.findall(exchange.body.decode("utf-8", "replace"))
    return max(map(float, found)) if exchange.status == 200 and found else None


@check(
    "transport.wrong_key",
    "WB-9",
    title="a wrong key is refused with 401 in the API's own form",
    why="Users see a broken server where a key is wrong.",
    needs=("a key",),
)
async def wrong_key(stage: Stage) -> str:
    for dialect in DIALECTS:
        if dialect.api in stage.missing:
            continue
        body = dialect.body(stage.model, [QUESTION], limit=16)
        bad = {"x-api-key": "wrong", "authorization": "Bearer wrong"}
        exchange = await stage.post(dialect.path, body, bad, signed=False)
        refused(exchange, dialect, 401, 403)
    return "401"


@check(
    "transport.unknown_path",
    "WB-3",
    title="an unknown address is 404 with a JSON body",
    why="A base URL with /v1 too many fails without a hint.",
)
async def unknown_path(stage: Stage) -> str:
    exchange = await stage.post("/v1/no/such/address", {})
    require(exchange.status == 404, f"answered with status {exchange.status}")
    require(isinstance(exchange.json, dict), "the body is no JSON object")
    return "404"


@check(
    "transport.health",
    "WB-10",
    title="/health says that the server is well",
    why="Load balancers and start-up scripts cannot wait for it.",
)
async def health(stage: Stage) -> str:
    exchange = await stage.ask("GET", "/health")
    require(exchange.status == 200, f"answered with status {exchange.status}")
    return "200"


CHECKS = (
    head,
    keep_alive,
    zstd,
    gzipped,
    big_body,
    concurrent,
    hang_up,
    wrong_key,
    unknown_path,
    health,
)
