"""The shape of Messages answers: what Claude Code's fold of the events relies on."""

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
    title="a whole answer is a message with content, stop_reason and usage",
    why="The fallback after a broken stream is a whole request: without it the turn is lost.",
)
async def whole_shape(target: TargetServer) -> str:
    message = (await sample_response(target, MESSAGES)).json
    require(message.get("type") == "message", f"type is {message.get('type')!r}")
    require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    content = message.get("content")
    require(isinstance(content, list), "content is not a list of blocks")
    require(isinstance(message.get("stop_reason"), str), "there is no stop_reason")
    require(isinstance(message.get("usage"), dict), "there is no usage")
    return f"{pluralize(len(content), 'block')}, {message['stop_reason']}"


@check(
    "messages.stream.event_lines",
    "CC-3",
    title="every event names its type in an `event:` line",
    why="Claude Code ignores events without the line: the answer is empty.",
)
async def event_lines(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, MESSAGES):
        frames = [frame for frame in exchange.frames if isinstance(frame.json, dict)]
        for frame in frames:
            type, line = frame.json.get("type"), frame.event
            fits = type not in _KNOWN_EVENTS or line == type
            require(fits, f"{type} stands under the event line {line!r}")
        require(any(frame.event in _KNOWN_EVENTS for frame in frames), "no event has an event line")
        count += len(frames)
    return f"{count} events, each named"


@check(
    "messages.stream.order",
    "CC-4",
    title="blocks open, grow and stop one after the other, between start and stop of the message",
    why="Deltas of a block that is not open are lost: thoughts and calls disappear.",
)
async def order(target: TargetServer) -> str:
    _require_event_order(await sample_multibyte_stream(target, MESSAGES))
    count = 1
    async for exchange in sample_streams(target, MESSAGES):
        _require_event_order(exchange)
        count += 1
    return f"{count} answers in order"


def _require_event_order(exchange: HttpExchange) -> None:
    """Fails unless the events of a stream are bracketed as they must be."""
    types = [frame.type for frame in exchange.frames if frame.type in _KNOWN_EVENTS - {"ping"}]
    require(types and types[0] == "message_start", "the stream does not begin with message_start")
    require(types[-1] == "message_stop", f"the stream ends with {types[-1]}")
    for name in ("message_start", "message_stop"):
        require(types.count(name) == 1, f"{name} comes {types.count(name)} times")
    require("message_delta" in types, "there is no message_delta")
    behind = types[types.index("message_delta") :]
    late = [name for name in behind if name.startswith("content_block")]
    require(not late, "a block goes on behind message_delta")
    _require_block_order(exchange)


def _require_block_order(exchange: HttpExchange) -> None:
    opened, current = 0, None
    for event in exchange.events:
        type, index = event.get("type"), event.get("index")
        if type == "content_block_start":
            require(current is None, f"block {index} starts while block {current} is open")
            require(index == opened, f"block {index} starts where {opened} was next")
            current, opened = index, opened + 1
        elif type == "content_block_delta":
            require(index == current, f"a delta for block {index}, and block {current} is open")
        elif type == "content_block_stop":
            require(index == current, f"block {index} stops, and block {current} is open")
            current = None
    require(current is None, f"block {current} never stops")


@check(
    "messages.stream.kinds",
    "CC-4",
    title="deltas are of the kind of their block",
    why="A client that meets text in a tool's input gives the turn up.",
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
    title="the answer names the model as it was asked for",
    why="With another name Claude Code strips all thinking of the turn from later requests.",
)
async def model_echo(target: TargetServer) -> str:
    for sample in (sample_response, sample_stream):
        model = MESSAGES.message(await sample(target, MESSAGES)).get("model")
        require(model == target.model, f"asked for {target.model!r}, answered as {model!r}")
    return target.model


@check(
    "messages.stream.signature",
    "CC-8",
    title="a thinking block's signature comes in one delta, at its end",
    why="Only the last piece is kept: the thought cannot be recognised on the next turn.",
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
        require(pieces[0] == len(deltas) - 1, "thinking goes on behind its signature")
    return f"{pluralize(len(blocks), 'thinking block')}, signed once"


@check(
    "messages.stream.no_blank_text",
    "CC-9",
    title="no text block is empty or of white space alone",
    why="A blank block between a thought and a call makes Claude Code send the history back in "
    "another order, and the cache is lost from there on.",
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
    return f"{len(exchanges)} answers looked at"


def _require_no_blank_text(blocks: Sequence[Json], sent: str, received: str) -> None:
    several = len(blocks) > 1  # a model may answer with nothing at all
    for block in blocks:
        if block["type"] == "text" and several and not block["text"].strip():
            raise CheckFailed(f"a text block of {block['text']!r}", sent, received)


@check(
    "messages.stream.end",
    "CC-10",
    title="the stream ends with message_stop, not with [DONE]",
    why="Strict clients fail to read [DONE] as JSON, at the very end of every turn.",
)
async def stream_end(target: TargetServer) -> str:
    exchange = await sample_stream(target, MESSAGES)
    last = exchange.frames[-1] if exchange.frames else SseFrame("", "")
    strange = [frame for frame in exchange.frames if frame.json is None]
    require(not strange, f"an event that is no JSON: {strange[0].data if strange else ''}")
    require(last.type == "message_stop", f"the last event is {last.type!r}")
    return "message_stop"


@check(
    "messages.stream.start_usage",
    "TK-2",
    title="message_start already counts the prompt exactly",
    why="Claude Code shows and compacts by this number: an estimate compacts at the wrong time.",
)
async def start_usage(target: TargetServer) -> str:
    exchange = await sample_stream(target, MESSAGES)
    usage = exchange.events_of_type("message_start")[0]["message"].get("usage") or {}
    reported = sum(usage.get(name) or 0 for name in ("input_tokens", *_CACHE_USAGE_FIELDS))
    exact = MESSAGES.usage(await sample_response(target, MESSAGES)).prompt_tokens
    require(
        reported == exact, f"message_start says {reported} input tokens, a whole answer {exact}"
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
