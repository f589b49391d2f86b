"""The server as users run it, over TLS, with the WebSockets of the official client.

The clients are asynchronous: over TLS, the synchronous one of `websockets` reads and writes one
connection in two threads, and about one of a thousand requests is never sent.
"""

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncIterable
from pathlib import Path

import pytest
from certificates import Authority
from openai import AsyncOpenAI
from openai.types.responses.responses_server_event import ResponsesServerEvent
from server_process import NAME, TIMEOUT_SECONDS, Running, qwen_folder, served
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

TURNS = [{"text": "Grüße, one.", "stop": "<|im_end|>"}, {"text": "Two.", "stop": "<|im_end|>"}]


def test_official_client_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server")
    script = tmp_path / "script.yaml"
    script.write_text(json.dumps({"turns": TURNS}))
    with served(
        qwen_folder(tmp_path / "model"),
        *("--engine", "scripted", "--script", str(script), "--served-model-name", NAME),
        *("--tls-cert-path", issued.cert, "--tls-key-path", issued.key),
        environment={"DOVETAIL_API_KEY": "secret"},
    ) as server:
        asyncio.run(_respond_twice(server.url, authority.trust()))
        closed = asyncio.run(_stop_server(server, authority.trust()))
        assert closed.rcvd is not None
        assert closed.rcvd.code == 1012
        assert server.process.wait(TIMEOUT_SECONDS) in (0, -signal.SIGTERM)
        log = server.log.read_text()
    assert log.count("transport=websocket") == 4  # two sockets, two responses
    assert "Grüße" not in log


async def _respond_twice(url: str, trust: ssl.SSLContext) -> None:
    options = {"ssl": trust, "open_timeout": TIMEOUT_SECONDS}
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0) as client,
        client.responses.connect(websocket_connection_options=options) as connection,  # type: ignore[arg-type]
    ):
        await connection.response.create(model=NAME, input="Hi", store=False)
        first = await _end(connection)
        assert first.type == "response.completed"
        assert first.response.output_text == "Grüße, one."
        await connection.response.create(
            model=NAME, input="Go on", store=False, previous_response_id=first.response.id
        )
        second = await _end(connection)
        assert second.type == "response.completed"
        assert second.response.output_text == "Two."


async def _stop_server(server: Running, trust: ssl.SSLContext) -> ConnectionClosed:
    """Stop the server while a socket is open. Return how the socket was closed."""
    async with connect(
        server.url.replace("https", "wss") + "/v1/responses",
        ssl=trust,
        additional_headers={"authorization": "Bearer secret"},
        proxy=None,
        open_timeout=TIMEOUT_SECONDS,
    ) as socket:
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), TIMEOUT_SECONDS)
    return closed.value


async def _end(connection: AsyncIterable[ResponsesServerEvent]) -> ResponsesServerEvent:
    async for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event
    raise AssertionError("the connection ended before the response")
