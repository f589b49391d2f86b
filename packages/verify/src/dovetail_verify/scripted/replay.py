"""Checks of the next prompt, on what the engine was given: the turn as the model wrote it."""

from dataclasses import dataclass

from dovetail.engines.scripted.generation_log import RecordedGeneration
from dovetail_verify.check import Check, require
from dovetail_verify.each_api import each_api
from dovetail_verify.exchange import short
from dovetail_verify.scripted.requests import ask, question, replayed, words
from dovetail_verify.scripted.response import Shape, read
from dovetail_verify.scripted.scenarios import INTERLEAVED, MIXED, NEXT_WORDS, Scene
from dovetail_verify.target import Stage

_EXACT = "What differs from the model's own tokens is computed again on every turn, and the model "
_EXACT += "reads a history that it did not write."


@dataclass(frozen=True)
class Turns:
    """Two turns of a conversation: what the client saw of both, what the engine was given."""

    first: Shape
    second: Shape
    before: RecordedGeneration
    after: RecordedGeneration

    @property
    def exact(self) -> int:
        """How many tokens of the first prompt and its answer the next prompt begins with."""
        spoken = (*self.before.prompt, *self.before.output)
        both = list(zip(spoken, self.after.prompt, strict=False))
        return next((at for at, (a, b) in enumerate(both) if a != b), len(both))

    @property
    def spoken(self) -> int:
        """Without the last one: in some families it depends on what follows the turn."""
        return len(self.before.prompt) + len(self.before.output) - 1


async def converse(stage: Stage, api: str, scene: Scene, *, moved: bool = False) -> Turns:
    """A scene, sent back with the results of its calls."""

    async def make(stage: Stage) -> Turns:
        nonce = stage.unique()
        body = question(api, stage, words(scene, nonce), stream=True)
        if api == "messages":
            body["metadata"] = {"user_id": f"meta-{nonce}"}
        if api == "responses":
            body["prompt_cache_key"] = f"meta-{nonce}"
        first = read(api, await ask(api, stage, body))
        require(len(first.of("call")) == 2, f"{len(first.of('call'))} calls came")
        again = replayed(api, body, first, nonce, moved=moved)
        second = read(api, await ask(api, stage, again))
        assert stage.recording is not None
        heard = await stage.recording.heard(nonce, 2)
        return Turns(first, second, heard[0], heard[-1])

    return await stage.once(f"{api} {scene.name} conversation {moved}", make)


@each_api(
    "replay.accepted",
    {"messages": "CC-25", "responses": "CX-23", "chat": "AG-4"},
    title="the turn, sent back with its results, is answered",
    why="A server that refuses its own answer ends the session.",
)
async def accepted(stage: Stage, api: str) -> str:
    turns = await converse(stage, api, INTERLEAVED)
    text = turns.second.text("text")
    require(text.strip() == NEXT_WORDS, f"the next answer is {text!r}")
    return "answered"


@each_api(
    "replay.order",
    {"messages": "CC-27", "responses": "CX-23", "chat": "R2"},
    title="the next prompt has think, call, think, call, result, result in this order",
    why="Grouped thoughts explain nothing: the model reads its second plan before its first call.",
)
async def order(stage: Stage, api: str) -> str:
    return _in_order(await converse(stage, api, INTERLEAVED), INTERLEAVED)


@each_api(
    "replay.moved",
    {"messages": "CC-27"},
    title="a turn whose calls the client moved to the end is put in order again",
    why="Claude Code moves all calls behind the last text; the model never wrote it so.",
)
async def moved(stage: Stage, api: str) -> str:
    return _in_order(await converse(stage, api, MIXED, moved=True), MIXED)


def _in_order(turns: Turns, scene: Scene) -> str:
    """Each part behind the last one, in the prompt's own text."""
    grown = turns.after.text[turns.after.text.index(words(scene, "")[:12]) :]
    said = [(p.kind, p.text or str((p.arguments or {}).get("city"))) for p in scene.parts]
    wanted = [*said, ("result", " 0: sunny"), ("result", " 1: sunny")]
    at = 0
    for kind, text in wanted:
        found = grown.find(text, at)
        missing = "is not in the prompt" if text not in grown else "is not in its place"
        require(found >= 0, f"the {kind} {text!r} {missing}", came=short(grown, 900))
        at = found + len(text)
    return f"{len(wanted)} parts in order"


@each_api(
    "replay.exact",
    "R10",
    title="the next prompt begins with the last prompt and the model's own tokens",
    why=_EXACT,
)
async def exact(stage: Stage, api: str) -> str:
    return _exact(await converse(stage, api, INTERLEAVED))


@each_api(
    "replay.exact-moved",
    {"messages": "R10"},
    title="a turn whose calls the client moved is the model's own tokens again",
    why=_EXACT,
)
async def exact_moved(stage: Stage, api: str) -> str:
    return _exact(await converse(stage, api, MIXED, moved=True))


def _exact(turns: Turns) -> str:
    kept, spoken = turns.exact, turns.spoken
    came = f"the prompt: … {short(turns.after.text[len(turns.before.text) - 60 :], 700)}"
    sent = f"the model wrote: {short(turns.before.said, 500)}"
    require(kept >= spoken, f"{kept} of {spoken} tokens are the same", sent=sent, came=came)
    return f"all {spoken} tokens"


@each_api(
    "replay.cached",
    "TK-5",
    title="the tokens reported as cached are those that the engine found",
    why="Without the figure nobody sees that a session computes everything again, or pays for it.",
)
async def cached(stage: Stage, api: str) -> str:
    turns = await converse(stage, api, INTERLEAVED)
    told, truth = turns.second.cached, turns.after.cached
    require(told == truth, f"the engine found {truth} tokens in its cache, {told} are reported")
    return f"{truth} tokens"


@each_api(
    "replay.ids",
    "TK-7",
    title="no id and no metadata of the client is in the prompt",
    why="Ids differ in every session: one of them in the prompt, and no prefix is ever found.",
)
async def ids(stage: Stage, api: str) -> str:
    turns = await converse(stage, api, INTERLEAVED)
    named = [part.id for part in turns.first.of("call")]
    named += [item["id"] for item in turns.first.items if item.get("id")]
    named += [part.seal for part in turns.first.parts if len(part.seal) > 12]
    found = [id for id in [*named, "meta-"] if id and id in turns.after.text]
    require(not found, f"in the prompt: {short(', '.join(found))}")
    return f"{len(named)} ids looked for"


CHECKS: tuple[Check, ...] = (
    *accepted,
    *order,
    *moved,
    *exact,
    *exact_moved,
    *cached,
    *ids,
)
