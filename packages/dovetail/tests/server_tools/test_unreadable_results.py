"""Sealed results in a history that another server sealed."""

import json
from typing import Any

from http_fixture import NAME, Stage, run, serving
from server_tools_fixture import SEARCH, SEARCH_TOOL, create_tools, extract_pdf, prompt_text

from dovetail.ledger.keyring import Keyring
from dovetail.ledger.sealed_text import TextSealer
from dovetail.server_tools.replay import UNREADABLE_TEXT
from dovetail.server_tools.runner import ServerTools

OTHER_KEY = ServerTools(
    TextSealer(Keyring([bytes([1] * 32)])), create_tools().search, None, extract_pdf
)
NOTE = "server_results_unreadable"


async def post(stage: Stage, path: str, body: dict[str, Any]) -> Any:
    reply = await stage.request("POST", path, {"model": NAME, **body})
    assert reply.status == 200, reply.json
    return reply


def run_moved(path: str, body: dict[str, Any], extend: Any, expected: str) -> None:
    """Continue a conversation on a server with another key."""

    async def main() -> None:
        async with serving(server_tools=create_tools()) as stage:
            stage.engine.plan = stage.engine.script(SEARCH, "Rain [1].")
            reply = await post(stage, path, body)
            assert NOTE not in reply.headers.get("x-dovetail-diagnostics", "")
        extend(body, reply.json)
        async with serving(server_tools=OTHER_KEY) as stage:
            reply = await post(stage, path, body)
            assert NOTE in reply.headers["x-dovetail-diagnostics"]
            assert expected in prompt_text(stage)
            assert "Rain, 7 degrees." not in prompt_text(stage)
        async with serving(server_tools=create_tools()) as stage:
            reply = await post(stage, path, body)
            assert NOTE not in reply.headers.get("x-dovetail-diagnostics", "")
            assert "Rain, 7 degrees." in prompt_text(stage)

    run(main)


def test_messages_result_is_reported_and_keeps_what_is_visible() -> None:
    def extend(body: dict[str, Any], reply: dict[str, Any]) -> None:
        body["messages"] += [
            {"role": "assistant", "content": reply["content"]},
            {"role": "user", "content": "Thanks."},
        ]

    body: dict[str, Any] = {
        "max_tokens": 1024,
        "messages": [{"role": "user", "content": "Weather?"}],
        "tools": [SEARCH_TOOL],
    }
    run_moved("/v1/messages", body, extend, "https://example.com/oslo")


def test_responses_result_is_reported_and_not_empty() -> None:
    def extend(body: dict[str, Any], reply: dict[str, Any]) -> None:
        body["input"] += [*reply["output"], {"role": "user", "content": "Thanks."}]
        assert "encrypted_content" in json.dumps(body)

    body: dict[str, Any] = {
        "input": [{"role": "user", "content": "Weather?"}],
        "tools": [{"type": "web_search"}],
        "store": False,
    }
    run_moved("/v1/responses", body, extend, UNREADABLE_TEXT)
