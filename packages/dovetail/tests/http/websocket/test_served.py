"""The server as users run it, over TLS, with the WebSockets of the official client."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from certificates import Authority
from openai import OpenAI
from openai.types.responses.responses_server_event import ResponsesServerEvent
from server_process import NAME, TIMEOUT_SECONDS, qwen_folder, served
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

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
        client = OpenAI(base_url=f"{server.url}/v1", api_key="secret", max_retries=0)
        options = {"ssl": authority.trust(), "open_timeout": TIMEOUT_SECONDS}
        with client.responses.connect(websocket_connection_options=options) as connection:  # type: ignore[arg-type]
            connection.response.create(model=NAME, input="Hi", store=False)
            first = _end(connection)
            assert first.type == "response.completed"
            assert first.response.output_text == "Grüße, one."
            connection.response.create(
                model=NAME, input="Go on", store=False, previous_response_id=first.response.id
            )
            second = _end(connection)
            assert second.type == "response.completed"
            assert second.response.output_text == "Two."
        client.close()
        url = server.url.replace("https", "wss") + "/v1/responses"
        keyed = {"authorization": "Bearer secret"}
        with connect(
            url,
            ssl=authority.trust(),
            additional_headers=keyed,
            proxy=None,
            open_timeout=TIMEOUT_SECONDS,
        ) as socket:
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(TIMEOUT_SECONDS)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
        assert server.process.wait(TIMEOUT_SECONDS) in (0, -signal.SIGTERM)
        log = server.log.read_text()
    assert log.count("transport=websocket") == 4  # two sockets, two responses
    assert "Grüße" not in log


def _end(connection: Iterable[ResponsesServerEvent]) -> ResponsesServerEvent:
    for event in connection:
        if event.type in ("response.completed", "response.failed", "error"):
            return event
    raise AssertionError("the connection ended before the response")
