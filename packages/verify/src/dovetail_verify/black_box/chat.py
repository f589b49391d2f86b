"""Checks of Chat Completions: the structure of streams, and requests that agents send."""

import json
from typing import Any

from dovetail_verify.black_box.errors import refusal_reason, require_accepted
from dovetail_verify.black_box.samples import (
    QUESTION,
    sample_response,
    sample_stream,
    sample_streams,
    sample_tool_call,
)
from dovetail_verify.black_box.usage import count_chat_tokens
from dovetail_verify.check import check, pluralize, require
from dovetail_verify.dialects import CHAT, TOOL_DESCRIPTION, TOOL_NAME, TOOL_PARAMETERS, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_TOOL = {
    "type": "function",
    "function": {"name": TOOL_NAME, "description": TOOL_DESCRIPTION, "parameters": TOOL_PARAMETERS},
}


def _require_accepted(exchange: HttpExchange, what: str) -> str:
    return require_accepted(exchange, CHAT, what)


async def _post_chat(target: TargetServer, messages: list[Json], **more: Any) -> HttpExchange:
    body = {"model": target.model, "messages": messages, "max_tokens": 16, **more}
    return await target.post(CHAT.path, body)


@check(
    "chat.whole.shape",
    "AG-1",
    title="a non-streaming response has a choice with a message, a finish_reason and usage",
    why="SDKs cannot parse the response.",
)
async def whole_shape(target: TargetServer) -> str:
    response = (await sample_response(target, CHAT)).json
    require(response.get("object") == "chat.completion", f"object is {response.get('object')!r}")
    choice = response["choices"][0]
    require(choice["message"].get("role") == "assistant", "the message has no role")
    require(isinstance(choice.get("finish_reason"), str), "the choice has no finish_reason")
    usage = response.get("usage") or {}
    total = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    require(
        usage.get("total_tokens") == total,
        f"total_tokens is {usage.get('total_tokens')}, expected {total}",
    )
    return f"{choice['finish_reason']}, {total} tokens"


@check(
    "chat.stream.shape",
    "AG-1",
    title="a stream starts with the role and ends with one finish_reason and [DONE]",
    why="Agents hang, or treat the response as broken.",
)
async def stream_shape(target: TargetServer) -> str:
    found = [_require_chunk_order(exchange) async for exchange in sample_streams(target, CHAT)]
    return "; ".join(found)


def _require_chunk_order(exchange: HttpExchange) -> str:
    chunks = CHAT.chunks(exchange)
    require(chunks, "the stream has no chunks")
    for chunk in chunks:
        kind = chunk.get("object")
        require(kind == "chat.completion.chunk", f"the object of a chunk is {kind!r}")
    roles = [delta["role"] for delta in CHAT.deltas(exchange)[:1] if delta.get("role")]
    require(roles == ["assistant"], "the first delta has no role")
    ends = [
        c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c.get("finish_reason")
    ]
    require(len(ends) == 1, f"{len(ends)} finish reasons")
    last = exchange.frames[-1].data
    require(last == "[DONE]", f"the stream ends with {last[:80]!r}")
    return f"{len(chunks)} chunks, {ends[0]}"


@check(
    "chat.stream.usage",
    "AG-2",
    title="include_usage adds one last chunk that has usage and no choices",
    why="Agents show no token counts and do not know when to compact.",
)
async def stream_usage(target: TargetServer) -> str:
    chunks = CHAT.chunks(await sample_stream(target, CHAT))
    usage: Json = chunks[-1].get("usage") or {}
    require(usage, "the last chunk has no usage")
    require(chunks[-1]["choices"] == [], "the chunk with usage has choices")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        require(isinstance(usage.get(name), int), f"usage has no {name}")
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    require(
        usage["total_tokens"] == total, f"total_tokens is {usage['total_tokens']}, expected {total}"
    )
    plain = {**CHAT.body(target.model, [QUESTION], max_tokens=16), "stream": True}
    unrequested = [c for c in CHAT.chunks(await target.post(CHAT.path, plain)) if not c["choices"]]
    require(not unrequested, "a chunk has no choices, although the request does not include usage")
    return f"{usage['total_tokens']} tokens"


@check(
    "chat.stream.ids",
    "AG-8",
    title="all chunks of a stream have the same id and model",
    why="SDKs that collect chunks by id split one response into several.",
)
async def stream_ids(target: TargetServer) -> str:
    chunks = CHAT.chunks(await sample_stream(target, CHAT))
    ids = {chunk.get("id") for chunk in chunks}
    require(len(ids) == 1 and all(ids), f"the ids are {sorted(map(str, ids))}")
    models = {chunk.get("model") for chunk in chunks}
    require(models == {target.model}, f"requested {target.model!r}, the chunks name {models}")
    return str(ids.pop())


@check(
    "chat.call.deltas",
    "AG-3",
    title="tool call deltas have an index; the id and the name come first and only once",
    why="SDKs that add up deltas get repeated names, or calls without an id.",
)
async def call_deltas(target: TargetServer) -> str:
    exchange = await sample_tool_call(target, CHAT)
    seen: set[int] = set()
    count = 0
    for part in (p for delta in CHAT.deltas(exchange) for p in delta.get("tool_calls") or []):
        index, function = part.get("index"), part.get("function") or {}
        require(isinstance(index, int), "a delta has no index")
        if index not in seen:
            require(index == len(seen), f"call {index} starts, expected call {len(seen)}")
            require(
                part.get("id") and function.get("name"),
                "the first delta of a call has no id or no name",
            )
            require(
                part.get("type") in (None, "function"),
                f"the type of a call is {part.get('type')!r}",
            )
        else:
            require(not function.get("name"), "the name of a call is repeated")
        seen.add(index)
        count += 1
    json.loads(CHAT.tool_calls(exchange)[0].arguments)
    return f"{pluralize(len(seen), 'call')} in {pluralize(count, 'delta')}"


@check(
    "chat.accepts.replay",
    "AG-4",
    title="reasoning_content, calls and results are accepted in the history",
    why="The second turn of every tool loop fails.",
)
async def replay(target: TargetServer) -> str:
    return _require_accepted(
        await _post_chat(target, _tool_loop(""), tools=[_TOOL]), "a history with reasoning"
    )


@check(
    "chat.accepts.null",
    "AG-16",
    title="a turn with only calls may have null content",
    why="SDKs replay such turns unchanged, so the second turn of a tool loop fails.",
)
async def null_content(target: TargetServer) -> str:
    return _require_accepted(
        await _post_chat(target, _tool_loop(None), tools=[_TOOL]), "null content with a call"
    )


@check(
    "chat.accepts.developer",
    "AG-5",
    title="the developer role is accepted",
    why="Pi sends its instructions with this role, so all its requests fail.",
)
async def developer_role(target: TargetServer) -> str:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    return _require_accepted(await _post_chat(target, messages), "a developer message")


@check(
    "chat.accepts.parts",
    "AG-10",
    title="content as a list of parts is accepted in every role",
    why="Requests of agents that send parts are rejected.",
)
async def content_parts(target: TargetServer) -> str:
    messages: list[Json] = [
        {"role": "system", "content": [_text_part("Be brief."), _text_part("Be kind.")]},
        {"role": "user", "content": [_text_part("Name a colour."), _text_part("A warm one.")]},
        {"role": "assistant", "content": [_text_part("Red")]},
        {"role": "user", "content": [_text_part("More.")]},
    ]
    return _require_accepted(await _post_chat(target, messages), "lists of parts")


@check(
    "chat.accepts.unknown",
    "AG-14",
    title="unknown fields are accepted",
    why="Each agent adds its own fields, so its requests are rejected.",
)
async def unknown_fields(target: TargetServer) -> str:
    more = {"a_field_of_tomorrow": {"x": 1}, "store": False, "reasoning_effort": "low"}
    messages = [{"role": "user", "content": QUESTION, "a_field_of_tomorrow": 1}]
    return _require_accepted(await _post_chat(target, messages, **more), "unknown fields")


@check(
    "chat.completion_limit",
    "AG-6",
    title="max_completion_tokens limits the response",
    why="Responses continue to the end of the context window.",
)
async def completion_limit(target: TargetServer) -> str:
    body = CHAT.body(target.model, ["Count from one to one hundred in words."])
    del body["max_tokens"]
    exchange = (await target.post(CHAT.path, {**body, "max_completion_tokens": 16})).require_ok()
    used = CHAT.usage(exchange).output_tokens
    require(used <= 16, f"{used} tokens, but the limit is 16")
    return f"{used} tokens"


@check(
    "chat.choices",
    "AG-7",
    title="n returns as many choices, or is rejected with a reason",
    why="A client that requests two choices gets one and fails later.",
)
async def choices(target: TargetServer) -> str:
    exchange = await _post_chat(target, [{"role": "user", "content": QUESTION}], n=2)
    if exchange.status != 200:
        return refusal_reason(exchange)
    found = [choice.get("index") for choice in exchange.json["choices"]]
    require(sorted(found) == [0, 1], f"n is 2, but the choices have the indices {found}")
    return "two choices"


@check(
    "chat.logprobs",
    "AG-7",
    title="logprobs are returned on request, or rejected with a reason",
    why="Evaluations run without the values that they measure, and report no error.",
)
async def logprobs(target: TargetServer) -> str:
    more = {"logprobs": True, "top_logprobs": 1}
    exchange = await _post_chat(target, [{"role": "user", "content": QUESTION}], **more)
    if exchange.status != 200:
        return refusal_reason(exchange)
    found: list[Json] = (exchange.json["choices"][0].get("logprobs") or {}).get("content") or []
    require(found, "accepted, but the response has no logprobs")
    require(isinstance(found[0].get("logprob"), int | float), "an entry has no logprob")
    return pluralize(len(found), "token")


@check(
    "chat.usage.tokenized",
    "TK-1",
    title="usage and /tokenize report the same prompt tokens",
    why="Tools that use /tokenize to plan exceed the context window.",
)
async def usage_tokenized(target: TargetServer) -> str:
    body = {"model": target.model, "messages": [{"role": "user", "content": QUESTION}]}
    count = await count_chat_tokens(target, body)
    used = CHAT.usage(await sample_response(target, CHAT)).prompt_tokens
    require(count == used, f"/tokenize returns {count}, usage reports {used}")
    return f"{count} tokens"


def _tool_loop(content: str | None) -> list[Json]:
    """Return a replayed tool loop. `content` is the text of the message with the call."""
    call = {"id": "call_v1", "type": "function", "function": {"name": TOOL_NAME, "arguments": "{}"}}
    turn: Json = {"role": "assistant", "content": content, "tool_calls": [call]}
    return [
        {"role": "user", "content": "What is the weather in Paris?"},
        {**turn, "reasoning_content": "Look."},
        {"role": "tool", "tool_call_id": "call_v1", "content": "Sun"},
        {"role": "assistant", "content": "Sun.", "reasoning_content": "Report it."},
        {"role": "user", "content": "And tomorrow?"},
    ]


def _text_part(text: str) -> Json:
    return {"type": "text", "text": text}


CHECKS = (
    whole_shape,
    stream_shape,
    stream_usage,
    stream_ids,
    call_deltas,
    replay,
    null_content,
    developer_role,
    content_parts,
    unknown_fields,
    completion_limit,
    choices,
    logprobs,
    usage_tokenized,
)
