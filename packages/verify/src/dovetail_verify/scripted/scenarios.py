"""What the model says in scripted mode: one scene for each thing that servers get wrong.

A scene is taken by a word in the user's message. Its parts are what a client has to be shown, in
this order; how they are written is the family's matter.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.prompt.messages import ToolNames
from dovetail.prompt.turn_writer import TurnWriter
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock, ToolCallBlock, Turn

Kind = Literal["thought", "text", "call"]
PAUSE = 1.5  # seconds of silence in the middle of an answer that is paced
LOOK_UP, WRITE = "look_up", "write_file"
NEXT = "verify-next"  # in a tool's result: the turn that follows
NEXT_WORDS = "All of it is done."
PLAIN_WORDS = "Oslo is sunny today."


@dataclass(frozen=True)
class Part:
    """Something that the model says. Of a call, `arguments` are its input."""

    kind: Kind
    text: str = ""
    name: str = ""
    arguments: dict[str, Any] | None = None

    @property
    def block(self) -> OutputBlock:
        if self.kind == "call":
            return ToolCallBlock("", self.name, json.dumps(self.arguments, ensure_ascii=False))
        return ReasoningBlock(self.text) if self.kind == "thought" else TextBlock(self.text)


@dataclass(frozen=True)
class Scene:
    """`entry` makes what the script says of it, beside the condition."""

    name: str
    parts: tuple[Part, ...]
    entry: "Callable[[Notation, Scene], dict[str, Any]]"

    @property
    def word(self) -> str:
        """What a user's message has in it to get this scene."""
        return f"verify-{self.name}"


class Notation:
    """Writes parts as one family of models does."""

    def __init__(self, tool_parser: str, reasoning_parser: str) -> None:
        self._writer = TurnWriter(tool_parser, reasoning_parser)

    def write(self, parts: Sequence[Part]) -> str:
        """The model's own text."""
        said = tuple(part.block for part in parts)
        text = self._writer.write(Turn("assistant", said), ToolNames(()), str, "")
        if text is None:
            raise ValueError("this family cannot write thoughts and calls in turn")
        return text

    @property
    def thought_closing(self) -> str:
        return self._writer.reasoning_end().strip()


def think(text: str) -> Part:
    return Part("thought", text)


def say(text: str) -> Part:
    return Part("text", text)


def call(name: str, **arguments: Any) -> Part:
    return Part("call", name=name, arguments=arguments)


def _whole(notation: Notation, scene: Scene) -> dict[str, Any]:
    return {"text": notation.write(scene.parts)}


def _streamed(notation: Notation, scene: Scene) -> dict[str, Any]:
    """In pieces of some tokens and with time between them, as an engine under load sends them."""
    return {**_whole(notation, scene), "chunks": 8, "delay": {"between": 0.001}}


def _paced(notation: Notation, scene: Scene) -> dict[str, Any]:
    """The first thought and call, a pause, the others."""
    first = notation.write(scene.parts[:2])
    rest = notation.write(scene.parts).removeprefix(first)
    return {"chunks": [first, rest], "delay": {"between": PAUSE}}


def _half_way(notation: Notation, scene: Scene) -> dict[str, Any]:
    """A pause in the middle of an argument."""
    text = notation.write(scene.parts)
    half = text.index(_MIDDLE)
    return {"chunks": [text[:half], text[half:]], "delay": {"between": PAUSE}}


def _framed(notation: Notation, scene: Scene) -> dict[str, Any]:
    """Every part behind white space that only separates it from the last."""
    return {"text": "\n\n".join(notation.write([part]) for part in scene.parts) + "\n"}


def _orphan(notation: Notation, scene: Scene) -> dict[str, Any]:
    """A thought is closed once more, in the middle of the text."""
    text = notation.write(scene.parts)
    return {"text": text.replace(" Bergen", f"{notation.thought_closing} Bergen")}


def _cut(notation: Notation, scene: Scene) -> dict[str, Any]:
    text = notation.write(scene.parts)
    return {"text": text[: text.index(_MIDDLE)], "finish": "length"}


def _malformed(notation: Notation, scene: Scene) -> dict[str, Any]:
    """What opens a call, and then no call."""
    opened = notation.write([call(LOOK_UP, city="Oslo")]).partition("look_up")[0]
    opener = opened.split("{")[0].split("<function")[0].strip() or opened
    return {"text": notation.write(scene.parts[:1]) + f"{opener} no call at all, only words."}


def _single(notation: Notation, scene: Scene) -> dict[str, Any]:
    return {**_whole(notation, scene), "chunks": 1}


def _failing(notation: Notation, scene: Scene) -> dict[str, Any]:
    fault = {"after": 12, "kind": "engine", "message": "the engine failed on purpose"}
    return {"text": notation.write(scene.parts), "fail": fault}


_LINES = [f"line {n:04}: {n * 37} and {n * 91}" for n in range(300)]
_MIDDLE, LAST_LINE = _LINES[150], _LINES[-1]
_LONG = "\n".join(_LINES)
_DATA = "if x: # </think> <think> and <tool_call> in a string\n    pass"
_LETTERS = "naïve 🦜👩‍🚀 漢字 한국어"

INTERLEAVED = Scene(
    "interleaved",
    (
        think("First the north of it."),
        call(LOOK_UP, city="Oslo", days=2),
        think("Then the south of it."),
        call(LOOK_UP, city="Rome", days=3),
    ),
    _whole,
)
MIXED = Scene(
    "mixed",
    (
        think("Two cities to ask for."),
        say("I begin with Oslo."),
        call(LOOK_UP, city="Oslo", days=1),
        think("That was one of two."),
        say("Now for Rome."),
        call(LOOK_UP, city="Rome", days=1),
    ),
    _whole,
)
LONG = Scene("long", (think("A long file."), call(WRITE, path="a.txt", content=_LONG)), _streamed)
PACED = Scene("paced", INTERLEAVED.parts, _paced)
HALF_WAY = Scene("half-way", LONG.parts, _half_way)
FRAMED = Scene("framed", INTERLEAVED.parts, _framed)
ORPHAN = Scene("orphan", (think("North."), say("Oslo is sunny, and Bergen is not.")), _orphan)
MARKERS = Scene("markers", (think("Code."), call(WRITE, path="b.py", content=_DATA)), _whole)
CUT = Scene("cut", LONG.parts, _cut)
MALFORMED = Scene("malformed", (think("Hm."), say("no call at all, only words.")), _malformed)
LETTERS = Scene(
    "letters", (think(_LETTERS), say(_LETTERS), call(WRITE, path="c", content=_LETTERS)), _single
)
PLAIN = Scene("plain", (say(PLAIN_WORDS),), _whole)
FAILING = Scene("failing", (think("A long thought. " * 20), say("Words. " * 20)), _failing)

SCENES = (
    INTERLEAVED,
    MIXED,
    LONG,
    PACED,
    HALF_WAY,
    FRAMED,
    ORPHAN,
    MARKERS,
    CUT,
    MALFORMED,
    LETTERS,
    PLAIN,
    FAILING,
)
