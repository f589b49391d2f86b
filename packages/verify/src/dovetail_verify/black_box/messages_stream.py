"""Checks of the response structure of the Messages API, which Claude Code relies on."""

from collections.abc import Sequence
from contextlib import suppress

from dovetail_verify.black_box.samples import (
    sample_multibyte_stream,
    sample_reasoning,
    sample_response,
    sample_stream,
    sample_streams,
    sample_tool_call,
)
from dovetail_verify.check import CheckFailed, NotApplicable, check, pluralize, require
from dovetail_verify.dialects import MESSAGES, Json
from dovetail_verify.exchange import HttpExchange, SseFrame
from dovetail_verify.target import TargetServer

_DELTA_TYPES = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
_KNOWN_EVENTS = {
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "error",
    "ping",
}


@check(
    "messages.whole.shape",
    "CC-2",
    title="a non-streaming response is a message with content, stop_reason and usage",
    why="The client falls back to non-streaming when a stream breaks; otherwise the turn is lost.",
)
async def whole_shape(target: TargetServer) -> str:
    message = (await sample_response(target, MESSAGES)).json
    require(message.get("type") == "message", f"type is {message.get('type')!r}")
    require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    content = message.get("content")
    require(isinstance(content, list), "content is not a list of blocks")
    require(isinstance(message.get("stop_reason"), str), "the message has no stop_reason")
    require(isinstance(message.get("usage"), dict), "the message has no usage")
    return f"{pluralize(len(content), 'block')}, {message['stop_reason']}"


@check(
    "messages.stream.event_lines",
    "CC-3",
    title="every event names its type in an `event:` line",
    why="Claude Code ignores events without the line, so the response is empty.",
)
async def event_lines(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, MESSAGES):
        frames = [frame for frame in exchange.frames if isinstance(frame.json, dict)]
        for frame in frames:
            type, line = frame.json.get("type"), frame.event
            fits = type not in _KNOWN_EVENTS or line == type
            require(fits, f"{type} has the event line {line!r}")
        require(any(frame.event in _KNOWN_EVENTS for frame in frames), "no event has an event line")
        count += len(frames)
    return f"{count} events, all with an event line"


@check(
    "messages.stream.order",
    "CC-4",
    title="blocks start, receive deltas and stop in sequence, within the message",
    why="The client drops deltas of blocks that are not open, so reasoning and calls disappear.",
)
async def order(target: TargetServer) -> str:
    _require_event_order(await sample_multibyte_stream(target, MESSAGES))
    count = 1
    async for exchange in sample_streams(target, MESSAGES):
        _require_event_order(exchange)
        count += 1
    return f"{count} responses in order"


def _require_event_order(exchange: HttpExchange) -> None:
    """Fail the check unless the events of a stream are properly nested."""
    types = [frame.type for frame in exchange.frames if frame.type in _KNOWN_EVENTS - {"ping"}]
    require(types and types[0] == "message_start", "the stream does not start with message_start")
    require(types[-1] == "message_stop", f"the stream ends with {types[-1]}")
    for name in ("message_start", "message_stop"):
        require(types.count(name) == 1, f"{name} occurs {types.count(name)} times")
    require("message_delta" in types, "the stream has no message_delta")
    behind = types[types.index("message_delta") :]
    late = [name for name in behind if name.startswith("content_block")]
    require(not late, "a block continues after message_delta")
    _require_block_order(exchange)


def _require_block_order(exchange: HttpExchange) -> None:
    opened, current = 0, None
    for event in exchange.events:
        type, index = event.get("type"), event.get("index")
        if type == "content_block_start":
            require(current is None, f"block {index} starts while block {current} is open")
            require(index == opened, f"block {index} starts, expected block {opened}")
            current, opened = index, opened + 1
        elif type == "content_block_delta":
            require(index == current, f"a delta for block {index} while block {current} is open")
        elif type == "content_block_stop":
            require(index == current, f"block {index} stops while block {current} is open")
            current = None
    require(current is None, f"block {current} does not stop")


@check(
    "messages.stream.kinds",
    "CC-4",
    title="the type of each delta matches its block",
    why="A client that finds text in the input of a tool aborts the turn.",
)
async def event_types(target: TargetServer) -> str:
    seen = set()
    async for exchange in sample_streams(target, MESSAGES):
        open_as = {
            e["index"]: e["content_block"]["type"]
            for e in exchange.events_of_type("content_block_start")
        }
        for event in exchange.events_of_type("content_block_delta"):
            block, kind = open_as.get(event["index"]), event["delta"]["type"]
            fits = block not in _DELTA_TYPES or kind in _DELTA_TYPES[block]
            require(fits, f"a {kind} in a block of type {block}")
            seen.add(kind)
    return ", ".join(sorted(seen))


@check(
    "messages.model.echo",
    "CC-5",
    title="the response names the model as the request did",
    why="With a different name Claude Code removes the thinking of the turn from later requests.",
)
async def model_echo(target: TargetServer) -> str:
    for sample in (sample_response, sample_stream):
        model = MESSAGES.message(await sample(target, MESSAGES)).get("model")
        require(model == target.model, f"requested {target.model!r}, the response names {model!r}")
    return target.model


@check(
    "messages.stream.signature",
    "CC-8",
    title="the signature of a thinking block arrives in one delta, at its end",
    why="The client keeps only the last delta, so the server cannot recognize the reasoning on the "
    "next turn.",
)
async def signature(target: TargetServer) -> str:
    exchange, blocks = await sample_reasoning(target)
    for start in exchange.events_of_type("content_block_start"):
        if start["content_block"].get("type") != "thinking":
            continue
        deltas = [
            d["delta"]
            for d in exchange.events_of_type("content_block_delta")
            if d["index"] == start["index"]
        ]
        pieces = [at for at, delta in enumerate(deltas) if delta["type"] == "signature_delta"]
        require(len(pieces) == 1, f"{len(pieces)} signature deltas in block {start['index']}")
        require(pieces[0] == len(deltas) - 1, "thinking continues after its signature")
    return f"{pluralize(len(blocks), 'thinking block')}, signed once"


@check(
    "messages.stream.no_blank_text",
    "CC-9",
    title="no text block is empty or only whitespace",
    why="A blank block between reasoning and a call makes Claude Code replay the history in a "
    "different order, so the tokens after it are re-prefilled.",
)
async def no_blank_text(target: TargetServer) -> str:
    exchanges = [await sample_response(target, MESSAGES), await sample_stream(target, MESSAGES)]
    for streamed in (True, False):
        with suppress(NotApplicable):
            exchanges.append(await sample_tool_call(target, MESSAGES, streamed=streamed))
    for exchange in exchanges:
        _require_no_blank_text(
            MESSAGES.message(exchange)["content"], str(exchange.request), exchange.summary
        )
    return f"{len(exchanges)} responses inspected"


def _require_no_blank_text(blocks: Sequence[Json], sent: str, received: str) -> None:
    several = len(blocks) > 1  # the only block may be empty: a model may generate no text
    for block in blocks:
        if block["type"] == "text" and several and not block["text"].strip():
            raise CheckFailed(f"a text block of {block['text']!r}", sent, received)


@check(
    "messages.stream.end",
    "CC-10",
    title="the stream ends with message_stop, not with [DONE]",
    why="Strict clients fail to parse [DONE] as JSON at the end of every turn.",
)
async def stream_end(target: TargetServer) -> str:
    exchange = await sample_stream(target, MESSAGES)
    last = exchange.frames[-1] if exchange.frames else SseFrame("", "")
    strange = [frame for frame in exchange.frames if frame.json is None]
    require(not strange, f"an event is not JSON: {strange[0].data if strange else ''}")
    require(last.type == "message_stop", f"the last event is {last.type!r}")
    return "message_stop"


@check(
    "messages.stream.start_usage",
    "TK-2",
    title="message_start already reports the exact prompt tokens",
    why="Claude Code shows this number and compacts by it; an estimate compacts at the wrong time.",
)
async def start_usage(target: TargetServer) -> str:
    exchange = await sample_stream(target, MESSAGES)
    usage = exchange.events_of_type("message_start")[0]["message"].get("usage") or {}
    reported = sum(usage.get(name) or 0 for name in ("input_tokens", *_CACHE_USAGE_FIELDS))
    exact = MESSAGES.usage(await sample_response(target, MESSAGES)).prompt_tokens
    require(
        reported == exact,
        f"message_start reports {reported} input tokens, a non-streaming response {exact}",
    )
    return f"{reported} tokens"


_CACHE_USAGE_FIELDS = ("cache_read_input_tokens", "cache_creation_input_tokens")

CHECKS = (
    whole_shape,
    event_lines,
    order,
    event_types,
    model_echo,
    signature,
    no_blank_text,
    stream_end,
    start_usage,
)
