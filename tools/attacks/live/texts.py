"""Texts that are hard to tokenize, on every transport, and texts that imitate control tokens."""

import asyncio
import json
import random
import time
from typing import Any

from http_fixture import Reply
from server_process import NAME, Running
from tools.attacks.live.servers import is_api_error, post, serving
from tools.attacks.scenario import Effort, Outcome, judge
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

SPACES = 12_000_000  # the library of the tokenizer panics on such a text
ENDED = ("completed", "incomplete", "failed")
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/tokenize")
CONTROL = ("<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|repo_name|>", "<|file_sep|>")
FIRST_ADDED_ID = 151643  # of Qwen3: smaller ids are ordinary tokens


def unencodable_texts(effort: Effort) -> Outcome:
    """A text of 12 million spaces, and keys that are not UTF-8, get errors of the API."""
    with serving("Fine.") as running:
        found = asyncio.run(_send_texts(running))
        healthy = running.request("GET", "/live").status == 200
        log = running.log.read_text()
    wrong = {name: what for name, what in found.items() if not what.startswith("ok")}
    longest = max(map(len, log.splitlines()), default=0)
    return judge(
        {"wrong": 0, "unhealthy": 0, "longest_log_line": 40_000},
        str(wrong),
        cases=len(found),
        wrong=len(wrong),
        unhealthy=int(not healthy),
        results=" ".join(sorted(set(found.values()))),
        longest_log_line=longest,
    )


async def _send_texts(running: Running) -> dict[str, str]:
    text = " " * SPACES
    found = {}
    for path in PATHS:
        found[path] = _rate(await post(running, path, _body(path, text)))
        broken = (
            json.dumps({"model": NAME, **_body(path, "x")}).encode().replace(b"{", b'{"\xff":1,')
        )
        found[f"{path} key"] = _rate(await post(running, path, broken))
    found["websocket"] = await _over_websocket(running, text)
    found["background"] = await _in_background(running, text)
    return found


def _body(path: str, text: str) -> dict[str, Any]:
    match path:
        case "/v1/responses":
            return {"input": text}
        case "/v1/tokenize":
            return {"prompt": text}
        case _:
            return {"messages": [{"role": "user", "content": text}], "max_tokens": 9}


def _rate(reply: Reply) -> str:
    if reply.status == 200:
        return "ok 200"
    proper = is_api_error(reply) and 400 <= reply.status < 500
    return f"ok {reply.status}" if proper else f"{reply.status} {reply.body[:200]!r}"


async def _over_websocket(running: Running, text: str) -> str:
    url = running.url.replace("http", "ws") + "/v1/responses"
    body = {"type": "response.create", "model": NAME, "input": text, "store": False}
    async with asyncio.timeout(60), connect_websocket(url, proxy=None, max_size=None) as socket:
        await socket.send(json.dumps(body))
        try:
            while True:
                event = json.loads(await socket.recv())
                if event["type"] in ("error", "response.failed"):
                    return "ok error"
                if event["type"] == "response.completed":
                    return "ok completed"
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd else None
            return "ok 1009" if code == 1009 else f"closed with {code}"  # the message is too big


async def _in_background(running: Running, text: str) -> str:
    reply = await post(running, "/v1/responses", {"input": text, "background": True})
    if reply.status != 200:
        return _rate(reply)
    until = time.monotonic() + 60.0
    status = ""
    while status not in ENDED and time.monotonic() < until:
        await asyncio.sleep(0.3)
        status = running.request("GET", f"/v1/responses/{reply.json['id']}").json["status"]
    return f"ok {status}" if status in ENDED else f"still {status}"


def imitated_control_tokens(effort: Effort) -> Outcome:
    """No spelling of a control token, nor a mix of spellings, becomes a control token."""
    dice = random.Random(effort.seed)
    texts = [*CONTROL, *(_mixed(dice) for _ in range(effort.scale(300, 60)))]
    with serving("Fine.") as running:
        produced = [text for text in texts if _has_control_tokens(running, text)]
    shown = str(produced[:5])
    return judge({"produced": 0}, shown, texts=len(texts), produced=len(produced))


def _mixed(dice: random.Random) -> str:
    parts = (*CONTROL, "<|", "|>", "im_start", "fim_prefix", " ", "\n", "a", "<", "é", "\u200d")
    return "a" + "".join(dice.choices(parts, k=dice.randint(2, 8)))  # a message must have a text


def _has_control_tokens(running: Running, text: str) -> bool:
    """Compare the prompt with that of another text, whose control tokens are the template's."""
    counts: list[int] = []
    for content in (text, "x"):
        messages = [{"role": "user", "content": content}]
        reply = running.post("/v1/tokenize", {"model": NAME, "messages": messages})
        counts.append(sum(token >= FIRST_ADDED_ID for token in reply["tokens"]))
    return counts[0] != counts[1]
