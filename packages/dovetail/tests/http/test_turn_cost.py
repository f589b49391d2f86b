"""A short turn has a small fixed cost: calls per request are counted, never timed.

The limits are a little above what was counted when they were written. `python -m benchmarks.counts`
shows where the calls go.
"""

from typing import Any

import pytest
from http_fixture import NAME, run, serving
from token_fixture import REQUEST_BODIES, counting

#: Calls of functions of our code and of the HTTP server.
PYTHON_CALLS = {
    "/v1/chat/completions": 1_200,
    "/v1/messages": 1_165,
    "/v1/responses": 1_280,
}
TURNS = 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", REQUEST_BODIES)
def test_a_short_turn_costs_few_calls(path: str, stream: bool) -> None:
    body: dict[str, Any] = {**REQUEST_BODIES[path], "model": NAME, "stream": stream}
    body |= {"max_tokens": 100} if path == "/v1/messages" else {}
    body |= {"store": False} if path == "/v1/responses" else {}

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("It is a fine day.", step=40)
            for _ in range(3):
                await stage.request("POST", path, body)
            with counting() as seen:
                for _ in range(TURNS):
                    await stage.request("POST", path, body)
            python = {name: n for name, n in seen.items() if not name.startswith(" ")}
            listed = "\n".join(f"{count / TURNS:5.1f} {name}" for name, count in python.items())
            total = sum(python.values()) / TURNS
            assert total <= PYTHON_CALLS[path], listed

    run(scene)
