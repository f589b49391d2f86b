"""The shape of Responses answers: what Codex takes from the events."""

from itertools import pairwise

from dovetail_verify.black_box.samples import (
    QUESTION,
    sample_response,
    sample_stream,
    sample_streams,
    sample_tool_call,
)
from dovetail_verify.check import NotApplicable, check, pluralize, require
from dovetail_verify.dialects import RESPONSE_END_EVENTS, RESPONSES, Json
from dovetail_verify.exchange import HttpExchange
from dovetail_verify.target import TargetServer

_PART_OPENERS = {
    "response.output_text.delta": "response.content_part.added",
    "response.reasoning_summary_text.delta": "response.reasoning_summary_part.added",
}


def require_item_order(exchange: HttpExchange) -> None:
    """Fails unless items are added in order, and everything of an item comes while it is open."""
    opened: dict[int, Json] = {}
    done: set[int] = set()
    for event in exchange.events:
        type, index = event["type"], event.get("output_index")
        if type == "response.output_item.added":
            require(index == len(opened), f"item {index} is added where {len(opened)} was next")
            opened[len(opened)] = event["item"]
        elif type == "response.output_item.done":
            require(index in opened, f"item {index} is done, and was never added")
            require(index not in done, f"item {index} is done twice")
            _require_same_id(event["item"].get("id"), opened[index], type)
            done.add(index)
        elif index is not None:
            alive = index in opened and index not in done
            require(alive, f"{type} for item {index}, which is not open")
            _require_same_id(event.get("item_id"), opened[index], type)
    require(len(opened) == len(done), f"items {sorted({*opened} - done)} are never done")


def _require_same_id(id: object, item: Json, type: str) -> None:
    """An event may leave the id out; another item's it must not have."""
    require(
        id in (None, item.get("id")), f"{type} names {id!r}, and the item is {item.get('id')!r}"
    )


def require_parts_opened(exchange: HttpExchange) -> None:
    """Fails where text comes for a part of an item that was never added."""
    added = {
        _part_position(event)
        for event in exchange.events
        if event["type"] in _PART_OPENERS.values()
    }
    for event in exchange.events:
        opener = _PART_OPENERS.get(event["type"])
        if opener is not None:
            known = (opener, *_part_position(event)[1:]) in added
            require(known, f"{event['type']} without a {opener} before it")


def _part_position(event: Json) -> tuple[str, object, object]:
    part = event.get("content_index", event.get("summary_index"))
    return event["type"], event.get("output_index"), part


def require_rising_sequence(exchange: HttpExchange) -> str:
    """Fails unless the events are numbered upwards. Gives the numbers, for people."""
    events = [e for e in exchange.events if str(e.get("type", "")).startswith("response.")]
    numbers = [event.get("sequence_number") for event in events]
    require(None not in numbers, "an event without sequence_number")
    rising = all(b > a for a, b in pairwise(numbers))
    require(rising, f"the numbers do not rise: {numbers[:20]}")
    return f"{len(numbers)} events, numbered {numbers[0]} to {numbers[-1]}"


_IGNORED_ITEM_FIELDS = ("status",)  # of an item: a stream may say in_progress until the end


@check(
    "responses.whole.shape",
    "CX-27",
    title="a whole answer is a response with output, status and usage",
    why="Clients that do not stream get nothing they can read.",
)
async def whole_shape(target: TargetServer) -> str:
    response = (await sample_response(target, RESPONSES)).json
    require(response.get("object") == "response", f"object is {response.get('object')!r}")
    require(isinstance(response.get("output"), list), "output is not a list of items")
    status = response.get("status")
    require(status in ("completed", "incomplete"), f"status is {status!r}")
    usage = response.get("usage") or {}
    _require_usage_sum(usage)
    return f"{pluralize(len(response['output']), 'item')}, {status}"


def _require_usage_sum(usage: Json) -> None:
    for name in ("input_tokens", "output_tokens", "total_tokens"):
        require(isinstance(usage.get(name), int), f"usage has no {name}")
    total = usage["input_tokens"] + usage["output_tokens"]
    require(usage["total_tokens"] == total, f"total_tokens is {usage['total_tokens']}, not {total}")


@check(
    "responses.stream.order",
    "CX-1",
    title="the stream is created, has items that are done, and is completed",
    why="Codex waits for these events: without them the turn fails or hangs.",
)
async def order(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, RESPONSES):
        count += 1
        types = [event.get("type") for event in exchange.events]
        require(types and types[0] == "response.created", "it does not begin with response.created")
        ends = [type for type in types if type in RESPONSE_END_EVENTS]
        require(len(ends) == 1 and types[-1] == ends[0], f"it ends with {types[-1]}")
        require(isinstance(RESPONSES.response(exchange).get("id"), str), "the response has no id")
        require("response.output_item.done" in types, "no item was ever done")
    return f"{count} streams in order"


@check(
    "responses.stream.indices",
    "CX-26",
    title="items are added and done in order, each event under index and id of an open item",
    why="SDKs that collect an item by its index lose it, or mix two.",
)
async def indices(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        require_item_order(exchange)
        require_parts_opened(exchange)
    return "every item under its own index"


@check(
    "responses.stream.usage",
    "CX-6",
    title="usage of a stream has all three numbers, and they add up",
    why="Codex cannot read the end of the turn, and tries again.",
)
async def usage(target: TargetServer) -> str:
    found = RESPONSES.response(await sample_stream(target, RESPONSES)).get("usage")
    if found is None:
        return "no usage, which Codex accepts"
    _require_usage_sum(found)
    return f"{found['total_tokens']} tokens"


@check(
    "responses.stream.event_lines",
    "CX-1",
    title="every event names its type in its data, and stands under no other `event:` line",
    why="Clients that go by one of the two miss events.",
)
async def event_lines(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, RESPONSES):
        for frame in exchange.frames:
            if isinstance(frame.json, dict):
                type = frame.json.get("type")
                require(isinstance(type, str), "an event without a type in its data")
                require(frame.event in ("", type), f"{type} stands under {frame.event!r}")
        count += len(exchange.frames)
    return f"{count} events"


@check(
    "responses.stream.sequence",
    "CX-2",
    title="sequence_number rises by every event",
    why="SDKs that put events in order by it mix them up, and resuming a stream fails.",
)
async def sequence(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        note = require_rising_sequence(exchange)
    return note


@check(
    "responses.stream.items_done",
    "CX-1",
    title="every item of the answer was done before response.completed",
    why="Codex takes items from output_item.done alone: what has none is lost, calls too.",
)
async def items_done(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        done = exchange.events_of_type("response.output_item.done")
        output = RESPONSES.response(exchange).get("output") or []
        ids = [event["item"].get("id") for event in done]
        missing = [item.get("id") for item in output if item.get("id") not in ids]
        require(not missing, f"in the answer, and never done: {missing}")
        require(done, "no item was ever done")
    return pluralize(len(done), "item")


@check(
    "responses.stream.output",
    "CX-20",
    title="the output of response.completed is the items that were done",
    why="Clients that keep the final response replay another history than those that keep items.",
)
async def final_output(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        done = [event["item"] for event in exchange.events_of_type("response.output_item.done")]
        final = RESPONSES.response(exchange).get("output") or []
        require(len(done) == len(final), f"{len(done)} items were done, {len(final)} are in it")
        for one, other in zip(done, final, strict=True):
            differing = [k for k in {*one, *other} if one.get(k) != other.get(k)]
            differing = [name for name in differing if name not in _IGNORED_ITEM_FIELDS]
            require(not differing, f"{one.get('type')} items differ in {', '.join(differing)}")
    return f"{pluralize(len(final), 'item')}, the same"


@check(
    "responses.stream.text",
    "R1",
    title="text deltas add up to the text that is done",
    why="What the user saw is not what goes into the history.",
)
async def text_deltas(target: TargetServer) -> str:
    exchange = await sample_stream(target, RESPONSES)
    deltas = "".join(
        event["delta"] for event in exchange.events_of_type("response.output_text.delta")
    )
    final = RESPONSES.text(exchange)
    require(deltas == final, f"deltas add up to {deltas!r}, the item has {final!r}")
    return f"{len(final)} characters"


@check(
    "responses.call.deltas",
    "CX-7",
    title="argument deltas, and what ends them, are the arguments of the call",
    why="A client that shows or runs the call by its deltas runs something else.",
)
async def call_deltas(target: TargetServer) -> str:
    exchange = await sample_tool_call(target, RESPONSES)
    found = exchange.events_of_type("response.function_call_arguments.delta")
    deltas = "".join(event["delta"] for event in found)
    final = "".join(call.arguments for call in RESPONSES.tool_calls(exchange))
    require(deltas == final, f"deltas add up to {deltas!r}, the call has {final!r}")
    ends = exchange.events_of_type("response.function_call_arguments.done")
    ended = "".join(event["arguments"] for event in ends)
    require(not ends or ended == final, f"done with {ended!r}, the call has {final!r}")
    return pluralize(len(found), "delta")


@check(
    "responses.ids.items",
    "CX-8",
    title="every item has an id of its own",
    why="Items with the same id overwrite each other.",
)
async def item_ids(target: TargetServer) -> str:
    items = [
        i
        async for exchange in sample_streams(target, RESPONSES)
        for i in RESPONSES.response(exchange)["output"]
    ]
    ids = [item.get("id") for item in items]
    require(all(isinstance(id, str) and id for id in ids), "an item without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {ids}")
    return pluralize(len(ids), "item")


@check(
    "responses.model.echo",
    "CX-14",
    title="the answer names the model as it was asked for, in the body and in no other header",
    why="Codex warns in red that another model answered.",
)
async def model_echo(target: TargetServer) -> str:
    exchange = await sample_stream(target, RESPONSES)
    header = exchange.headers.get("openai-model")
    require(
        header in (None, target.model),
        f"the header openai-model is {header!r}",
        received=str(header),
    )
    model = RESPONSES.response(exchange).get("model")
    require(model == target.model, f"asked for {target.model!r}, answered as {model!r}")
    return target.model


async def _reasoning_items(target: TargetServer) -> list[Json]:
    """The reasoning items of an answer that was asked to think."""

    async def make(server: TargetServer) -> HttpExchange:
        body = RESPONSES.with_streaming(RESPONSES.body(server.model, [QUESTION], max_tokens=2048))
        del body["temperature"]
        more = {"reasoning": {"effort": "medium", "summary": "auto"}, "store": False}
        include = ["reasoning.encrypted_content"]
        return await server.post(RESPONSES.path, {**body, **more, "include": include})

    exchange = (await target.memoize("responses thought", make)).require_ok()
    items = [i for i in RESPONSES.response(exchange)["output"] if i.get("type") == "reasoning"]
    if not items:
        raise NotApplicable("the model did not think")
    return items


@check(
    "responses.reasoning.summary",
    "CX-4",
    title="a reasoning item has a summary array",
    why="Codex drops the item without a word: the model forgets what it thought.",
)
async def reasoning_summary(target: TargetServer) -> str:
    items = await _reasoning_items(target)
    for item in items:
        require(isinstance(item.get("summary"), list), f"summary is {item.get('summary')!r}")
    return pluralize(len(items), "reasoning item")


@check(
    "responses.reasoning.replayable",
    "CX-5",
    title="a reasoning item carries its text and encrypted_content when that is asked for",
    why="OpenCode drops thoughts without encrypted_content, Codex and Pi replay the text.",
)
async def reasoning_replayable(target: TargetServer) -> str:
    for item in await _reasoning_items(target):
        sealed = item.get("encrypted_content")
        require(isinstance(sealed, str) and sealed, "there is no encrypted_content")
        texts = [part.get("text") for part in item.get("content") or item.get("summary") or []]
        require(any(texts), "its text is neither in content nor in summary")
    return "text and encrypted_content"


CHECKS = (
    whole_shape,
    order,
    indices,
    usage,
    event_lines,
    sequence,
    items_done,
    final_output,
    text_deltas,
    call_deltas,
    item_ids,
    model_echo,
    reasoning_summary,
    reasoning_replayable,
)
