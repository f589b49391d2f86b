"""The real Codex as it speaks to OpenAI itself: a login, compressed requests, a WebSocket first.

So it comes to servers that stand in OpenAI's place behind a login of ChatGPT's kind. The login here
is made up, and nothing but this machine can be reached.
"""

import base64
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from codex_runs import codex
from exactness import Row, was_exact
from recording_frontend import RecordedRequest, front_of
from sandbox import Sandbox
from stage import QWEN3_CODER, call, say, stage, think, turns

from dovetail_model import OutputBlock

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]

WINDOW = 19_000
STEPS = 4
TRIGGER = "The conversation is about to be cut"
SUMMARY = "Three steps are taken, für alle. One is missing."
DONE = "All steps are taken ✅."


def test_codex_sends_compressed_requests_and_compacts_remotely(
    place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER, window=WINDOW)
    _log_in(place)
    off = "--no-enable-responses-websocket"  # the front between them knows HTTP only
    with scene.server(_script(), off) as server, front_of(server.url) as front:
        told = codex(place, front.url, "Take all steps.", *_as_openai(front.url))
    assert told.result == DONE
    assert (place.work / "steps.txt").read_text() == "".join(f"{at}\n" for at in range(STEPS))
    asked = [one for one in front.requests if one.path.startswith("/v1/responses")]
    # The WebSocket is refused so that Codex does not try it again.
    assert [(one.method, one.status) for one in asked] == [("GET", 426), *[("POST", 200)] * 6]
    assert asked[0].sent["upgrade"] == "websocket"
    assert {one.sent.get("content-encoding") for one in asked[1:]} == {"zstd"}
    assert all(one.raw.startswith(b"\x28\xb5\x2f\xfd") for one in asked[1:])  # zstd's first bytes
    assert [_kind(one) for one in asked[1:]] == ["turn"] * 3 + ["compaction"] + ["turn"] * 2
    heard = scene.heard
    assert TRIGGER in heard[3].text
    assert SUMMARY in heard[4].text
    # Tools stay in this kind of compaction, which so goes on exactly. What begins anew is the task,
    # and the history that Codex makes of the summary.
    tell(was_exact(heard, new=2))


def test_codex_compacts_remotely_over_a_socket(
    place: Sandbox, tmp_path: Path, tell: Callable[[Sequence[Row]], None]
) -> None:
    scene = stage(tmp_path / "stage", QWEN3_CODER, window=WINDOW)
    _log_in(place)
    script = _script()
    task = {"when": {"text": "Take all steps."}, "turns": script["turns"]}
    script |= {"rules": [*script["rules"], task], "turns": turns(QWEN3_CODER, [])}
    with scene.server(script) as server:
        told = codex(place, server.url, "Take all steps.", *_as_openai(server.url))
        assert "endpoint=responses status=101" in server.log.read_text()
        assert "status=426" not in server.log.read_text()
    assert told.result == DONE
    assert (place.work / "steps.txt").read_text() == "".join(f"{at}\n" for at in range(STEPS))
    heard = [one for one in scene.heard if "Take all steps." in one.text]
    assert len(heard) == 6
    assert TRIGGER in heard[3].text
    assert SUMMARY in heard[4].text
    tell(was_exact(heard, new=2))  # as above


def _script() -> dict[str, Any]:
    steps: list[list[OutputBlock]] = [
        [think(f"Step {at}."), call("exec_command", cmd=f"echo {at} >> steps.txt; seq 1 1000")]
        for at in range(STEPS)
    ]
    main = turns(QWEN3_CODER, *steps, [think("Done."), say(DONE)])
    (summary,) = turns(QWEN3_CODER, [say(SUMMARY)])
    return {"rules": [{"when": {"text": TRIGGER, "tail": 1000}, **summary}], "turns": main}


def _log_in(place: Sandbox) -> None:
    """A login that nobody has given: Codex looks at its form and at its dates alone."""
    now = int(time.time())
    account = {"chatgpt_plan_type": "pro", "chatgpt_account_id": "a", "chatgpt_user_id": "u"}
    claims = {"iat": now, "exp": now + 10**7, "https://api.openai.com/auth": account}
    token = ".".join(_packed(part) for part in ({"alg": "none"}, claims, {}))
    tokens = {"id_token": token, "access_token": token, "refresh_token": "r", "account_id": "a"}
    today = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    auth = {"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": today}
    home = place.home / ".codex"
    home.mkdir()
    (home / "auth.json").write_text(json.dumps(auth))


def _packed(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")


def _as_openai(url: str) -> list[str]:
    """Settings that make Codex take the server for OpenAI's own."""
    provider = f'name="OpenAI", base_url="{url}/v1", wire_api="responses"'
    more = "requires_openai_auth=true, supports_websockets=true"
    settings = [
        'model_provider="theirs"',
        f"model_providers.theirs={{{provider}, {more}}}",
        f'chatgpt_base_url="{url}/backend-api"',
    ]
    return [part for setting in settings for part in ("-c", setting)]


def _kind(asked: RecordedRequest) -> str:
    return str(json.loads(asked.sent["x-codex-turn-metadata"])["request_kind"])
