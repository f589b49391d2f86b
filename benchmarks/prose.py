"""What does a chunk of plain text cost, and a chunk of reasoning?"""

from benchmarks import texts
from benchmarks.arguments import SIZES, Sized, costs, measure_stable, not_flat, reading, stream
from benchmarks.report import Result, table
from dovetail_model import OutputBlock, ReasoningBlock, TextBlock
from dovetail_parsers import families
from dovetail_parsers.family import Family

INTRO = """\
A response of the given number of characters without a call, and reasoning of that length; `-` if a
family has no reasoning format.
"""
ENDS = (min(SIZES), max(SIZES))


def run() -> Result:
    text: dict[str, Sized] = {}
    reasoning: dict[str, Sized] = {}
    for family in families():
        text[family.name] = _measured(TextBlock, family)
        if family.reasoning_parser is not None:
            reasoning[family.name] = _measured(ReasoningBlock, family)
        print(
            f"  {family.name:<18}", *(f"{cell:>6}" for cell in _row(family.name, text, reasoning))
        )
    summary = f"Text: {reading(text)}\nReasoning: {reading(reasoning)}"
    failures = [*not_flat(text, "text"), *not_flat(reasoning, "reasoning")]
    return Result("prose", "Text and reasoning", _numbers(text, reasoning), summary, failures)


def _measured(kind: type[TextBlock | ReasoningBlock], family: Family) -> Sized:
    def block(size: int) -> OutputBlock:
        return kind(texts.prose(size))

    streams = {size: stream(block(size), family) for size in ENDS}
    measure_stable(streams)
    return streams


def _row(name: str, *kinds: dict[str, Sized]) -> list[str]:
    cells: list[str] = []
    for measured in kinds:
        cells += costs(measured[name]) if name in measured else ["-"] * 3
    return cells


def _numbers(text: dict[str, Sized], reasoning: dict[str, Sized]) -> str:
    head = ("family", "text 2k", "200k", "200k / 2k", "reasoning 2k", "200k", "200k / 2k")
    return f"{INTRO}\n{table(head, ((name, *_row(name, text, reasoning)) for name in text))}"
