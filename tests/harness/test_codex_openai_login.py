"""The real Codex as it connects to OpenAI: a login, compressed requests, a WebSocket first.

Servers that replace OpenAI behind a ChatGPT login see these requests. The login here is made up,
and only this machine can be reached.
"""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from client_sandbox import Sandbox
from codex_runs import codex
from prefix_exactness import ReportRun, assert_exact
from recording_frontend import RecordedRequest, front_of
from server_setup import QWEN3_CODER, call, server_setup, text, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

WINDOW = 19_000
STEPS = 4
TRIGGER = "The conversation is about to be cut"
SUMMARY = "Three steps are taken, für alle. One is missing."
DONE = "All steps are taken ✅."


def test_codex_sends_compressed_requests_and_compacts_remotely(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER, window=WINDOW)
    _log_in(sandbox)
    off = "--no-enable-responses-websocket"  # the recording proxy only supports HTTP
    with setup.server(_script(), off) as server, front_of(server.url) as front:
        run = codex(sandbox, front.url, "Take all steps.", *_as_openai(front.url))
    assert run.result == DONE
    assert (sandbox.work / "steps.txt").read_text() == "".join(f"{at}\n" for at in range(STEPS))
    requests = [one for one in front.requests if one.path.startswith("/v1/responses")]
    # The WebSocket is rejected such that Codex does not retry it.
    assert [(one.method, one.status) for one in requests] == [("GET", 426), *[("POST", 200)] * 6]
    assert requests[0].sent["upgrade"] == "websocket"
    assert {one.sent.get("content-encoding") for one in requests[1:]} == {"zstd"}
    assert all(
        one.raw.startswith(b"\x28\xb5\x2f\xfd") for one in requests[1:]
    )  # magic number of zstd
    assert [_kind(one) for one in requests[1:]] == ["turn"] * 3 + ["compaction"] + ["turn"] * 2
    generations = setup.generations
    assert TRIGGER in generations[3].text
    assert SUMMARY in generations[4].text
    # This kind of compaction keeps the tools, so it continues exactly. New prompts are the task
    # and the history that Codex builds from the summary.
    report_run(assert_exact(generations, new=2))


@pytest.mark.parametrize("name", ["dovetail", "OpenAI"])
def test_codex_with_a_key_does_not_compress_requests(
    name: str, sandbox: Sandbox, tmp_path: Path
) -> None:
    """Its feature is on by default, but applies to a login only. A change would be welcome."""
    setup = server_setup(tmp_path / "server", QWEN3_CODER)
    script = {"turns": turns(QWEN3_CODER, [text(DONE)]), "end": "fail"}
    off = "--no-enable-responses-websocket"
    with setup.server(script, off) as server, front_of(server.url) as front:
        settings = ["--enable", "enable_request_compression"]
        if name == "OpenAI":
            provider = f'name="OpenAI", base_url="{front.url}/v1", wire_api="responses"'
            settings += ["-c", 'model_provider="theirs"', "-c"]
            settings += [f'model_providers.theirs={{{provider}, env_key="OPENAI_API_KEY"}}']
        run = codex(sandbox, front.url, "Hello.", *settings, OPENAI_API_KEY="none")
    assert run.result == DONE
    requests = [one for one in front.requests if one.path == "/v1/responses"]
    assert [one.sent.get("content-encoding") for one in requests] == [None]


def test_codex_compacts_remotely_over_a_socket(
    sandbox: Sandbox, tmp_path: Path, report_run: ReportRun
) -> None:
    setup = server_setup(tmp_path / "server", QWEN3_CODER, window=WINDOW)
    _log_in(sandbox)
    script = _script()
    task = {"when": {"text": "Take all steps."}, "turns": script["turns"]}
    script |= {"rules": [*script["rules"], task], "turns": turns(QWEN3_CODER, [])}
    with setup.server(script) as server:
        run = codex(sandbox, server.url, "Take all steps.", *_as_openai(server.url))
        assert "endpoint=responses status=101" in server.log.read_text()
        assert "status=426" not in server.log.read_text()
    assert run.result == DONE
    assert (sandbox.work / "steps.txt").read_text() == "".join(f"{at}\n" for at in range(STEPS))
    generations = [one for one in setup.generations if "Take all steps." in one.text]
    assert len(generations) == 6
    assert TRIGGER in generations[3].text
    assert SUMMARY in generations[4].text
    report_run(assert_exact(generations, new=2))  # as above


def _script() -> dict[str, Any]:
    steps: list[list[OutputBlock]] = [
        [think(f"Step {at}."), call("exec_command", cmd=f"echo {at} >> steps.txt; seq 1 1000")]
        for at in range(STEPS)
    ]
    main = turns(QWEN3_CODER, *steps, [think("Done."), text(DONE)])
    (summary,) = turns(QWEN3_CODER, [text(SUMMARY)])
    return {"rules": [{"when": {"text": TRIGGER, "tail": 1000}, **summary}], "turns": main}


def _log_in(sandbox: Sandbox) -> None:
    """Write a made-up login: Codex checks only its form and its dates."""
    now = int(time.time())
    account = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "a", "chatgpt_user_id": "u"}
    claims = {"iat": now, "exp": now + 10**7, "https://api.openai.com/auth": account}
    token = ".".join(_packed(part) for part in ({"alg": "none"}, claims, {}))
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "a"}
    today = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    auth = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": today}
    home = sandbox.home / ".codex"
    home.mkdir()
    (home / "auth.json").write_text(json.dumps(auth))


def _packed(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _as_openai(url: str) -> list[str]:
    """Return settings by which Codex takes the server for OpenAI's own."""
    provider = f'name="OpenAI", base_url="{url}/v1", wire_api="responses"'
    more = "requires_openai_auth=true, supports_websockets=true"
    settings = [
        'model_provider="theirs"',
        f"model_providers.theirs={{{provider}, {more}}}",
        f'chatgpt_base_url="{url}/backend-api"',
    ]
    return [part for setting in settings for part in ("-c", setting)]


def _kind(request: RecordedRequest) -> str:
    return str(json.loads(request.sent["x-codex-turn-metadata"])["request_kind"])
