"""Deeply nested values in requests are rejected when they are decoded, and cost no log lines."""

import logging
from typing import Any

import pytest
from abuse_failures import deep_bodies, deep_values_are_client_errors
from http_fixture import run, serving

from dovetail.engines.engine import EngineCapabilities
from dovetail_protocols import MAX_JSON_DEPTH


@pytest.mark.parametrize("levels", [MAX_JSON_DEPTH + 3, 500, 700, 950, 5_000])
def test_deep_values_are_rejected(levels: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with serving() as stage:
            await deep_values_are_client_errors(stage, levels)

    run(scene)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("syntax", ["json_schema", "gbnf", "ebnf", "lark", "structural_tag"])
def test_values_within_the_limit_cause_no_server_errors(syntax: str) -> None:
    """Every step after the decoder can process the deepest value that it accepts."""

    async def scene() -> None:
        async with serving() as stage:
            stage.engine.capabilities = EngineCapabilities(constraints=(syntax,))  # type: ignore[arg-type]
            choices: list[dict[str, Any]] = [
                {},
                {"tool_choice": {"type": "any"}},
                {"tool_choice": "required"},
            ]
            for more in choices:
                for field, (path, body) in deep_bodies(MAX_JSON_DEPTH - 3, **more).items():
                    reply = await stage.request("POST", path, body)
                    assert reply.status in (200, 400), (field, reply)
                    assert b"levels deep" not in reply.body

    run(scene)


@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/detokenize", "/v1/chat/completions"])
def test_invalid_utf8_in_a_key_is_a_client_error(path: str) -> None:
    async def scene() -> None:
        async with serving() as stage:
            body = b'{"tokens": [1], "messages": [{"role": "user", "content": "x"}], "\xff": 1}'
            reply = await stage.request("POST", path, body)
            assert reply.status in (200, 400)
            assert path == "/v1/detokenize" or reply.status == 400

    run(scene)
