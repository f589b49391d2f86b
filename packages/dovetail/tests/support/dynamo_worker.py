"""A worker for Dynamo's frontend that outputs given ids and records what it receives.

It runs in the interpreter that has Dynamo, where Dovetail is not installed.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from tools.dynamo_registration import arguments, serve

CACHED_TOKENS = 16
LOGPROB = -0.5


class ScriptedWorker:
    def __init__(self, output: list[int], requests: Path) -> None:
        self._output = output
        self._requests = requests

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
        """Yield each token separately. The last one ends the turn."""
        with self._requests.open("a") as file:
            file.write(json.dumps(request) + "\n")
        limit = request["stop_conditions"].get("max_tokens") or len(self._output)
        ids = self._output[:limit]
        for id in ids[:-1]:
            yield {"index": 0, **_token(id)}
            await asyncio.sleep(0)
        yield {"index": 0, **_token(ids[-1]), **_end(len(request["token_ids"]), ids, self._output)}


def _token(id: int) -> dict[str, Any]:
    top = {"rank": 1, "token_id": id, "token": None, "logprob": LOGPROB}
    return {"token_ids": [id], "log_probs": [LOGPROB], "top_logprobs": [[top]]}


def _end(prompt: int, ids: list[int], output: list[int]) -> dict[str, Any]:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": len(ids),
        "total_tokens": prompt + len(ids),
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }
    if len(ids) < len(output):
        return {"finish_reason": "length", "completion_usage": usage}
    return {"finish_reason": "stop", "stop_reason": ids[-1], "completion_usage": usage}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--output", required=True, help="ids, separated by commas")
    parser.add_argument("--requests", type=Path, required=True, help="file to append to")
    given = parser.parse_args()
    output = [int(id) for id in given.output.split(",")]
    uvloop.run(serve(given, ScriptedWorker(output, given.requests).generate))


if __name__ == "__main__":
    main()
