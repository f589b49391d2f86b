"""Checks of the response structure of the Responses API, which Codex relies on."""

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
    """Fail the check unless items are added in order and receive events only while open."""
    opened: dict[int, Json] = {}
    done: set[int] = set()
    for event in exchange.events:
        type, index = event["type"], event.get("output_index")
        if type == "response.output_item.added":
            require(index == len(opened), f"item {index} is added, expected item {len(opened)}")
            opened[len(opened)] = event["item"]
        elif type == "response.output_item.done":
            require(index in opened, f"item {index} is done but was not added")
            require(index not in done, f"item {index} is done twice")
            _require_same_id(event["item"].get("id"), opened[index], type)
            done.add(index)
        elif index is not None:
            alive = index in opened and index not in done
            require(alive, f"{type} for item {index}, which is not open")
            _require_same_id(event.get("item_id"), opened[index], type)
    require(len(opened) == len(done), f"items {sorted({*opened} - done)} have no output_item.done")


def _require_same_id(id: object, item: Json, type: str) -> None:
    """Fail the check if an event has the id of another item. It may omit the id."""
    require(
        id in (None, item.get("id")), f"{type} names {id!r}, but the item is {item.get('id')!r}"
    )


def require_parts_opened(exchange: HttpExchange) -> None:
    """Fail the check if text arrives for a part of an item that was not added."""
    added = {
        _part_position(event)
        for event in exchange.events
        if event["type"] in _PART_OPENERS.values()
    }
    for event in exchange.events:
        opener = _PART_OPENERS.get(event["type"])
        if opener is not None:
            known = (opener, *_part_position(event)[1:]) in added
            require(known, f"{event['type']} without a preceding {opener}")


def _part_position(event: Json) -> tuple[str, object, object]:
    part = event.get("content_index", event.get("summary_index"))
    return event["type"], event.get("output_index"), part


def require_rising_sequence(exchange: HttpExchange) -> str:
    """Return a summary of the sequence numbers. Fail the check unless they increase."""
    events = [e for e in exchange.events if str(e.get("type", "")).startswith("response.")]
    numbers = [event.get("sequence_number") for event in events]
    require(None not in numbers, "an event has no sequence_number")
    rising = all(b > a for a, b in pairwise(numbers))
    require(rising, f"the sequence numbers do not increase: {numbers[:20]}")
    return f"{len(numbers)} events, numbered {numbers[0]} to {numbers[-1]}"


_IGNORED_ITEM_FIELDS = ("status",)  # a stream may report in_progress until its end


@check(
    "responses.whole.shape",
    "CX-27",
    title="a non-streaming response is a response object with output, status and usage",
    why="Clients that do not stream cannot parse the response.",
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
    title="a stream has response.created, items that are done, and response.completed",
    why="Codex waits for these events; without them the turn fails or hangs.",
)
async def order(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, RESPONSES):
        count += 1
        types = [event.get("type") for event in exchange.events]
        require(
            types and types[0] == "response.created",
            "the stream does not start with response.created",
        )
        ends = [type for type in types if type in RESPONSE_END_EVENTS]
        require(len(ends) == 1 and types[-1] == ends[0], f"the stream ends with {types[-1]}")
        require(isinstance(RESPONSES.response(exchange).get("id"), str), "the response has no id")
        require("response.output_item.done" in types, "the stream has no output_item.done")
    return f"{count} streams in order"


@check(
    "responses.stream.indices",
    "CX-26",
    title="items are added and done in order, and each event has the index and id of an open item",
    why="SDKs that collect items by index drop an item or mix two.",
)
async def indices(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        require_item_order(exchange)
        require_parts_opened(exchange)
    return "every item has its own index"


@check(
    "responses.stream.usage",
    "CX-6",
    title="the usage of a stream has all three counts, and they add up",
    why="Codex cannot parse the end of the turn and retries it.",
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
    title="every event names its type in its data, and its `event:` line does not differ",
    why="Clients that read only one of the two miss events.",
)
async def event_lines(target: TargetServer) -> str:
    count = 0
    async for exchange in sample_streams(target, RESPONSES):
        for frame in exchange.frames:
            if isinstance(frame.json, dict):
                type = frame.json.get("type")
                require(isinstance(type, str), "an event has no type in its data")
                require(frame.event in ("", type), f"{type} has the event line {frame.event!r}")
        count += len(exchange.frames)
    return f"{count} events"


@check(
    "responses.stream.sequence",
    "CX-2",
    title="sequence_number increases with every event",
    why="SDKs that sort events by it mix them up, and resuming a stream fails.",
)
async def sequence(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        note = require_rising_sequence(exchange)
    return note


@check(
    "responses.stream.items_done",
    "CX-1",
    title="every item of the response is done before response.completed",
    why="Codex reads items only from output_item.done; other items are lost, including calls.",
)
async def items_done(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        done = exchange.events_of_type("response.output_item.done")
        output = RESPONSES.response(exchange).get("output") or []
        ids = [event["item"].get("id") for event in done]
        missing = [item.get("id") for item in output if item.get("id") not in ids]
        require(not missing, f"items of the response without output_item.done: {missing}")
        require(done, "the stream has no output_item.done")
    return pluralize(len(done), "item")


@check(
    "responses.stream.output",
    "CX-20",
    title="the output of response.completed equals the items that were done",
    why="Clients that store the final response replay a different history than those that store "
    "the items.",
)
async def final_output(target: TargetServer) -> str:
    async for exchange in sample_streams(target, RESPONSES):
        done = [event["item"] for event in exchange.events_of_type("response.output_item.done")]
        final = RESPONSES.response(exchange).get("output") or []
        require(
            len(done) == len(final), f"{len(done)} items were done, the output has {len(final)}"
        )
        for one, other in zip(done, final, strict=True):
            differing = [k for k in {*one, *other} if one.get(k) != other.get(k)]
            differing = [name for name in differing if name not in _IGNORED_ITEM_FIELDS]
            require(not differing, f"{one.get('type')} items differ in {', '.join(differing)}")
    return f"{pluralize(len(final), 'item')}, the same"


@check(
    "responses.stream.text",
    "R1",
    title="text deltas add up to the text of the item",
    why="The text that the user saw differs from the text in the history.",
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
    title="argument deltas and the done event equal the arguments of the call",
    why="A client that runs the call by its deltas runs a different call.",
)
async def call_deltas(target: TargetServer) -> str:
    exchange = await sample_tool_call(target, RESPONSES)
    found = exchange.events_of_type("response.function_call_arguments.delta")
    deltas = "".join(event["delta"] for event in found)
    final = "".join(call.arguments for call in RESPONSES.tool_calls(exchange))
    require(deltas == final, f"deltas add up to {deltas!r}, the call has {final!r}")
    ends = exchange.events_of_type("response.function_call_arguments.done")
    ended = "".join(event["arguments"] for event in ends)
    require(not ends or ended == final, f"the done event has {ended!r}, the call has {final!r}")
    return pluralize(len(found), "delta")


@check(
    "responses.ids.items",
    "CX-8",
    title="every item has a unique id",
    why="Items with the same id overwrite each other.",
)
async def item_ids(target: TargetServer) -> str:
    items = [
        i
        async for exchange in sample_streams(target, RESPONSES)
        for i in RESPONSES.response(exchange)["output"]
    ]
    ids = [item.get("id") for item in items]
    require(all(isinstance(id, str) and id for id in ids), "an item has no id")
    require(len(set(ids)) == len(ids), f"an id is repeated: {ids}")
    return pluralize(len(ids), "item")


@check(
    "responses.model.echo",
    "CX-14",
    title="the response names the requested model in the body, and in openai-model if present",
    why="Codex shows a red warning that a different model responded.",
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
    require(model == target.model, f"requested {target.model!r}, the response names {model!r}")
    return target.model


async def _reasoning_items(target: TargetServer) -> list[Json]:
    """Return the reasoning items of a response to a request with reasoning."""

    async def make(server: TargetServer) -> HttpExchange:
        body = RESPONSES.with_streaming(RESPONSES.body(server.model, [QUESTION], max_tokens=2048))
        del body["temperature"]
        more = {"reasoning": {"effort": "medium", "summary": "auto"}, "store": False}
        include = ["reasoning.encrypted_content"]
        return await server.post(RESPONSES.path, {**body, **more, "include": include})

    exchange = (await target.memoize("responses reasoning", make)).require_ok()
    items = [i for i in RESPONSES.response(exchange)["output"] if i.get("type") == "reasoning"]
    if not items:
        raise NotApplicable("the model generated no reasoning")
    return items


@check(
    "responses.reasoning.summary",
    "CX-4",
    title="a reasoning item has a summary array",
    why="Codex silently drops the item, so the model no longer has its reasoning.",
)
async def reasoning_summary(target: TargetServer) -> str:
    items = await _reasoning_items(target)
    for item in items:
        require(isinstance(item.get("summary"), list), f"summary is {item.get('summary')!r}")
    return pluralize(len(items), "reasoning item")


@check(
    "responses.reasoning.replayable",
    "CX-5",
    title="a reasoning item has its text, and encrypted_content if the request includes it",
    why="OpenCode drops reasoning without encrypted_content; Codex and Pi replay the text.",
)
async def reasoning_replayable(target: TargetServer) -> str:
    for item in await _reasoning_items(target):
        sealed = item.get("encrypted_content")
        require(isinstance(sealed, str) and sealed, "the item has no encrypted_content")
        texts = [part.get("text") for part in item.get("content") or item.get("summary") or []]
        require(any(texts), "the item has no text in content or summary")
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
