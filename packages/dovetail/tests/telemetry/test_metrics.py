"""Metrics and log lines of requests, which contain no payload."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from http_fixture import CALL, NAME, run, serving
from prometheus_client.parser import text_string_to_metric_families

from dovetail.http.options import HttpOptions
from dovetail.prompt.prefix_report import DIVERGENCE_REASONS
from dovetail.telemetry.log import JsonFormatter, LogfmtFormatter, configure_logging, request_fields
from dovetail.telemetry.metrics import INTER_TOKEN_BUCKETS_SECONDS, Metrics
from dovetail.telemetry.record import PrefixStats, RequestRecord
from dovetail_model import Usage

PAGE = Path(__file__).parents[4] / "docs" / "operations" / "metrics.md"
SECRET = "the secret word is xylophone"
BODY: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": SECRET}]}


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_stream_is_counted() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script("Hello, world.", cached=16)
            await stage.request("POST", "/v1/chat/completions", {**BODY, "stream": True})
            reply = await stage.request("GET", "/metrics")
            assert reply.headers["content-type"].startswith("text/plain")
            found = samples(reply.body.decode())
            of = (("model", NAME),)
            labels = {
                "endpoint": "chat_completions",
                "model": NAME,
                "request_type": "stream",
                "status": "200",
            }
            assert found["dovetail_requests_total", tuple(labels.items())] == 1
            assert found["dovetail_time_to_first_token_seconds_count", of] == 1
            assert found["dovetail_input_sequence_tokens_sum", of] == len(
                stage.engine.requests[0].prompt
            )
            assert found["dovetail_output_sequence_tokens_sum", of] == len("Hello, world.") + 1
            assert found["dovetail_cached_tokens_sum", of] == 16
            assert found["dovetail_inter_token_latency_seconds_count", of] > 2
            assert found["dovetail_queued_requests", ()] == 0
            reason = (("model", NAME), ("reason", "first"))
            assert found["dovetail_prefix_reasons_total", reason] == 1

    run(scene)


def test_parser_diagnostics_are_counted_by_code() -> None:
    async def scene() -> None:
        async with serving() as stage:
            stage.engine.plan = stage.engine.script(CALL.removesuffix("\n</tool_call>")[:-8])
            tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
            await stage.request("POST", "/v1/chat/completions", {**BODY, "tools": [tool]})
            text = (await stage.request("GET", "/metrics")).body.decode()
            assert any(name == "dovetail_parser_diagnostics_total" for name, _ in samples(text))

    run(scene)


def test_client_input_never_becomes_a_label() -> None:
    async def scene() -> None:
        async with serving() as stage:
            await stage.request("POST", "/v1/chat/completions", {**BODY, "model": "xylophone"})
            await stage.request("GET", "/xylophone")
            assert b"xylophone" not in (await stage.request("GET", "/metrics")).body

    run(scene)


def test_the_log_line_of_a_request() -> None:
    async def scene() -> None:
        async with serving(HttpOptions(log_prefix=True)) as stage:
            await stage.request(
                "POST", "/v1/chat/completions", BODY, x_session_id="s-1", x_request_id="r-1"
            )
            line = await stage.ended.get()
            assert (line["id"], line["session"], line["model"]) == ("r-1", "s-1", NAME)
            assert (line["endpoint"], line["status"]) == ("chat_completions", 200)
            assert (line["finish"], line["output"]) == ("stop", len("Hello.") + 1)
            assert line["input"] == len(stage.engine.requests[0].prompt)
            assert line["prefix"].startswith("prefix: first prompt of the session")
            assert line["ttft_ms"] <= line["duration_ms"]
            assert "xylophone" not in json.dumps(line)

    run(scene)


def record(**fields: Any) -> logging.LogRecord:
    made = logging.LogRecord(
        "dovetail.request", logging.INFO, "", 0, "request_finished", None, None
    )
    made.fields = fields
    return made


def test_logfmt_quotes_special_characters() -> None:
    line = LogfmtFormatter().format(record(session='a"b\nc d', tokens=3, stream=True, model="x/y"))
    assert "\n" not in line
    assert line.endswith(
        r'event=request_finished session="a\"b\nc d" tokens=3 stream=true model=x/y'
    )


@pytest.mark.parametrize("form", [LogfmtFormatter(), JsonFormatter()], ids=["logfmt", "json"])
def test_control_characters_are_escaped(form: logging.Formatter) -> None:
    steering = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    line = form.format(record(session=f"s{steering}"))
    assert not set(steering) & set(line)


def test_json_lines() -> None:
    line = json.loads(JsonFormatter().format(record(session="a\nb", tokens=3)))
    assert (line["event"], line["session"], line["tokens"]) == ("request_finished", "a\nb", 3)


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_all_log_records_go_to_one_handler(form: Any) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        configure_logging(form, "warning", stream)
        logging.getLogger("other").info("quiet")
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("other").exception("loud")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert "loud" in text
    assert "ValueError: why" in text


def test_unknown_fields_are_omitted() -> None:
    end = RequestRecord(id="r", endpoint="models", status=200, duration=0.5)
    assert request_fields(end) == {
        "id": "r",
        "endpoint": "models",
        "status": 200,
        "stream": False,
        "duration_ms": 500.0,
    }


def test_request_line_has_waits_migrations_and_sub_agents() -> None:
    end = RequestRecord(
        id="r",
        endpoint="responses",
        status=200,
        duration=0.5,
        transport="websocket",
        session="s",
        parent="p",
        decoded=0.1,
        admitted=0.3,
        migrations=2,
    )
    fields = request_fields(end)
    assert (fields["parent"], fields["queue_ms"], fields["migrations"]) == ("p", 200.0, 2)
    assert fields["transport"] == "websocket"


def test_gauges_and_limits() -> None:
    metrics = Metrics()
    metrics.add_websockets(+1)
    metrics.add_websockets(+1)
    metrics.add_websockets(-1)
    metrics.add_background_responses(+1)
    metrics.set_draining(True)
    metrics.count_rate_limited("tokens")
    found = samples(metrics.render()[0].decode())
    assert found["dovetail_websocket_connections", ()] == 1
    assert found["dovetail_background_responses", ()] == 1
    assert found["dovetail_draining", ()] == 1
    assert found["dovetail_rate_limited_requests_total", (("reason", "tokens"),)] == 1


def test_inter_token_buckets_are_cumulative() -> None:
    metrics = Metrics()
    gaps = metrics.inter_token_histogram("m")
    for place in (0, 2, 2, len(INTER_TOKEN_BUCKETS_SECONDS)):
        gaps.counts[place] += 1
    gaps.sum = 99.5
    found = samples(metrics.render()[0].decode())
    name = "dovetail_inter_token_latency_seconds"
    bounds = {
        dict(labels)["le"]: value for (n, labels), value in found.items() if n == f"{name}_bucket"
    }
    assert (bounds["0.0005"], bounds["0.002"], bounds["5.0"], bounds["+Inf"]) == (1, 3, 3, 4)
    assert found[f"{name}_sum", (("model", "m"),)] == 99.5


def test_reasons_are_a_closed_set() -> None:
    metrics = Metrics()
    for reason in (None, *DIVERGENCE_REASONS):
        metrics.count_prompt(
            "m", PrefixStats(common=0, total=1, reason=reason, turns={"exact": 1}), 0
        )
    text = metrics.render()[0].decode()
    assert text.count("dovetail_prefix_reasons_total{") == len(DIVERGENCE_REASONS) + 1


def test_usage_is_logged_only_if_known() -> None:
    end = RequestRecord(id="r", endpoint="chat", status=200, duration=0.5, usage=Usage(5, 2))
    assert request_fields(end)["output"] == 2
    assert "reasoning" not in request_fields(end)


def test_the_documentation_lists_every_metric() -> None:
    page = PAGE.read_text()
    for family in Metrics().registry.collect():
        assert f"`{family.name}`" in page or f"`{family.name}_total`" in page, family.name


def test_openmetrics_on_request() -> None:
    body, kind = Metrics().render("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
