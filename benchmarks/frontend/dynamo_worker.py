"""A worker for Dynamo's frontend that outputs scripted token ids at the script's pace.

It runs in the interpreter that has Dynamo, where Dovetail is not installed. The tokens are counted
in a file that the benchmark also maps.
"""

import asyncio
import json
import mmap
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tools.dynamo_registration import arguments, serve

BURST = 16  # tokens that are sent before other tasks run, as in the scripted engine


@dataclass(frozen=True)
class Part:
    """The output for a prompt that contains `marker`. A rate of 0 is as fast as possible."""

    marker: str
    ids: list[int]
    rate: float
    in_step: bool


class Player:
    """Outputs parts and counts the tokens that were sent."""

    def __init__(self, script: Path, counter: Path) -> None:
        entries = json.loads(script.read_bytes())
        self._parts = [Part(_spelled(one.pop("marker")), **one) for one in entries]
        with counter.open("r+b") as file:
            self._counted = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
        """Yield each token separately."""
        part = self._part(request["token_ids"])
        max_tokens = (request.get("stop_conditions") or {}).get("max_tokens") or len(part.ids)
        ids, last = part.ids[:max_tokens], min(max_tokens, len(part.ids)) - 1
        clock = asyncio.get_running_loop().time
        begun = clock()
        if part.in_step:
            begun = ceil(begun * part.rate) / part.rate
        for at, id in enumerate(ids):
            await _pace(at, part.rate, begun - clock())
            self._counted[0] += 1
            if at == last:
                yield _end(id, len(request["token_ids"]), len(ids))
            else:
                yield {"index": 0, "token_ids": [id]}

    def _part(self, prompt: list[int]) -> Part:
        spelled = _spelled(prompt)
        return next((part for part in self._parts if part.marker in spelled), self._parts[0])


async def _pace(at: int, rate: float, early: float) -> None:
    """Wait until a token is due."""
    wait = at / rate + early if rate else 0.0
    if wait > 0:
        await asyncio.sleep(wait)
    elif not rate and at % BURST == 0:
        await asyncio.sleep(0)


def _spelled(ids: list[int]) -> str:
    return f",{','.join(map(str, ids))},"


def _end(id: int, prompt: int, completion: int) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return {"index": 0, "token_ids": [id], "finish_reason": "stop", "completion_usage": usage}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--script", type=Path, required=True, help="JSON: marker, ids, rate of each"
    )
    parser.add_argument("--counter", type=Path, required=True, help="a file of 8 bytes")
    given = parser.parse_args()
    uvloop.run(serve(given, Player(given.script, given.counter).generate))


if __name__ == "__main__":
    main()
