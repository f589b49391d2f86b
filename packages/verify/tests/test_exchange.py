"""Requests and responses in the form that reports show."""

import json

from dovetail_verify.exchange import HttpExchange, SentRequest, SseFrame, abbreviate


def test_evidence_is_abbreviated_and_hides_api_keys() -> None:
    sent = SentRequest("POST", "/x", {"a": "b" * 5000}, {"x-api-key": "secret", "accept": "y"})
    assert "secret" not in str(sent)
    assert "[accept: y]" in str(sent)
    assert len(str(sent)) < 700
    assert abbreviate("a \n b") == "a b"


def test_summary_lists_events_by_name_and_count() -> None:
    chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}
    frames = [
        SseFrame("ping", '{"type":"ping"}'),
        *[SseFrame("", json.dumps(chunk))] * 3,
        SseFrame("", '{"choices":[{"delta":{},"finish_reason":"stop"}]}'),
        SseFrame("", '{"choices":[],"usage":{"x":1}}'),
        SseFrame("", '{"choices":[]}'),
        SseFrame("", '{"odd":1}'),
        SseFrame("", "[DONE]"),
    ]
    summary = HttpExchange(SentRequest("GET", "/"), 200, {}, b"", frames).summary
    assert summary == (
        "200, 9 events: ping, chunk of content ×3, chunk of finish stop, chunk of usage, "
        'empty chunk, {"odd":1}, [DONE]'
    )
