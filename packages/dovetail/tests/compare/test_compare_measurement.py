"""Measures of a run from captured exchanges, of Dovetail and of other servers."""

import json
from typing import Any

import pytest

from dovetail.compare.measurement import (
    decode_exchanges,
    describe_failure,
    measure_run,
    to_session_requests,
)
from dovetail.watch.exchange import CapturedExchange

TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}]


def call(number: int, name: str = "ls") -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {"id": f"call_{number}", "type": "function", "function": function}


def exchange(
    number: int,
    messages: list[dict[str, Any]],
    message: dict[str, Any] | None = None,
    *,
    tools: Any = TOOLS,
    usage: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> CapturedExchange:
    """A Chat Completions exchange without streaming."""
    body = {"model": "m", "messages": messages, **({"tools": tools} if tools else {})}
    content = {"role": "assistant", "content": "ok", **(message or {})}
    finish = "tool_calls" if "tool_calls" in content else "stop"
    choice = {"index": 0, "message": content, "finish_reason": finish}
    response = {"choices": [choice], **({"usage": usage} if usage else {})}
    fields: dict[str, Any] = {
        "request_received": 0.25,
        "ended": 1.0,
        "status": 200,
        "response": json.dumps(response).encode(),
        **more,
    }
    return CapturedExchange(
        number=number,
        method="POST",
        target="/v1/chat/completions",
        began=float(number),
        request_headers={},
        response_headers={"content-type": "application/json", **(headers or {})},
        request=json.dumps(body).encode(),
        **fields,
    )


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def prefix(total: int, again: int | None = None, reason: str | None = None) -> dict[str, str]:
    values = {"total": total, "again": again, "reason": reason}
    return {f"x-dovetail-prefix-{k}": str(v) for k, v in values.items() if v is not None}


PROMPT: dict[str, Any] = {"role": "user", "content": "Do it."}


def test_tool_calls_turns_and_times() -> None:
    one = exchange(1, [PROMPT], {"tool_calls": [call(1), call(2, "cat")]})
    two = exchange(2, [PROMPT], {"tool_calls": [call(3)]})
    title = exchange(3, [PROMPT], tools=None)
    found = measure_run(decode_exchanges([two, title, one]))
    assert found.tool_calls == {"ls": 2, "cat": 1}
    assert found.turns == 2  # a request without tools is not part of the conversation
    assert found.ttft_seconds == (0.75, 0.75, 0.75)


def test_server_without_token_counts() -> None:
    found = measure_run(decode_exchanges([exchange(1, [PROMPT])]))
    assert found.prompt_tokens is found.cached_tokens is found.new_tokens is None
    assert found.re_prefilled_tokens is found.output_tokens is found.reasoning_tokens is None


def test_tokens_of_a_server_that_is_not_dovetail() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    found = measure_run(decode_exchanges([exchange(1, [PROMPT], usage=usage)] * 2))
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (200, 128, 20)
    assert found.reasoning_tokens == 8
    assert found.new_tokens is found.re_prefilled_tokens is None


def test_tokens_that_were_prefilled_again() -> None:
    """The first prompt is new, the second continues it, the third diverges."""

    def usage(prompt: int, cached: int) -> dict[str, Any]:
        details = {"cached_tokens": cached}
        return {
            "prompt_tokens": prompt, "completion_tokens": 20, "prompt_tokens_details": details
        }  # fmt: skip

    exchanges = [
        exchange(1, [PROMPT], usage=usage(100, 48), headers=prefix(100, 100, "first")),
        exchange(2, [PROMPT], usage=usage(150, 112), headers=prefix(150, 30)),
        exchange(3, [PROMPT], usage=usage(200, 16), headers=prefix(200, 184, "retokenization")),
    ]
    found = measure_run(decode_exchanges(exchanges))
    assert found.new_tokens == 100 + 30 + 30  # of the third: beyond 150 + 20 known tokens
    assert found.re_prefilled_tokens == 0 + 8 + 154


@pytest.mark.parametrize(
    "text",
    [
        "Total output lines: 8000\n\n1\n2…1234 tokens truncated…7999\n8000",
        "1\n2\n\n... [8894 characters truncated] ...\n",
        "1\n[500 lines truncated]\n9",
        "<persisted-output>\nOutput too large (38KB). Full output saved to: /x",
        "[Showing lines 1-2000 of 8000. Full output: /tmp/x]",
    ],
)
def test_truncated_tool_results_are_counted_once(text: str) -> None:
    history = [PROMPT, {"role": "assistant", "tool_calls": [call(1)]}, result(1, text)]
    later = [*history, {"role": "assistant", "tool_calls": [call(2)]}, result(2, "all of it")]
    found = measure_run(decode_exchanges([exchange(1, history), exchange(2, later)]))
    assert found.truncated_outputs == 1


def test_diagnostics_are_counted_by_code() -> None:
    one = exchange(1, [PROMPT], headers={"x-dovetail-diagnostics": "effort_ignored, ignored:x"})
    two = exchange(2, [PROMPT], headers={"x-dovetail-diagnostics": "effort_ignored"})
    found = measure_run(decode_exchanges([one, two]))
    assert found.diagnostics == {"effort_ignored": 2, "ignored:x": 1}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"status": 0, "response": b""}, "closed the connection without a response"),
        ({"status": 503}, "returned HTTP 503"),
        ({"status": 401}, "returned HTTP 401"),
        ({"truncated": True}, "closed the connection during a response"),
        ({"status": 400}, None),  # such as a prompt that is too long: the run is measured
        ({}, None),
    ],
)
def test_failure_of_the_endpoint_at_the_end(more: dict[str, Any], message: str | None) -> None:
    exchanges = decode_exchanges([exchange(1, [PROMPT]), exchange(2, [PROMPT], **more)])
    found = describe_failure(exchanges)
    assert (message is None and found is None) or (message or "-") in (found or "")


def test_endpoint_that_rejects_every_request() -> None:
    exchanges = decode_exchanges(
        [exchange(1, [PROMPT], status=400), exchange(2, [PROMPT], status=400)]
    )
    assert (describe_failure(exchanges) or "").startswith("the endpoint returned HTTP 400: ")


@pytest.mark.parametrize(
    ("status", "message"),
    [(400, "HTTP 400: The prompt is too long."), (401, "HTTP 401")],  # 401 may quote the key
)
def test_reason_of_a_rejection_is_reported(status: int, message: str) -> None:
    response = json.dumps({"error": {"message": "The prompt is too long."}}).encode()
    exchanges = decode_exchanges([exchange(1, [PROMPT], status=status, response=response)])
    assert describe_failure(exchanges) == f"the endpoint returned {message}"


def test_harness_that_sends_nothing() -> None:
    assert describe_failure([]) == "the endpoint received no request of the harness"


def test_failed_requests_are_not_compared() -> None:
    failed = exchange(1, [PROMPT], status=503)
    good = exchange(2, [{"role": "user", "content": "In /tmp/x/work"}])
    (found,) = to_session_requests(decode_exchanges([failed, good]), {"/tmp/x": "<scratch>"})
    assert found.body["messages"][0]["content"] == "In <scratch>/work"
    assert found.output == [["text", "ok"]]
