"""What a scripted model says to the black-box checks: what each of them hopes for.

Without these rules a scripted server answers them all with the same words, and most checks of
calls would not apply. The last part of a prompt decides, for it is what was asked last.
Every answer begins with a thought: some templates open one, and without its end all is thought.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from dovetail_verify.black_box.samples import MULTIBYTE_TEXT
from dovetail_verify.dialects import TOOL_NAME

_NUMBER_WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
_TAIL_CHARS = 400  # characters: what was asked last, and what the template puts behind it
P = TypeVar("P")
P_in = TypeVar("P_in", contravariant=True)
ScriptEntry = dict[str, Any]


class PartWriter(Protocol[P_in]):
    """Writes parts of an answer as a family of models does."""

    def write(self, parts: Sequence[P_in]) -> str: ...


def black_box_rules(
    writer: PartWriter[P],
    say: Callable[[str], P],
    think: Callable[[str], P],
    call: Callable[..., P],
) -> list[ScriptEntry]:
    """The rules, in the order in which they are tried."""

    def entry(text: str, *parts: P, **more: Any) -> ScriptEntry:
        return {"when": {"text": text, "tail": _TAIL_CHARS}, "text": writer.write(parts), **more}

    weather = think("The tool knows."), call(TOOL_NAME, city="Paris")
    inside = think("The tool knows."), call(f"weather__{TOOL_NAME}", city="Paris")
    patch = think("A patch."), call("apply_patch", input="*** Begin Patch\n")
    far = {"when": {"text": f"weather__{TOOL_NAME}"}, "text": writer.write(inside)}
    return [
        far,
        entry("with the key title", think("Short."), say('{"title": "The weather"}')),
        entry("Use the tool.", *weather),
        entry("apply_patch", *patch),
        entry("Repeat exactly:", think("As it is."), say(MULTIBYTE_TEXT), chunks=1),
        entry(
            "one to one thousand", think("Many."), say(_NUMBER_WORDS * 20), delay={"between": 0.05}
        ),
        entry("one to one hundred", think("Many."), say(_NUMBER_WORDS * 8)),
        entry("Name three colours", think("Warm ones."), say("Red\nOrange\nYellow")),
    ]
