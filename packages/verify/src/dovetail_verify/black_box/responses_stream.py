"""The shape of Responses answers: what Codex takes from the events."""

from dovetail_verify.black_box.items import in_sequence, items_bracketed, parts_opened
from dovetail_verify.black_box.samples import QUESTION, called, stream, streams, whole
from dovetail_verify.check import NotApplicable, check, require, several
from dovetail_verify.dialects import RESPONSE_ENDS, RESPONSES, Json
from dovetail_verify.exchange import Exchange
from dovetail_verify.target import Stage

_IGNORED = ("status",)  # of an item: a stream may say in_progress until the end


@check(
    "responses.whole.shape",
    "CX-27",
    title="a whole answer is a response with output, status and usage",
    why="Clients that do not stream get nothing they can read.",
)
async def whole_shape(stage: Stage) -> str:
    response = (await whole(stage, RESPONSES)).json
    require(response.get("object") == "response", f"object is {response.get('object')!r}")
    require(isinstance(response.get("output"), list), "output is not a list of items")
    status = response.get("status")
    require(status in ("completed", "incomplete"), f"status is {status!r}")
    usage = response.get("usage") or {}
    _summed(usage)
    return f"{several(len(response['output']), 'item')}, {status}"


def _summed(usage: Json) -> None:
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
async def order(stage: Stage) -> str:
    count = 0
    async for exchange in streams(stage, RESPONSES):
        count += 1
        types = [event.get("type") for event in exchange.events]
        require(types and types[0] == "response.created", "it does not begin with response.created")
        ends = [type for type in types if type in RESPONSE_ENDS]
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
async def indices(stage: Stage) -> str:
    async for exchange in streams(stage, RESPONSES):
        items_bracketed(exchange)
        parts_opened(exchange)
    return "every item under its own index"


@check(
    "responses.stream.usage",
    "CX-6",
    title="usage of a stream has all three numbers, and they add up",
    why="Codex cannot read the end of the turn, and tries again.",
)
async def usage(stage: Stage) -> str:
    found = RESPONSES.response(await stream(stage, RESPONSES)).get("usage")
    if found is None:
        return "no usage, which Codex accepts"
    _summed(found)
    return f"{found['total_tokens']} tokens"


@check(
    "responses.stream.event_lines",
    "CX-1",
    title="every event names its type in its data, and stands under no other `event:` line",
    why="Clients that go by one of the two miss events.",
)
async def event_lines(stage: Stage) -> str:
    count = 0
    async for exchange in streams(stage, RESPONSES):
        for frame in exchange.frames:
            if isinstance(frame.json, dict):
                named = frame.json.get("type")
                require(isinstance(named, str), "an event without a type in its data")
                require(frame.event in ("", named), f"{named} stands under {frame.event!r}")
        count += len(exchange.frames)
    return f"{count} events"


@check(
    "responses.stream.sequence",
    "CX-2",
    title="sequence_number rises by every event",
    why="SDKs that put events in order by it mix them up, and resuming a stream fails.",
)
async def sequence(stage: Stage) -> str:
    async for exchange in streams(stage, RESPONSES):
        told = in_sequence(exchange)
    return told


@check(
    "responses.stream.items_done",
    "CX-1",
    title="every item of the answer was done before response.completed",
    why="Codex takes items from output_item.done alone: what has none is lost, calls too.",
)
async def items_done(stage: Stage) -> str:
    async for exchange in streams(stage, RESPONSES):
        done = exchange.of("response.output_item.done")
        output = RESPONSES.response(exchange).get("output") or []
        ids = [event["item"].get("id") for event in done]
        missing = [item.get("id") for item in output if item.get("id") not in ids]
        require(not missing, f"in the answer, and never done: {missing}")
        require(done, "no item was ever done")
    return several(len(done), "item")


@check(
    "responses.stream.output",
    "CX-20",
    title="the output of response.completed is the items that were done",
    why="Clients that keep the final response replay another history than those that keep items.",
)
async def output(stage: Stage) -> str:
    async for exchange in streams(stage, RESPONSES):
        done = [event["item"] for event in exchange.of("response.output_item.done")]
        final = RESPONSES.response(exchange).get("output") or []
        require(len(done) == len(final), f"{len(done)} items were done, {len(final)} are in it")
        for one, other in zip(done, final, strict=True):
            differing = [k for k in {*one, *other} if one.get(k) != other.get(k)]
            differing = [name for name in differing if name not in _IGNORED]
            require(not differing, f"{one.get('type')} items differ in {', '.join(differing)}")
    return f"{several(len(final), 'item')}, the same"


@check(
    "responses.stream.text",
    "R1",
    title="text deltas add up to the text that is done",
    why="What the user saw is not what goes into the history.",
)
async def text(stage: Stage) -> str:
    exchange = await stream(stage, RESPONSES)
    deltas = "".join(event["delta"] for event in exchange.of("response.output_text.delta"))
    final = RESPONSES.text(exchange)
    require(deltas == final, f"deltas add up to {deltas!r}, the item has {final!r}")
    return f"{len(final)} characters"


@check(
    "responses.call.deltas",
    "CX-7",
    title="argument deltas, and what ends them, are the arguments of the call",
    why="A client that shows or runs the call by its deltas runs something else.",
)
async def call_deltas(stage: Stage) -> str:
    exchange = await called(stage, RESPONSES)
    found = exchange.of("response.function_call_arguments.delta")
    deltas = "".join(event["delta"] for event in found)
    final = "".join(call.arguments for call in RESPONSES.calls(exchange))
    require(deltas == final, f"deltas add up to {deltas!r}, the call has {final!r}")
    ends = exchange.of("response.function_call_arguments.done")
    ended = "".join(event["arguments"] for event in ends)
    require(not ends or ended == final, f"done with {ended!r}, the call has {final!r}")
    return several(len(found), "delta")


@check(
    "responses.ids.items",
    "CX-8",
    title="every item has an id of its own",
    why="Items with the same id overwrite each other.",
)
async def item_ids(stage: Stage) -> str:
    items = [
        i
        async for exchange in streams(stage, RESPONSES)
        for i in RESPONSES.response(exchange)["output"]
    ]
    ids = [item.get("id") for item in items]
    require(all(isinstance(id, str) and id for id in ids), "an item without an id")
    require(len(set(ids)) == len(ids), f"an id came twice: {ids}")
    return several(len(ids), "item")


@check(
    "responses.model.echo",
    "CX-14",
    title="the answer names the model as it was asked for, in the body and in no other header",
    why="Codex warns in red that another model answered.",
)
async def model_echo(stage: Stage) -> str:
    exchange = await stream(stage, RESPONSES)
    header = exchange.headers.get("openai-model")
    require(
        header in (None, stage.model), f"the header openai-model is {header!r}", came=str(header)
    )
    named = RESPONSES.response(exchange).get("model")
    require(named == stage.model, f"asked for {stage.model!r}, answered as {named!r}")
    return stage.model


async def _thought(stage: Stage) -> list[Json]:
    """The reasoning items of an answer that was asked to think."""

    async def make(stage: Stage) -> Exchange:
        body = RESPONSES.streamed(RESPONSES.body(stage.model, [QUESTION], limit=2048))
        del body["temperature"]
        more = {"reasoning": {"effort": "medium", "summary": "auto"}, "store": False}
        include = ["reasoning.encrypted_content"]
        return await stage.post(RESPONSES.path, {**body, **more, "include": include})

    exchange = (await stage.once("responses thought", make)).ok()
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
async def summary(stage: Stage) -> str:
    items = await _thought(stage)
    for item in items:
        require(isinstance(item.get("summary"), list), f"summary is {item.get('summary')!r}")
    return several(len(items), "reasoning item")


@check(
    "responses.reasoning.replayable",
    "CX-5",
    title="a reasoning item carries its text and encrypted_content when that is asked for",
    why="OpenCode drops thoughts without encrypted_content, Codex and Pi replay the text.",
)
async def replayable(stage: Stage) -> str:
    for item in await _thought(stage):
        sealed = item.get("encrypted_content")
        require(isinstance(sealed, str) and sealed, "there is no encrypted_content")
        shown = [part.get("text") for part in item.get("content") or item.get("summary") or []]
        require(any(shown), "its text is neither in content nor in summary")
    return "text and encrypted_content"


CHECKS = (
    whole_shape,
    order,
    indices,
    usage,
    event_lines,
    sequence,
    items_done,
    output,
    text,
    call_deltas,
    item_ids,
    model_echo,
    summary,
    replayable,
)
