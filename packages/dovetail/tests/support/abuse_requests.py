"""Requests with every kind of error that a client can make, in any number.

Each is bytes for a connection, generated from a seed, so that a failure can be reproduced.
"""

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import brotli  # type: ignore[import-untyped]
import zstandard

FOLDER = Path(__file__).parents[3] / "protocols" / "tests" / "transcripts"
Dice = random.Random
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 10**30, -(10**30), 1e308, "", "x", "\ud800", "\0",
    "auto", "null", [], {}, [[]], [{}], {"a": {}}, {"type": "text"}, {"type": "tool_use"},
    {"type": 5}, ["x", None], {"role": "assistant"}, "x" * 5000, ["x"] * 500, {"": {"": ""}},
    "data:image/png;base64,AAAA", "http://127.0.0.1:1/", "<|im_start|>", "../../../etc/passwd",
)  # fmt: skip
RAW: tuple[bytes, ...] = (
    b"", b" ", b"null", b"true", b"0", b'""', b"[]", b"{", b"}", b"[", b'{"', b"{}{}", b"{} x",
    b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', b"\x00" * 9,
    b"NaN", b"Infinity", b"-", b"01", b"1e", b'{"a":1e999999}', b'{"a":' + b"9" * 5000 + b"}",
    b"[" * 100_000, b'{"a":' * 50_000, b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"model":"m","input":' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"}", b"'single'", b"{a:1}",
    b'{"a":1,}', b'{"a":"\\u12"}', b'{"a":"\\ud800"}', b'{"a":"\n"}', b"model=m&input=x",
    b"--x\r\ncontent-disposition: form-data\r\n\r\n1\r\n--x--\r\n", b"<?xml version='1.0'?><a/>",
)  # fmt: skip
GENERATING = {
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
}
PATHS = (
    *GENERATING.values(), "/v1/completions", "/v1/messages/count_tokens", "/v1/tokenize",
    "/tokenize", "/v1/detokenize", "/v1/responses/compact", "/v1/responses/input_tokens",
    "/v1/responses/resp_none", "/v1/responses/resp_none/cancel",
    "/v1/responses/resp_none/input_items", "/v1/models", "/v1/models/none", "/openapi.json",
    "/metrics", "/", "/live", "/ready", "/health", "/v1/messages/render", "/v1/responses/render",
    "/v1/chat/completions/render",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND")
ODD_PATHS = (
    "//", "/v1", "/v1/", "/v1//messages", "/v1/v1/messages", "/V1/MESSAGES", "/v1/messages/",
    "/v1/messages%00", "/v1/%2e%2e/messages", "/v1/responses/" + "a" * 3000, "/v1/responses/%0a",
    "/v1/responses//input_items", "/v1/models/" + "%F0%9F%A6%9C" * 50, "/v1/models/?a=b&a=c",
    "/v1/responses/resp_1/input_items?limit=-1&order=up&after=%00",
    "/v1/messages/render?block_hashes=dynamo&block_size=%FF&seed=%00", "/?" + "a=b&" * 2000,
    "/v1/responses/resp_1/input_items?limit=99999999999999999999999", "/metrics?name[]=%FF",
    "/v1/models?client_version=%FF&client_version=", "/favicon.ico", "/.env", "/wp-login.php",
    "http://elsewhere/v1/models", "/v1/messages;a=b", "/v1/messages#x", "/%", "/%zz", "/*",
)  # fmt: skip
HEADERS: tuple[tuple[str, str], ...] = (
    ("authorization", "Bearer"), ("authorization", "Basic eDp5"), ("authorization", "Bearer " * 99),
    ("x-api-key", ""), ("x-api-key", "\xff" * 40), ("anthropic-version", "\xe9"),
    ("anthropic-beta", "a," * 2000), ("content-type", "text/plain"), ("content-type", "\xfc; =;"),
    ("accept", "*/*;q=x"), ("accept-encoding", "gzip;q=-1"), ("x-request-id", "x" * 5000),
    ("x-dovetail-debug", "prefix, notes, \xff, " + "x," * 500), ("x-dovetail-dispatch", "\xff,,"),
    ("x-claude-code-session-id", "\xff" * 300), ("session-id", "{}"), ("session_id", "\x7f"),
    ("x-session-affinity", ","), ("traceparent", "00-zz-zz-zz"), ("expect", "200-ok"),
    ("upgrade", "h2c"), ("range", "bytes=0-0,-1"), ("if-none-match", "*"), ("cookie", "a=b;" * 900),
    ("x-forwarded-for", "::, x"), ("priority", "u=9,i=?x"), ("x-agent", "a" * 4000),
    ("x-stainless-retry-count", "-1"), ("retry-after", "x"), ("prefer", "wait=x"),
)  # fmt: skip
_CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@dataclass(frozen=True)
class Attack:
    """One request.

    aborts: The client disconnects after it, without waiting for a response.
    """

    kind: str
    method: str
    sent: bytes
    aborts: bool = False


def attacks(seed: int, count: int, model: str) -> Iterator[Attack]:
    """Generate so many requests of all kinds in turn, each different."""
    kinds = (_mutated, _mutated, _raw, _spoiled, _coded, _headed, _addressed, _truncated)
    for number in range(count):
        dice = random.Random(f"{seed}-{number}")
        yield kinds[number % len(kinds)](dice, model)


def _mutated(dice: Dice, model: str) -> Attack:
    """A request as real clients send it, with a few wrong values."""
    api = dice.choice([*GENERATING])
    body = mutate(dice, {**dice.choice(corpus(api)), "model": model})
    path = GENERATING[api] if dice.random() < 0.8 else dice.choice(PATHS)
    return _attack("mutated", "POST", path, _json(body))


def _raw(dice: Dice, model: str) -> Attack:
    return _attack("raw", "POST", dice.choice(PATHS), dice.choice(RAW))


def _spoiled(dice: Dice, model: str) -> Attack:
    """A valid request with bytes changed, removed or repeated."""
    api = dice.choice([*GENERATING])
    body = bytearray(_json({**dice.choice(corpus(api)), "model": model}))
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(body))
        end = at + dice.randint(1, 30)
        body[at:end] = dice.choice([bytes([dice.randrange(256)]), b"", body[at:end] * 2])
    return _attack("spoiled", "POST", GENERATING[api], bytes(body))


def _coded(dice: Dice, model: str) -> Attack:
    """Compressed wrongly, twice, or not as declared."""
    api = dice.choice([*GENERATING])
    body = _json({**dice.choice(corpus(api)), "model": model})
    coding = dice.choice(
        [*_CODINGS, "x-gzip", "identity", "compress", "gzip, gzip", ",", "\xff", "*"]
    )
    sent = _CODINGS[dice.choice([*_CODINGS])](body)
    if dice.random() < 0.5:
        sent = sent[: dice.randrange(len(sent))] + dice.randbytes(dice.randrange(20))
    if dice.random() < 0.1:
        coding, sent = "gzip", gzip.compress(b" " * (1 << 21))
    return _attack("coded", "POST", GENERATING[api], sent, [("content-encoding", coding)])


def _headed(dice: Dice, model: str) -> Attack:
    api = dice.choice([*GENERATING])
    body = _json({**dice.choice(corpus(api)), "model": model})
    return _attack(
        "headed", "POST", GENERATING[api], body, dice.sample(HEADERS, dice.randint(1, 6))
    )


def _addressed(dice: Dice, model: str) -> Attack:
    path = dice.choice([*ODD_PATHS, *PATHS])
    body = dice.choice([b"", b"{}", _json({"model": model})])
    return _attack("addressed", dice.choice(METHODS), path, body)


def _truncated(dice: Dice, model: str) -> Attack:
    """A request that is truncated anywhere in the head or the body by a disconnect."""
    whole = _mutated(dice, model).sent
    return Attack("truncated", "POST", whole[: dice.randrange(1, len(whole))], aborts=True)


def _attack(
    kind: str, method: str, path: str, body: bytes, headers: list[tuple[str, str]] | None = None
) -> Attack:
    lines = [("host", "localhost"), ("content-length", str(len(body))), *(headers or ())]
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    first = f"{method} {path} HTTP/1.1\r\n"
    return Attack(kind, method, (first + head + "\r\n").encode("latin-1") + body)


def mutate(dice: Dice, request: dict[str, Any]) -> Any:
    changed = copy.deepcopy(request)
    for _ in range(dice.randint(1, 4)):
        spots = list(_places(changed))
        if not spots:
            break
        node, key = dice.choice(spots)
        match dice.randrange(5):
            case 0 | 1:
                node[key] = copy.deepcopy(dice.choice(ODD))
            case 2:
                del node[key]
            case 3:
                node[key] = [node[key]] if dice.random() < 0.5 else {"type": node[key]}
            case _:
                node[key] = [copy.deepcopy(node[key])] * 3
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in the value with each of its keys or positions."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _json(value: Any) -> bytes:
    """Encode JSON as Python's own clients do, including lone surrogates."""
    return json.dumps(value).encode()


@cache
def corpus(api: str) -> list[dict[str, Any]]:
    """Requests as real clients send them."""
    return [json.loads(path.read_bytes()) for path in sorted(FOLDER.glob(f"*/{api}.request.json"))]
