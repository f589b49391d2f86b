"""Malformed messages over a WebSocket: each gets a response, and none causes a server error."""

import asyncio
import json
import random
from typing import Any

import pytest
from abuse_requests import ODD, RAW, corpus, mutate
from http_fixture import NAME, run, serving
from websocket_fixture import Event, read_response, request_response, socket_to, text_of
from websockets.exceptions import ConnectionClosed

from dovetail.http.options import HttpOptions

OPTIONS = HttpOptions(max_body_bytes=1 << 18)


def test_mutated_messages_get_a_response_and_leave_the_connection_usable() -> None:
    seed = random.randrange(10**6)

    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            faults: list[Event] = []
            statuses: set[int] = set()
            for number in range(300):
                dice = random.Random(f"{seed}-{number}")
                message = _message(dice)
                async with socket_to(stage) as socket:
                    await socket.send(message)
                    last = (await read_response(socket))[-1]
                    if last["type"] == "error":
                        statuses.add(last["status"])
                        faults += [last] if last["status"] >= 500 else []
                    assert text_of(await request_response(socket)) == "Hello."
            assert faults == [], f"seed {seed}"
            assert 400 in statuses

    run(scene)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "bytes"])
def test_invalid_messages_are_rejected(binary: bool) -> None:
    """With an error, or by closing the connection with a code that states the reason."""

    async def scene() -> None:
        async with serving(OPTIONS) as stage:
            for raw in RAW:
                text = raw.decode("utf-8", "replace")
                async with socket_to(stage) as socket:
                    await socket.send(text.encode() if binary else text)
                    try:
                        async with asyncio.timeout(20):
                            last = (await read_response(socket))[-1]
                        assert (last["type"], last["status"] // 100) == ("error", 4), raw[:80]
                    except ConnectionClosed:
                        assert socket.close_code in (1003, 1007, 1008, 1009), raw[:80]
            async with socket_to(stage) as socket:
                assert text_of(await request_response(socket)) == "Hello."

    run(scene)


def _message(dice: random.Random) -> str:
    body: Any = mutate(dice, {**dice.choice(corpus("responses")), "model": NAME})
    if dice.random() < 0.1:
        return json.dumps(dice.choice(ODD))
    kind = dice.choice(["response.create"] * 8 + ["response.cancel", "", None, 5])
    return json.dumps({**(body if isinstance(body, dict) else {}), "type": kind})
