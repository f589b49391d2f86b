"""The harness of a request, from the headers of each client."""

import pytest

from dovetail_protocols import read_harness


@pytest.mark.parametrize(
    ("headers", "harness"),
    [
        ({}, "other"),
        ({"user-agent": "curl/8.5.0"}, "other"),
        ({"user-agent": "claude-cli/2.1.37 (external, cli)"}, "claude"),
        ({"user-agent": "codex_cli_rs/0.50.0 (Debian 12; x86_64)"}, "codex"),
        ({"user-agent": "codex_exec/0.50.0"}, "codex"),
        ({"user-agent": "opencode/1.0 ai-sdk/provider-utils/3.0"}, "opencode"),
        ({"user-agent": "pi-coding-agent"}, "pi"),
        ({"user-agent": "Anthropic/Python 0.71.0"}, "anthropic-sdk"),
        ({"user-agent": "AsyncOpenAI/Python 2.8.0"}, "openai-sdk"),
        ({"user-agent": "OpenAI/JS 6.1.0"}, "openai-sdk"),
        ({"user-agent": "proxy/1", "x-claude-code-session-id": "s"}, "claude"),
        ({"user-agent": "x" * 100_000}, "other"),
    ],
)
def test_harness_of_a_client(headers: dict[str, str], harness: str) -> None:
    assert read_harness(headers) == harness
