"""Checks of what a client is shown: everything, in the model's order, and nothing else."""

from collections.abc import Sequence
from dataclasses import replace

from dovetail_verify.check import Check, NotApplicable, require
from dovetail_verify.each_api import each_api
from dovetail_verify.scripted.requests import ask, play, question, words
from dovetail_verify.scripted.response import Shape, Shown, read
from dovetail_verify.scripted.scenarios import (
    FRAMED,
    INTERLEAVED,
    LETTERS,
    MALFORMED,
    MIXED,
    ORPHAN,
    Part,
    Scene,
)
from dovetail_verify.target import Stage

_ORDER = "Agents show each thought with its call; a grouped turn goes back grouped, and the model "
_ORDER += "reads a history that it never wrote."
DISPATCH = "tool_call_dispatch"


@each_api(
    "order.stream",
    "R2",
    title="think, call, think, call is streamed in this order",
    why=_ORDER,
)
async def order_streamed(stage: Stage, api: str) -> str:
    return same(await play(api, stage, INTERLEAVED), INTERLEAVED)


@each_api(
    "order.whole",
    {"messages": "R2", "responses": "R2"},
    title="think, call, think, call is in this order in a whole answer",
    why=_ORDER,
)
async def order_whole(stage: Stage, api: str) -> str:
    return same(await play(api, stage, INTERLEAVED, stream=False), INTERLEAVED)


@each_api(
    "order.fields",
    {"chat": "R1"},
    title="both thoughts and both calls are in a whole answer, with no text beside them",
    why="A whole answer that differs from its stream makes an agent behave differently without "
    "streaming.",
)
async def order_fields(stage: Stage, api: str) -> str:
    shape = await play(api, stage, INTERLEAVED, stream=False)
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    require_same(shape.of("call"), calls)
    thoughts = [part.text for part in INTERLEAVED.parts if part.kind == "thought"]
    found = [shape.text("thought").find(text) for text in thoughts]
    require(-1 not in found and found == sorted(found), f"thoughts: {shape.text('thought')!r}")
    require(not shape.text("text"), f"text that nobody wrote: {shape.text('text')!r}")
    return "2 thoughts, 2 calls"


@each_api(
    "order.text",
    "R2",
    title="text between thoughts and calls stays where it was",
    why="Words such as 'now the tests' stand before the call they announce, or make no sense.",
)
async def text_between(stage: Stage, api: str) -> str:
    return same(await play(api, stage, MIXED), MIXED)


@each_api(
    "white-space",
    {"messages": "CC-9", "responses": "R8", "chat": "R8"},
    title="white space that only separates parts is no text",
    why="Claude Code sends a turn with an empty text block back in another order, and the cached "
    "prefix is lost.",
)
async def framing(stage: Stage, api: str) -> str:
    shape = await play(api, stage, FRAMED)
    blank = [part.text for part in shape.of("text") if not part.text.strip()]
    require(not blank, f"text of white space alone: {blank}")
    require_same(shape.of("call"), [part for part in FRAMED.parts if part.kind == "call"])
    return "no blank text"


@each_api(
    "orphan-closer",
    "R3",
    title="a thought closed twice leaves no marker in the text",
    why="Users see </think> in the middle of an answer, and agents write it into files.",
)
async def orphan(stage: Stage, api: str) -> str:
    return same(await play(api, stage, ORPHAN), ORPHAN)


@each_api(
    "malformed-call",
    "R7",
    title="what opens like a call and is none stays text",
    why="Words that vanish, or a request that fails, leave the agent with nothing to go on with.",
)
async def malformed(stage: Stage, api: str) -> str:
    shape = await play(api, stage, MALFORMED)
    text = shape.text("text")
    require(MALFORMED.parts[1].text in text, f"the words are not in the text: {text!r}")
    require(not shape.of("call"), "a call was made of words")
    return "the words are there"


@each_api(
    "letters",
    "R11",
    title="characters that are split over tokens come whole",
    why="A name with an accent, or an emoji in a file, is damaged for good.",
)
async def letters(stage: Stage, api: str) -> str:
    return same(await play(api, stage, LETTERS), LETTERS)


@each_api(
    "dispatch",
    "AG-12",
    title="tool_call_dispatch comes before what the model says after the call",
    why="The side channel exists so that a tool can start at once; at the end it is worth nothing.",
)
async def dispatch(stage: Stage, api: str) -> str:
    body = question(api, stage, words(INTERLEAVED, stage.unique()), stream=True)
    exchange = (await ask(api, stage, body, x_dovetail_dispatch="tools, reasoning")).ok()
    told = [(at, frame) for at, frame in enumerate(exchange.frames) if frame.event == DISPATCH]
    if not told:
        raise NotApplicable("dispatch events are not offered, or not switched on")
    calls = [part for part in INTERLEAVED.parts if part.kind == "call"]
    names = [frame.json["tool_call"]["function"]["name"] for _, frame in told]
    require(names == [call.name for call in calls], f"dispatched: {names}")
    before = read(api, replace(exchange, frames=exchange.frames[: told[0][0]]))
    later = INTERLEAVED.parts[2].text[:4]
    require(later not in before.text("thought"), "the first call was dispatched too late")
    return f"{len(told)} calls dispatched"


def same(shape: Shape, scene: Scene) -> str:
    """Fails unless a client was shown the parts of a scene in their order, and nothing else.

    Text of white space alone has a check of its own.
    """
    require(not shape.faults, "; ".join(dict.fromkeys(shape.faults)))
    shown = [part for part in shape.parts if part.kind != "text" or part.text.strip()]
    require_same(shown, scene.parts)
    return ", ".join(part.kind for part in shown)


def require_same(shown: Sequence[Shown], parts: Sequence[Part]) -> None:
    """Thoughts and text may have white space around them: templates put it there."""
    came = [_named(one.kind, one.name, one.text) for one in shown]
    kinds = [(one.kind, one.name) for one in shown]
    require(kinds == [(part.kind, part.name) for part in parts], f"shown: {'; '.join(came)}")
    for one, part in zip(shown, parts, strict=True):
        if part.kind == "call":
            require(one.input == part.arguments, f"the input of a call is {one.text[:300]}")
        else:
            require(one.text.strip() == part.text, f"a {part.kind} is {one.text[:300]!r}")


def _named(kind: str, name: str, text: str) -> str:
    return f"{kind} {name}" if name else f"{kind} {text[:40]!r}"


CHECKS: tuple[Check, ...] = (
    *order_streamed,
    *order_whole,
    *order_fields,
    *text_between,
    *framing,
    *orphan,
    *malformed,
    *letters,
    *dispatch,
)
