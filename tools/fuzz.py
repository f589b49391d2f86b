"""Fuzz every family with mutated model output: nothing may raise, lose text or depend on chunks.

Each stream is a mutated sample of the family, or its markers in random order; it is parsed at once
and in random chunks. Seeds are printed, and a failure prints how to reproduce it.
"""

import argparse
import json
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

from dovetail_model import Event, Message, fold
from dovetail_parsers import Parser, families
from dovetail_parsers.family import Family
from dovetail_parsers.registry import load_grammar

CASES = Path(__file__).parents[1] / "packages" / "parsers" / "tests" / "cases"
TOOLS = yaml.safe_load((CASES / "tools.yaml").read_text())
PIECES = (
    "get_time", "configure", "nobody", "functions.get_time:0", "call:configure{count:1}",
    '{"name": "get_time", "arguments": {}}', '{"name": "configure", "arguments": {"text": "a',
    '{"count": 1}', '{"input": "x"}', '"arguments": {', "get_time()", "configure(count=1,",
    "analysis", "to=functions.get_time", "to=self", "text", "count", "12", "-1.5e3", "null", "True",
    " ", "\n", "\t", "\r", "{", "}", "[", "]", "(", ")", "=", '"', "'", "\\", "\\u00e9", "\\x",
    ",", ";", ":", "<", ">", "</", "|", "``", "```", "word", "é", "🦜", "\ud83e", "\x00", "\u2028",
)  # fmt: skip


def markers_of(family: Family) -> list[str]:
    table = load_grammar(family.tool_parser, family.reasoning_parser)
    return sorted({marker for state in table.states.values() for marker in state.edges})


def corpus_of(family: Family) -> list[str]:
    """Return the family's sample and the texts of its cases."""
    path = CASES / f"{family.name}.yaml"
    cases = yaml.safe_load(path.read_text())["cases"] if path.exists() else []
    return [family.sample, *(case["text"] for case in cases)]


def mutate(dice: random.Random, text: str, parts: list[str]) -> str:
    for _ in range(dice.randint(0, 5)):
        at = dice.randint(0, len(text))
        match dice.randrange(5):
            case 0:
                text = text[:at] + dice.choice(parts) + text[at:]
            case 1:
                text = text[:at] + text[at + dice.randint(1, 9) :]
            case 2:
                text = text[:at]
            case 3:
                end = at + dice.randint(1, 30)
                text = text[:end] + text[at:end] + text[end:]
            case _:
                text = text[at:] + text[:at]
    return text


def stream(family: Family, pieces: list[tuple[str, bool | None]], inside: bool | None) -> Message:
    parser = Parser(family.tool_parser, family.reasoning_parser, tools=TOOLS, in_reasoning=inside)
    events: list[Event] = []
    for piece, special in pieces:
        events += parser.feed(piece, special)
    return fold(events + parser.finish())


def split_randomly(dice: random.Random, text: str) -> list[tuple[str, bool | None]]:
    pieces: list[tuple[str, bool | None]] = []
    at = 0
    while at < len(text):
        size = dice.choice((1, 1, 2, 3, 4, 7, 30))
        pieces.append((text[at : at + size], None))
        at += size
    return pieces


def check(family: Family, text: str, dice: random.Random) -> None:
    inside = dice.choice((None, True, False))
    whole = stream(family, [(text, None)], inside)
    assert whole.raw == text, "raw text was lost"
    pieces = split_randomly(dice, text)
    assert stream(family, pieces, inside).blocks == whole.blocks, "the result depends on chunks"
    for block in whole.blocks:
        if block.type != "tool_call":
            assert block.text.strip(), "a block of white space"
        elif block.complete and not block.custom:
            assert isinstance(json.loads(block.arguments), dict), "a closed call without an object"
    flags = [(piece, dice.choice((None, True, False))) for piece, _ in pieces]
    assert stream(family, flags, inside).raw == text, "raw text was lost among special tokens"


def run(seed: int, count: int) -> int:
    dice = random.Random(seed)
    all_families = families()
    parts = {family.name: [*PIECES, *(markers_of(family) * 2)] for family in all_families}
    corpus = {family.name: corpus_of(family) for family in all_families}
    for number in range(count):
        family = all_families[number % len(all_families)]
        mine = parts[family.name]
        if dice.random() < 0.4:
            text = "".join(dice.choices(mine, k=dice.randint(1, 25)))
        else:
            text = mutate(dice, dice.choice(corpus[family.name]), mine)
        try:
            check(family, text, dice)
        except Exception as error:
            raise RuntimeError(f"{family.name}: {error!r} (seed {seed}) on {text!r}") from error
    return count


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--streams", type=int, default=200_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    chosen = options.parse_args()
    print(f"fuzzing {chosen.streams} streams over {len(families())} families, seed {chosen.seed}")
    parts = max(chosen.processes, chosen.streams // 5_000)
    share = -(-chosen.streams // parts)
    done = 0
    with ProcessPoolExecutor(chosen.processes) as pool:
        seeds = range(chosen.seed, chosen.seed + parts)
        for count in pool.map(run, seeds, [share] * parts):
            done += count
            print(f"\r{done} streams", end="", flush=True, file=sys.stderr)
    print(f"\n{done} streams: no exception, no lost text, results independent of chunks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
