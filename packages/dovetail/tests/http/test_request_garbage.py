"""A request leaves nothing to the garbage collector: its objects are freed when it ends.

A cycle between the objects of a request keeps all of them until the next collection, which then
takes several milliseconds in the middle of other streams.
"""

import gc
from collections import Counter
from typing import Any

import pytest
from http_fixture import NAME, run, serving
from token_fixture import REQUEST_BODIES

REQUESTS = 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", REQUEST_BODIES)
def test_no_object_of_a_request_is_in_a_cycle(path: str, stream: bool) -> None:
    body: dict[str, Any] = {**REQUEST_BODIES[path], "model": NAME, "stream": stream}
    body |= {"max_tokens": 100} if path == "/v1/messages" else {}

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("It is a fine day.", step=4)
            await stage.request("POST", path, body)
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for _ in range(REQUESTS):
                    await stage.request("POST", path, body)
                gc.collect()
                kinds = Counter(type(one).__qualname__ for one in gc.garbage)
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert kinds.total() < REQUESTS, kinds

    run(scene)
