"""`dovetail serve --engine dynamo` with Dynamo's real frontend: exact turns, hints and failover."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dynamo_fleet import NAME, REAL, Fleet, running_frontend
from server_process import Running, served

from dovetail_tokenizers import load_tokenizer

pytestmark = REAL

CALL = '<tool_call>\n{"name": "look", "arguments": {"where":  "here"}}\n</tool_call>'
OUTPUT = f"<think>\nHow kind: 你好 🦜\n</think>\n\n{CALL}<|im_end|>"
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
SLOW = ("--speedup-ratio", "0.4")
FAST = ("--speedup-ratio", "20")
KILL_AFTER_EVENTS = 30


def remote(fleet: Fleet) -> tuple[str, ...]:
    return ("--engine", "dynamo", "--engine-url", fleet.url, "--tokenizer", str(fleet.model))


def send_messages(server: Running, messages: list[Any], **more: str) -> Any:
    body = {"model": NAME, "max_tokens": 100, "messages": messages, "tools": [LOOK]}
    body |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 0.1}
    body["nvext"] = {"agent_hints": {"osl": 44, "strict_priority": 2}, "cache_salt": "salt"}
    headers = {
        "x_dynamo_session_id": "one",
        "x_dynamo_parent_session_id": "two",
        "x_dynamo_request_priority": "7",
        **more,
    }
    return server.post("/v1/messages", body, anthropic_version="2023-06-01", **headers)


def test_next_turn_continues_with_the_exact_ids(tmp_path: Path) -> None:
    """The requests that the worker received through the frontend are the oracle."""
    requests = tmp_path / "requests.jsonl"
    with running_frontend(tmp_path) as fleet:
        output = load_tokenizer(fleet.model).encode(OUTPUT)
        fleet.start_scripted(output, requests)
        fleet.await_workers(1)
        with served(*remote(fleet)) as server:
            first = {"role": "user", "content": "Look."}
            response = send_messages(server, [first])
            reasoning, call = response["content"]
            assert (reasoning["type"], call["input"]) == ("thinking", {"where": "here"})
            assert response["usage"]["cache_read_input_tokens"] == 16
            seen = {"type": "tool_result", "tool_use_id": call["id"], "content": "nothing"}
            again = {"role": "assistant", "content": response["content"]}
            turns = [first, again, {"role": "user", "content": [seen]}]
            send_messages(server, turns, x_dynamo_session_final="true")
            completion = server.openai().chat.completions.create(
                model=NAME, messages=[{"role": "user", "content": "Hi"}], logprobs=True
            )
            logprobs = completion.choices[0].logprobs
            assert logprobs is not None
            assert {one.logprob for one in logprobs.content or []} == {-0.5}
    one, two, _ = [json.loads(line) for line in requests.read_text().splitlines()][-3:]
    previous = [*one["token_ids"], *output]
    assert two["token_ids"][: len(previous)] == previous
    context = {"session_id": "one", "parent_session_id": "two"}
    assert one["agent_context"].items() >= context.items()
    assert two["agent_context"].items() >= {**context, "session_final": True}.items()
    hints = {"priority": 7, "strict_priority": 2, "expected_output_tokens": 44}
    assert one["routing"].items() >= {**hints, "cache_salt": "salt"}.items()
    assert output[-1] in one["stop_conditions"]["stop_token_ids"]
    assert not one["stop_conditions"]["stop"]
    assert one["sampling_options"]["temperature"] == pytest.approx(0.1)  # a float of 32 bits


def test_three_apis(tmp_path: Path) -> None:
    with running_frontend(tmp_path) as fleet:
        fleet.start_mocker(*FAST)
        fleet.await_workers(1)
        with served(*remote(fleet)) as server:
            body: dict[str, Any] = {"model": NAME}
            turn = [{"role": "user", "content": "hi"}]
            response = server.post("/v1/messages", {**body, "max_tokens": 40, "messages": turn})
            assert response["usage"]["output_tokens"] == 40
            chat = {**body, "max_tokens": 20, "messages": turn}
            response = server.post("/v1/chat/completions", chat)
            assert response["usage"]["completion_tokens"] == 20
            responses = {**body, "max_output_tokens": 20, "input": "hi"}
            assert server.post("/v1/responses", responses)["usage"]["output_tokens"] == 20
            forced = {**chat, "response_format": {"type": "json_object"}}
            refused = server.request("POST", "/v1/chat/completions", forced)
            assert refused.status == 400  # the mocker enforces no constraint
            biased = server.request(
                "POST", "/v1/chat/completions", {**chat, "logit_bias": {"5": 1}}
            )
            assert biased.status == 400
            assert "logit_bias" in biased.json["error"]["message"]


def stream_events(server: Running, length: int) -> Iterator[Any]:
    """Yield the events of a response of `length` tokens."""
    body = {"model": NAME, "max_tokens": length, "stream": True}
    body["messages"] = [{"role": "user", "content": "Go on and on."}]
    with server.open("POST", "/v1/messages", body) as response:
        assert response.status == 200
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])


def test_dead_worker_without_dynamos_migration(tmp_path: Path) -> None:
    """Dovetail continues the response on a worker that is there, or that comes back in time."""
    with running_frontend(tmp_path) as fleet:
        first = fleet.start_mocker(*SLOW)
        fleet.await_workers(1)
        with served(*remote(fleet), "--recovery-wait", "60") as server:
            events = []
            for count, event in enumerate(stream_events(server, 600)):
                events.append(event)
                if count == KILL_AFTER_EVENTS:
                    second = fleet.start_mocker(*SLOW)
                    fleet.await_workers(2)
                    fleet.kill(first)
            assert output_tokens(events) == 600
            events = []
            for count, event in enumerate(stream_events(server, 600)):
                events.append(event)
                if count == KILL_AFTER_EVENTS:
                    fleet.kill(second)
                    threading.Thread(target=fleet.start_mocker, args=FAST).start()
            assert output_tokens(events) == 600
            metrics = server.request("GET", "/metrics").body.decode()
            assert f'dovetail_migrations_total{{model="{NAME}"}} 2' in metrics


def output_tokens(events: list[Any]) -> int:
    """Return the token count of a complete response."""
    assert not [event for event in events if event["type"] == "error"]
    assert events[-1]["type"] == "message_stop"
    count: int = events[-2]["usage"]["output_tokens"]
    return count


def test_last_worker_dies(tmp_path: Path) -> None:
    """The response ends with an error event, and `/health` follows the frontend's workers."""
    with running_frontend(tmp_path) as fleet:
        worker = fleet.start_mocker(*SLOW)
        fleet.await_workers(1)
        with served(*remote(fleet), "--recovery-wait", "1") as server:
            assert server.request("GET", "/health").status == 200
            events = []
            for count, event in enumerate(stream_events(server, 4000)):
                events.append(event)
                if count == KILL_AFTER_EVENTS:
                    fleet.kill(worker)
            assert events[-1]["type"] == "error"
            assert not [event for event in events if event["type"] == "message_stop"]
            # The frontend may list a dead worker again until its lease has expired.
            while server.request("GET", "/health").status != 503:
                time.sleep(0.2)
            body = {"model": NAME, "max_tokens": 5, "messages": [{"role": "user", "content": "?"}]}
            assert server.request("POST", "/v1/messages", body).status in (503, 529)
            fleet.start_mocker(*FAST)
            fleet.await_workers(1)
            while server.request("GET", "/health").status != 200:
                time.sleep(0.2)
            assert server.post("/v1/messages", body)["usage"]["output_tokens"] == 5
