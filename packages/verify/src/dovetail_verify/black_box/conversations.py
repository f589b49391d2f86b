"""Checks of long and stored conversations of the Responses API."""

from dovetail_verify.black_box.errors import make_letters, require_accepted, require_window
from dovetail_verify.black_box.samples import QUESTION
from dovetail_verify.check import NotApplicable, check, require
from dovetail_verify.dialects import RESPONSES
from dovetail_verify.target import TargetServer

_LONG_TURNS = 8
_PATH = "/v1/conversations"
_NOT_SUPPORTED_STATUSES = (400, 404, 405, 501)


@check(
    "responses.truncation",
    "F-9",
    title="truncation: auto drops the oldest items of a prompt that is too long",
    why="A long session ends with an error, although the client requested truncation.",
)
async def truncation(target: TargetServer) -> str:
    window = require_window(target)
    long_turn = make_letters(window // _LONG_TURNS + 600)
    body = RESPONSES.body(target.model, [*[long_turn] * _LONG_TURNS, QUESTION], max_tokens=16)
    exchange = await target.post(RESPONSES.path, body | {"truncation": "auto"})
    if exchange.status in _NOT_SUPPORTED_STATUSES and b"truncation" in exchange.body:
        raise NotApplicable(f"not supported: the server returned {exchange.status}")
    require_accepted(exchange, RESPONSES, "truncation: auto")
    prompt = RESPONSES.usage(exchange).prompt_tokens
    require(0 < prompt <= window, f"the prompt has {prompt} of at most {window} tokens")
    return f"{prompt} tokens"


@check(
    "responses.conversations",
    "F-11",
    title="a conversation collects the items of its responses and can be deleted",
    why="The next response of the conversation does not know the ones before it.",
)
async def conversations(target: TargetServer) -> str:
    created = await target.post(_PATH, {"metadata": {"purpose": "verify"}})
    if created.status in _NOT_SUPPORTED_STATUSES:
        raise NotApplicable(f"not supported: the server returned {created.status}")
    path = f"{_PATH}/{created.require_ok().json['id']}"
    prompts = []
    for _ in range(2):
        body = RESPONSES.body(target.model, [QUESTION]) | {"conversation": created.json["id"]}
        exchange = await target.post(RESPONSES.path, body)
        require_accepted(exchange, RESPONSES, "a conversation")
        prompts.append(RESPONSES.usage(exchange).prompt_tokens)
    require(prompts[1] > prompts[0], f"the prompts have {prompts[0]} and {prompts[1]} tokens")
    listed = (await target.request("GET", f"{path}/items?limit=100")).require_ok().json["data"]
    roles = [item.get("role") for item in listed if item.get("type") == "message"]
    expected = {"user": 2, "assistant": 2}
    found = {role: roles.count(role) for role in expected}
    require(found == expected, f"the conversation has the messages {found}")
    (await target.request("DELETE", path)).require_ok()
    status = (await target.request("GET", path)).status
    require(status == 404, f"the deleted conversation returns {status}")
    return f"{len(listed)} items"


CHECKS = (truncation, conversations)
