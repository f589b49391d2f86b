"""The shape of Messages answers: what Claude Code's fold of the events relies on."""

from collections.abc import Sequence
from contextlib import suppress

from dovetail_verify.black_box.samples import (
    called,
    strange_letters,
    stream,
    streams,
    thought,
    whole,
)
from dovetail_verify.check import Failed, NotApplicable, check, require, several
from dovetail_verify.dialects import MESSAGES, Json
from dovetail_verify.exchange import Exchange, Frame
from dovetail_verify.target import Stage

_KINDS = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
}
_KNOWN = {
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
async def whole_shape(stage: Stage) -> str:
    message = (await whole(stage, MESSAGES)).json
    require(message.get("type") == "message", f"type is {message.get('type')!r}")
    require(message.get("role") == "assistant", f"role is {message.get('role')!r}")
    content = message.get("content")
    require(isinstance(content, list), "content is not a list of blocks")
    require(isinstance(message.get("stop_reason"), str), "there is no stop_reason")
    require(isinstance(message.get("usage"), dict), "there is no usage")
    return f"{several(len(content), 'block')}, {message['stop_reason']}"


@check(
    "messages.stream.event_lines",
    "CC-3",
    title="every event names its type in an `event:` line",
    why="Claude Code ignores events without the line: the answer is empty.",
)
async def event_lines(stage: Stage) -> str:
    count = 0
    async for exchange in streams(stage, MESSAGES):
        frames = [frame for frame in exchange.frames if isinstance(frame.json, dict)]
        for frame in frames:
            named, line = frame.json.get("type"), frame.event
            fits = named not in _KNOWN or line == named
            require(fits, f"{named} stands under the event line {line!r}")
        require(any(frame.event in _KNOWN for frame in frames), "no event has an event line")
        count += len(frames)
    return f"{count} events, each named"


@check(
    "messages.stream.order",
    "CC-4",
    title="blocks open, grow and stop one after the other, between start and stop of the message",
    why="Deltas of a block that is not open are lost: thoughts and calls disappear.",
)
async def order(stage: Stage) -> str:
    _bracketed(await strange_letters(stage, MESSAGES))
    count = 1
    async for exchange in streams(stage, MESSAGES):
        _bracketed(exchange)
        count += 1
    return f"{count} answers in order"


def _bracketed(exchange: Exchange) -> None:
    """Fails unless the events of a stream are bracketed as they must be."""
    types = [frame.type for frame in exchange.frames if frame.type in _KNOWN - {"ping"}]
    require(types and types[0] == "message_start", "the stream does not begin with message_start")
    require(types[-1] == "message_stop", f"the stream ends with {types[-1]}")
    for name in ("message_start", "message_stop"):
        require(types.count(name) == 1, f"{name} comes {types.count(name)} times")
    require("message_delta" in types, "there is no message_delta")
    behind = types[types.index("message_delta") :]
    late = [name for name in behind if name.startswith("content_block")]
    require(not late, "a block goes on behind message_delta")
    _blocks_bracketed(exchange)


def _blocks_bracketed(exchange: Exchange) -> None:
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
async def kinds(stage: Stage) -> str:
    seen = set()
    async for exchange in streams(stage, MESSAGES):
        open_as = {
            e["index"]: e["content_block"]["type"] for e in exchange.of("content_block_start")
        }
        for event in exchange.of("content_block_delta"):
            block, kind = open_as.get(event["index"]), event["delta"]["type"]
            fits = block not in _KINDS or kind in _KINDS[block]
            require(fits, f"a {kind} in a block of type {block}")
            seen.add(kind)
    return ", ".join(sorted(seen))


@check(
    "messages.model.echo",
    "CC-5",
    title="the answer names the model as it was asked for",
    why="With another name Claude Code strips all thinking of the turn from later requests.",
)
async def model_echo(stage: Stage) -> str:
    for ask in (whole, stream):
        named = MESSAGES.message(await ask(stage, MESSAGES)).get("model")
        require(named == stage.model, f"asked for {stage.model!r}, answered as {named!r}")
    return stage.model


@check(
    "messages.stream.signature",
    "CC-8",
    title="a thinking block's signature comes in one delta, at its end",
    why="Only the last piece is kept: the thought cannot be recognised on the next turn.",
)
async def signature(stage: Stage) -> str:
    exchange, blocks = await thought(stage)
    for start in exchange.of("content_block_start"):
        if start["content_block"].get("type") != "thinking":
            continue
        deltas = [
            d["delta"] for d in exchange.of("content_block_delta") if d["index"] == start["index"]
        ]
        pieces = [at for at, delta in enumerate(deltas) if delta["type"] == "signature_delta"]
        require(len(pieces) == 1, f"{len(pieces)} signature deltas in block {start['index']}")
        require(pieces[0] == len(deltas) - 1, "thinking goes on behind its signature")
    return f"{several(len(blocks), 'thinking block')}, signed once"


@check(
    "messages.stream.no_blank_text",
    "CC-9",
    title="no text block is empty or of white space alone",
    why="A blank block between a thought and a call makes Claude Code send the history back in "
    "another order, and the cache is lost from there on.",
)
async def no_blank_text(stage: Stage) -> str:
    exchanges = [await whole(stage, MESSAGES), await stream(stage, MESSAGES)]
    for streamed in (True, False):
        with suppress(NotApplicable):
            exchanges.append(await called(stage, MESSAGES, streamed=streamed))
    for exchange in exchanges:
        _no_blank(MESSAGES.message(exchange)["content"], str(exchange.sent), exchange.came)
    return f"{len(exchanges)} answers looked at"


def _no_blank(blocks: Sequence[Json], sent: str, came: str) -> None:
    several = len(blocks) > 1  # a model may answer with nothing at all
    for block in blocks:
        if block["type"] == "text" and several and not block["text"].strip():
            raise Failed(f"a text block of {block['text']!r}", sent, came)


@check(
    "messages.stream.end",
    "CC-10",
    title="the stream ends with message_stop, not with [DONE]",
    why="Strict clients fail to read [DONE] as JSON, at the very end of every turn.",
)
async def stream_end(stage: Stage) -> str:
    exchange = await stream(stage, MESSAGES)
    last = exchange.frames[-1] if exchange.frames else Frame("", "")
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
async def start_usage(stage: Stage) -> str:
    exchange = await stream(stage, MESSAGES)
    usage = exchange.of("message_start")[0]["message"].get("usage") or {}
    told = sum(usage.get(name) or 0 for name in ("input_tokens", *_CACHED))
    exact = MESSAGES.used(await whole(stage, MESSAGES)).prompt
    require(told == exact, f"message_start says {told} input tokens, a whole answer {exact}")
    return f"{told} tokens"


_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")

CHECKS = (
    whole_shape,
    event_lines,
    order,
    kinds,
    model_echo,
    signature,
    no_blank_text,
    stream_end,
    start_usage,
)
